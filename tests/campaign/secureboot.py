"""Boots a machine with enforced Secure Boot, and checks which modules load and what gpuprov reports.

    scripts/campaign secureboot [--real [--store FOLDER]] [--keep]

The driver is compiled while the node is an ordinary one: a few lines of C with the real packages, DKMS and
kbuild, or with --real all of NVIDIA's source, unless a module store already has it. It is signed in the
store. Then the node boots as a machine with OVMF and Debian's shim, GRUB and kernel, whose firmware does not
have the certificate. `gpuprov bootstrap` requests its enrolment, the keys are pressed in MOK manager as at a
console, and after that boot the kernel must load the module. The last boot uses a firmware with the
certificate in its own list, as clouds install it. Prints each observation with a verdict; exit 1 if one is
wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from gpuprov.errors import Exit
from gpuprov.model.secure_boot import SecureBoot
from gpuprov.signing.keys import signer
from gpuprov.signing.signature import without_signature
from gpuprov_lab import Lab, Node, efi, vm
from tests.campaign._small_driver import play_source
from tests.campaign._watched import Watched
from tests.campaign.kernel import PROFILE
from tests.lab.command_line import gpuprov

ROLES = ("repositories", "nvidia_driver", "package_pins")
CHECKS = ("module.signature", "secure_boot.state")
MODULES = "updates/dkms"
LOAD = "modprobe -i nvidia-current; echo exit $?; rmmod nvidia-current 2>/dev/null; dmesg | tail -n 4"
REJECTED, NO_GPU = "Key was rejected by service", "No such device"
ENROLLED, NOT_ENROLLED = "on, certificate enrolled", "on, certificate not enrolled"
MENU_S = 900
"""Seconds until an emulated machine shows MOK manager, also on a busy host."""


class Site(Watched):
    """A node, its fleet, and certificates with their keys."""

    def certificate(self, name: str) -> Path:
        """Return the certificate of a pair."""
        return self.folder / f"{name}.pem"

    def witnesses(self, signature: str | None, state: str | None) -> None:
        """Compare drift and verify with the expected state.

        Args:
            signature: the signature of the modules that they must report; None if it is the fleet's.
            state: the state of Secure Boot that they must report; None if it is correct.
        """
        wanted = {check: text for check, text in zip(CHECKS, (signature, state), strict=True) if text}
        done = gpuprov(self.folder, "drift", "-o", "json", code=None)
        [node] = json.loads(done.stdout)["nodes"]
        drift = {each["check"]: str(each["actual"]) for each in node["drift"] if each["check"] in CHECKS}
        fine = drift.keys() == wanted.keys() and all(text in drift[check] for check, text in wanted.items())
        unknown = node.get("reason")
        self.saw("gpuprov drift", drift or unknown or "nothing differs", fine=fine and not unknown)
        done = gpuprov(self.folder, "verify", "-o", "json", code=None)
        [node] = json.loads(done.stdout)["nodes"]
        failed = {
            each["check"]: f"{each['actual']} {each['detail']}"
            for each in node["checks"]
            if each["check"] in CHECKS and each["status"] != "passed"
        }
        fine = failed.keys() == wanted.keys() and all(
            text.partition(" for ")[0] in failed[check] for check, text in wanted.items()
        )
        result = {check: text[:200] for check, text in failed.items()}
        unknown = node["message"]
        self.saw("gpuprov verify", result or unknown or "both checks pass", fine=fine and not unknown)


def main() -> int:
    """Run the campaign; return 0 if every observation was right."""
    parser = argparse.ArgumentParser(prog="scripts/campaign secureboot", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the node running at the end")
    parser.add_argument("--real", action="store_true", help="compile NVIDIA's own source: minutes more")
    parser.add_argument("--store", type=Path, help="modules that an earlier run of gpuprov keeps, unsigned")
    chosen = parser.parse_args()
    begun = time.monotonic()
    lab = Lab(f"secureboot-{os.getpid()}")
    with tempfile.TemporaryDirectory() as folder:
        try:
            [node] = lab.up(1)
            site = Site(lab, node, Path(folder))
            if not chosen.real:
                play_source(node)
            elif chosen.store:
                shutil.copytree(chosen.store, site.folder / "state/gpuprov/modules")
            compiled(site)
            variants(site)
            rejected(site)
            enrolled_at_the_console(site)
            accepted(site)
            enrolled_in_the_firmware(site)
        finally:
            if not chosen.keep:
                lab.down()
    print(f"{len(site.wrong)} not as it should be; {time.monotonic() - begun:.0f} s in all")
    return 1 if site.wrong else 0


def compiled(site: Site) -> None:
    """Check that the store signs what the node compiles, and that the node gets the signed modules."""
    print("--- an ordinary node: compiled there, signed here")
    for name in ("site", "stranger"):
        words = f"openssl req -new -x509 -newkey rsa:2048 -nodes -days 99 -subj /CN=gpuprov-{name}".split()
        pair = ["-keyout", f"{name}.key", "-out", f"{name}.pem", "-addext", "extendedKeyUsage=codeSigning"]
        subprocess.run([*words, *pair], cwd=site.folder, check=True, capture_output=True)
    fleet = yaml.safe_load(site.lab.fleet("bare"))
    [group] = fleet["groups"].values()
    group["settings"]["kernel"] = site.node.kernel
    fleet["secure_boot"] = {"certificate": "site.pem", "key": "site.key"}
    (site.folder / "profiles").mkdir()
    (site.folder / "profiles/bare.yml").write_text(yaml.safe_dump(PROFILE))
    (site.folder / "fleet.yml").write_text(yaml.safe_dump(fleet))
    refused = gpuprov(site.folder, "lock", code=5)
    site.saw("gpuprov lock, each node compiles", refused.stderr, fine="builder: NODE" in refused.stderr)
    group["stack"]["builder"] = site.node.name
    (site.folder / "fleet.yml").write_text(yaml.safe_dump(fleet))
    gpuprov(site.folder, "lock")
    lock = (site.folder / "fleet.lock.yml").read_text()
    site.saw("the lock names no key", re.findall("site.key|stranger", lock), fine="site.key" not in lock)
    roles = [word for role in ROLES for word in ("--role", role)]
    done = gpuprov(site.folder, "apply", "--yes", "--no-verify", *roles, code=None)
    site.saw("gpuprov apply", done.stderr + done.stdout, fine=done.returncode == Exit.DRIFT)  # reboot pending
    result = site.says(
        f"modinfo -k {site.node.kernel} nvidia-current | grep -E '^(signer|sig_key):'; dkms status"
    )
    fine = "gpuprov-site" in result and "installed" in result and "Diff" not in result
    site.saw("modinfo, dkms status", result, fine=fine)
    site.witnesses(None, "no EFI")


def variants(site: Site) -> None:
    """Write the modules unsigned, and signed by a foreign certificate, to folders on the node."""
    root = site.node.root
    home = root / "root"
    _, by_stranger = signer(SecureBoot(certificate="stranger.pem", key="stranger.key"), site.folder)
    signs: dict[str, Callable[[bytes], bytes]] = {
        "site": bytes,
        "unsigned": without_signature,
        "stranger": by_stranger,
    }
    for path in (root / f"usr/lib/modules/{site.node.kernel}/{MODULES}").glob("*.ko"):
        for name, sign in signs.items():
            (home / name).mkdir(exist_ok=True)
            (home / name / path.name).write_bytes(sign(path.read_bytes()))


def loads(site: Site, name: str, said: str) -> None:
    """Install the modules of one kind, and check the kernel's message on loading one."""
    site.says("dmesg --clear")
    result = site.says(f"cp /root/{name}/*.ko /lib/modules/$(uname -r)/{MODULES}/; {LOAD}")
    site.saw(f"modprobe, {name}", result, fine=said in result)


def rejected(site: Site) -> None:
    """Check that without the certificate the kernel loads no module of gpuprov, with any signature."""
    print("--- a machine that enforces Secure Boot, nothing enrolled")
    begun = time.monotonic()
    site.node = site.lab.virtualise(site.node, firmware=efi.Firmware())
    print(f"    disk made, booted, update-grub: {time.monotonic() - begun:.0f} s")
    result = site.says("mokutil --sb-state; cat /sys/kernel/security/lockdown; dmesg | grep -i 'secure boot'")
    site.saw("mokutil, lockdown", result, fine="SecureBoot enabled" in result and "[integrity]" in result)
    for name, signature in (("unsigned", "unsigned"), ("stranger", "gpuprov-stranger"), ("site", None)):
        loads(site, name, REJECTED)
        site.witnesses(signature, NOT_ENROLLED)


def enrolled_at_the_console(site: Site) -> None:
    """Check that bootstrap requests the enrolment, and reports it after the keys at the console.

    Raises:
        SystemExit: bootstrap requests none.
    """
    print("--- gpuprov bootstrap")
    done = gpuprov(site.folder, "bootstrap", "--keep-passwords", code=None)
    password = re.search(r"password (\w+), Reboot", done.stdout)
    site.saw("gpuprov bootstrap", done.stdout + done.stderr, fine=done.returncode == 0 and bool(password))
    if password is None:
        raise SystemExit("bootstrap asked for no enrolment")
    again = gpuprov(site.folder, "bootstrap", "--keep-passwords", code=None)
    site.saw("once more", again.stdout, fine="waits for the console" in again.stdout)
    before = site.node.boot_id()
    start = site.node.console.stat().st_size
    site.node.run("systemctl reboot", check=False)
    at_mok_manager(site.node, start, password[1])
    site.node.await_ssh()
    site.saw("another boot", site.node.boot_id(), fine=site.node.boot_id() != before)
    done = gpuprov(site.folder, "bootstrap", "--keep-passwords", code=None)
    site.saw("gpuprov bootstrap", done.stdout, fine="certificate of gpuprov-site is enrolled" in done.stdout)


def at_mok_manager(node: Node, start: int, password: str) -> None:
    """Press the keys in MOK manager, waiting for its texts.

    Args:
        start: length of the console's log before.
    """
    steps = (
        ("Press any key to perform MOK management", ["ret"]),
        ("Enroll MOK", ["down", "ret"]),
        ("View key 0", ["down", "ret"]),
        ("Enroll the key", ["down", "ret"]),
        ("Password:", [*password, "ret"]),
        ("Reboot", ["ret"]),
    )
    for text, keys in steps:
        start = await_text(node, start, text)
        vm.press_keys(node.disk, *keys)


def await_text(node: Node, start: int, text: str) -> int:
    """Wait until the console shows a text; return the length of its log then.

    Raises:
        SystemExit: it does not in time.
    """
    deadline = time.monotonic() + MENU_S
    while time.monotonic() < deadline:
        seen = node.console.read_bytes()
        plain = re.sub(rb"\x1b\[[0-9;=]*[a-zA-Z]", b"", seen[start:])
        if text.encode() in plain:
            time.sleep(2)  # until the menu is drawn and accepts keys
            return len(seen)
        time.sleep(1)
    raise SystemExit(f"the console does not show {text!r}: see {node.console}")


def accepted(site: Site) -> None:
    """Check that the kernel loads modules signed for the enrolled certificate, and no others."""
    print("--- the certificate in shim's list")
    loads(site, "site", NO_GPU)
    site.witnesses(None, None)
    loads(site, "stranger", REJECTED)
    site.witnesses("gpuprov-stranger", None)
    loads(site, "unsigned", REJECTED)
    site.witnesses("unsigned", None)


def enrolled_in_the_firmware(site: Site) -> None:
    """Check the same with the certificate in the firmware's own list, where clouds install it."""
    print("--- the certificate in the firmware's list")
    site.node.stop()
    efi.write_variables(efi.Firmware(db=(site.certificate("site"),)), vm.variables(site.node.disk))
    site.node.start()
    loads(site, "stranger", REJECTED)
    loads(site, "site", NO_GPU)
    site.witnesses(None, None)


if __name__ == "__main__":
    sys.exit(main())

"""Changes the kernel of a virtual machine, and checks headers, module, initramfs, nouveau and the gate.

    scripts/campaign kernel [--real] [--keep]

The driver is compiled for Debian's newest kernel while the node is an ordinary one: a few lines of C with the
real packages, DKMS and kbuild, or with --real all of NVIDIA's source, which would take an emulated machine
hours. Then the node boots as a virtual machine with the previous kernel. gpuprov must report the running
kernel, the next one, and the kernel that has a module; the gate of an upgrade must be closed. gpuprov reboots
the node, and the new kernel must load the module. Prints each observation with a verdict; exit 1 if one is
wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from debian.debian_support import Version

from gpuprov.probe.facts import Facts
from gpuprov_lab import Lab
from tests.campaign._small_driver import play_source
from tests.campaign._watched import Watched
from tests.lab.command_line import gpuprov

# Like every server with four A100, without settings that need a GPU.
PROFILE = {
    "hardware": {"gpu": {"model": "A100 SXM4 80GB", "count": 4, "nvlink": True}},
    "stack": {"prefer": "production", "repository": "distribution"},
}
OLDER_DRIVER = "535.261.03"
ROLES = ("repositories", "nvidia_driver", "package_pins")
# Areas that apply to a node without GPUs; the others need a driver that finds one.
AREAS = ("kernel.", "driver.packages", "driver.module", "nouveau.blacklist", "nouveau.loaded", "pins.")
# modalias of an A100 on the bus (kernel documentation, "Modules: modalias").
MODALIAS = "pci:v000010DEd000020B0sv000010DEsd00001463bc03sc02i00"
APT = "DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0"


class Site(Watched):
    """A node that gpuprov changes and examines, with times."""

    def does(self, what: str, command: str) -> None:
        """Run a command on the node and print its time."""
        begun = time.monotonic()
        self.node.run(command, timeout=1800)
        print(f"    {what}: {time.monotonic() - begun:.0f} s")

    def lock(self, kernel: str, **stack: str) -> None:
        """Write the fleet with the module's kernel, and lock it."""
        fleet = yaml.safe_load(self.lab.fleet("bare"))
        [group] = fleet["groups"].values()
        group["settings"]["kernel"] = kernel
        group["stack"] |= stack
        fleet["reboot"] = {"timeout_s": 1800}
        (self.folder / "profiles").mkdir(exist_ok=True)
        (self.folder / "profiles/bare.yml").write_text(yaml.safe_dump(PROFILE))
        (self.folder / "fleet.yml").write_text(yaml.safe_dump(fleet))
        gpuprov(self.folder, "lock")

    def apply(self, *words: str) -> str:
        """Run `gpuprov apply`; print its time, and return its output."""
        begun = time.monotonic()
        done = gpuprov(self.folder, "apply", "--yes", "--no-verify", *words, code=None)
        result = (done.stderr + done.stdout).strip()
        print(
            f"    gpuprov apply {' '.join(words)}: exit {done.returncode}, {time.monotonic() - begun:.0f} s"
        )
        for line in result.splitlines():
            print(f"      | {line}")
        return result

    def facts(self) -> Facts:
        """Return the probe's facts."""
        done = gpuprov(self.folder, "facts", self.node.name, "-o", "json")
        return Facts.from_answer(json.loads(done.stdout))

    def drift(self) -> dict[str, Any]:
        """Return drift in the areas for a node without GPUs: check → actual value.

        Raises:
            SystemExit: the node does not answer.
        """
        done = gpuprov(self.folder, "drift", "-o", "json", code=None)
        [node] = json.loads(done.stdout)["nodes"]
        if node.get("reason"):
            raise SystemExit(f"{self.node.name}: {node['reason']}")
        return {each["check"]: each["actual"] for each in node["drift"] if each["check"].startswith(AREAS)}


def main() -> int:
    """Run the campaign; return 0 if every observation was right."""
    parser = argparse.ArgumentParser(prog="scripts/campaign kernel", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the node running at the end")
    parser.add_argument("--real", action="store_true", help="compile NVIDIA's own source: minutes more")
    chosen = parser.parse_args()
    begun = time.monotonic()
    lab = Lab(f"kernel-{os.getpid()}")
    with tempfile.TemporaryDirectory() as folder:
        try:
            [node] = lab.up(1)
            site = Site(lab, node, Path(folder))
            older, newer = two_kernels(site)
            if not chosen.real:
                play_source(node)
            compiled(site, older, newer)
            off = time.monotonic()
            site.node = lab.virtualise(node, older)
            print(f"    disk made, booted, update-grub: {time.monotonic() - off:.0f} s")
            waits(site, older, newer)
            gated(site, older)
            rebooted(site, newer)
            fits(site, newer)
        finally:
            if not chosen.keep:
                lab.down()
    print(f"{len(site.wrong)} not as it should be; {time.monotonic() - begun:.0f} s in all")
    return 1 if site.wrong else 0


def two_kernels(site: Site) -> tuple[str, str]:
    """Install the kernel before the newest one next to it; return both, the older one first."""
    newer = site.node.kernel
    pattern = re.sub(r"-\d+-", "-[0-9]+-", newer)
    listed = site.says(
        f"apt-get -q update >/dev/null; apt-cache search --names-only '^linux-headers-{pattern}$'"
    )
    known = {line.split()[0].removeprefix("linux-headers-") for line in listed.splitlines()}
    older = max((kernel for kernel in known if Version(kernel) < Version(newer)), key=Version)
    site.does(f"installing kernel {older}", f"{APT} install --no-install-recommends linux-image-{older}")
    return older, newer


def compiled(site: Site, older: str, newer: str) -> None:
    """Check that the driver is built for the newer kernel and no other."""
    print(f"--- an ordinary node: the driver is compiled for {newer}")
    site.lock(newer)
    site.apply(*(word for role in ROLES for word in ("--role", role)))
    status = site.says("dkms status")
    site.saw("dkms status", status, fine=f"{newer}, x86_64: installed" in status and older not in status)


def waits(site: Site, older: str, newer: str) -> None:
    """Check the machine with the older kernel while the lock's kernel boots next."""
    print(f"--- the machine under {older}, {newer} boots next")
    runs = site.says("uname -r")
    site.saw("uname -r", runs, fine=runs == older)
    entry = site.says("grep -m1 -oE 'vmlinuz-[^ ]+' /boot/grub/grub.cfg")
    site.saw("GRUB's first entry", entry, fine=entry == f"vmlinuz-{newer}")
    observed(site, older, newer)
    nothing_foreign(site, newer)
    asked = site.says("modprobe nvidia; echo exit $?")
    site.saw("modprobe nvidia", asked, fine="not found in directory" in asked and older in asked)
    drift = site.drift()
    site.saw(f"gpuprov drift, the lock names {newer}", drift or "nothing differs", fine=not drift)


def gated(site: Site, older: str) -> None:
    """Check that under a lock of the running kernel drift reports the node, and no upgrade starts."""
    kept = (site.folder / "fleet.lock.yml").read_text()
    site.lock("running", driver=OLDER_DRIVER)
    (site.folder / "other.lock.yml").write_text((site.folder / "fleet.lock.yml").read_text())
    (site.folder / "fleet.lock.yml").unlink()
    site.lock("running")
    drift = site.drift()
    fine = {"kernel.headers", "driver.module_on_disk"} == set(drift) and older in json.dumps(drift)
    site.saw("gpuprov drift, the lock names the running kernel", json.dumps(drift, indent=1), fine=fine)
    done = gpuprov(site.folder, "upgrade", "--to", "other.lock.yml", "--plan", code=None)
    named = [line for line in (done.stdout + done.stderr).splitlines() if older in line]
    seen = "\n".join([f"exit {done.returncode}", *named])
    site.saw("gpuprov upgrade --plan", seen, fine=done.returncode == 5 and bool(named))
    (site.folder / "fleet.lock.yml").write_text(kept)


def rebooted(site: Site, newer: str) -> None:
    """Check that gpuprov reboots the node into the newer kernel."""
    print("--- gpuprov apply --reboot")
    before = site.node.boot_id()
    site.apply("--reboot")
    site.saw("another boot", site.node.boot_id(), fine=site.node.boot_id() != before)
    runs = site.says("uname -r")
    site.saw("uname -r", runs, fine=runs == newer)


def fits(site: Site, kernel: str) -> None:
    """Check that the kernel accepts the module, whose version and symbols fit; only a GPU is missing."""
    site.lock("running")
    observed(site, kernel, kernel)
    headers = site.says('ls -d "/lib/modules/$(uname -r)/build/Makefile"')
    site.saw("headers", headers, fine=headers.endswith("Makefile") and kernel in headers)
    module = site.says("for part in filename version vermagic; do modinfo -F $part nvidia-current; done")
    site.saw("modinfo nvidia-current", module, fine=f"\n{kernel} SMP" in module)
    site.says("dmesg --clear")
    asked = site.says("modprobe nvidia; echo exit $?")
    site.saw("modprobe nvidia", asked, fine="No such device" in asked)
    result = site.says("dmesg | grep -iE 'nvrm|nvidia'")
    refused = re.search(r"disagrees about|unknown symbol|version magic|exec format", result, re.IGNORECASE)
    site.saw("kernel log", result, fine="No NVIDIA GPU found" in result and not refused)
    nothing_foreign(site, kernel)
    drift = site.drift()
    site.saw("gpuprov drift, the lock names the running kernel", drift or "nothing differs", fine=not drift)


def observed(site: Site, running: str, following: str) -> None:
    """Check that gpuprov's facts about kernels and builds match the node."""
    facts = site.facts()
    kernels = facts.kernels
    built = ", ".join(f"{each.kernel} {each.state}" for each in facts.dkms)
    lines = (
        f"runs {facts.kernel}",
        f"boots {kernels.next_boot} next: {kernels.next_boot_reason}",
        f"headers of {', '.join(kernels.headers)}",
        f"DKMS: {built}",
    )
    site.saw(
        "gpuprov facts", "\n".join(lines), fine=(facts.kernel, kernels.next_boot) == (running, following)
    )


def nothing_foreign(site: Site, kernel: str) -> None:
    """Check that nouveau and nova_core are not loaded, not in the initramfs and not chosen by modprobe."""
    loaded = site.says("grep -cE '^(nouveau|nova_core) ' /proc/modules")
    site.saw("nouveau, nova_core in /proc/modules", loaded, fine=loaded == "0")
    inside = site.says(f"lsinitramfs /boot/initrd.img-{kernel} | grep -E 'nouveau|nova'")
    files = inside.splitlines()
    fine = not any(".ko" in name for name in files) and "etc/modprobe.d/gpuprov-nouveau.conf" in files
    site.saw(f"nouveau, nova in initrd.img-{kernel}", inside, fine=fine)
    free = site.says(f"modprobe --config /dev/null -a -R {MODALIAS}").split()
    held = site.says(f"modprobe -b -a -R {MODALIAS}").split()
    chosen = f"{free}, with what modprobe.d says {held}"
    site.saw("modules for an A100 on the bus", chosen, fine="nouveau" in free and "nouveau" not in held)


if __name__ == "__main__":
    sys.exit(main())

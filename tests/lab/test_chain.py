"""The whole chain on a real node: Debian's driver by DKMS, a reboot, faults caused and corrected.

The compiler is a stub: `scripts/campaign compiled` and `scripts/demo` compile the driver.

gpuprov is installed from its wheel into an empty environment, so that a file missing in the wheel is noticed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuprov.history import History
from gpuprov.model.lock import read_lock
from gpuprov_lab import Lab, Node
from tests import ROOT
from tests.lab.command_line import gpuprov
from tests.lab.small_disks import FULL
from tests.lab.stub_compiler import play_compiler


@dataclass(frozen=True)
class Chain:
    """A node, the folder of its fleet, and the gpuprov program that provisioned it."""

    node: Node
    folder: Path
    program: Path

    def gpuprov(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run gpuprov from the wheel."""
        return gpuprov(self.folder, *words, code=code, program=[self.program])


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`gpuprov` installed from its wheel, outside the checkout."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT], check=True)
    venv.create(folder / "venv", with_pip=True)
    pip[0] = str(folder / "venv/bin/python")
    [wheel] = folder.glob("gpuprov-*.whl")
    subprocess.run([*pip, "install", wheel], check=True, cwd=folder)
    return folder / "venv/bin/gpuprov"


@pytest.fixture(scope="module")
def chain(module_lab: Lab, program: Path, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """Node that `gpuprov apply --reboot` has just provisioned."""
    [node] = module_lab.up(1, gpu="a100x4")
    made = Chain(node, tmp_path_factory.mktemp("fleet"), program)
    (made.folder / "fleet.yml").write_text(module_lab.fleet("hgx-a100-4"))
    made.gpuprov("lock")
    [group] = read_lock(made.folder / "fleet.lock.yml").groups.values()
    play_compiler(node, group.components.driver.version)
    made.gpuprov("plan", code=3)
    applied = made.gpuprov("apply", "--reboot", "--yes")
    assert "rebooted  verified" in applied.stdout
    return made


def failed_checks(chain: Chain) -> set[str]:
    """Verify the chain's node; return the failed checks."""
    verdict = chain.gpuprov("verify", "-o", "json", code=None)
    [node] = json.loads(verdict.stdout)["nodes"]
    failed = {check["check"] for check in node["checks"] if check["status"] == "failed"}
    assert verdict.returncode == (1 if failed else 0), verdict.stderr
    return failed


def test_a_second_apply_has_nothing_to_do(chain: Chain) -> None:
    again = chain.gpuprov("apply", "--yes")
    assert "nothing to do" in again.stderr
    assert "verifying" not in again.stderr


def test_apply_verifies_where_no_verification_is_known(chain: Chain) -> None:
    with History(chain.folder / "state/gpuprov/history.sqlite") as history:
        history.record_verified(str(chain.folder / "fleet.lock.yml"), {}, [chain.node.name])
    assert "apply verifies first" in chain.gpuprov("plan").stderr
    again = chain.gpuprov("apply", "--yes")
    assert "verifying" in again.stderr
    assert f"passed       {chain.node.name}" in again.stderr


def test_everything_comes_back_after_a_reboot(chain: Chain) -> None:
    chain.node.reboot()
    chain.node.run("systemctl is-system-running --wait", check=False)
    assert failed_checks(chain) == set()


def test_full_temporary_folders_change_no_verdict_and_prevent_no_change(chain: Chain) -> None:
    image = f"/boot/initrd.img-{chain.node.kernel}"
    whole = chain.node.run(f"lsinitramfs {image} | sort").stdout
    for folder in ("/tmp", "/var/tmp"):
        chain.node.run(FULL.format(folder=folder))
    try:
        assert failed_checks(chain) == set()
        chain.gpuprov("drift")
        assert "nothing to do" in chain.gpuprov("apply", "--yes").stderr
        chain.node.run("rm /etc/modprobe.d/gpuprov-nouveau.conf; dpkg --purge --force-depends nvidia-smi")
        chain.gpuprov("apply", "--yes")
        assert failed_checks(chain) == set()
        assert chain.node.run(f"lsinitramfs {image} | sort").stdout == whole
    finally:
        for folder in ("/tmp", "/var/tmp"):
            chain.node.run(f"umount {folder}")


@pytest.mark.slow
def test_a_changed_clock_changes_just_that(chain: Chain) -> None:
    path = chain.folder / "fleet.lock.yml"
    locked = path.read_text()
    path.write_text(locked.replace("graphics: 1410", "graphics: 1395"))
    changed = chain.gpuprov("apply", "--yes", "-o", "json")
    assert "gpu_settings" in changed.stderr
    assert "nvidia_driver" not in changed.stderr
    path.write_text(locked)
    chain.gpuprov("apply", "--yes")


FAULTS = {
    "pins.hold": "apt-mark unhold libcuda1",
    "gpu.clocks_unit": "systemctl disable gpuprov-gpu-clocks.service",
    "gpu.persistence": "systemctl disable --now nvidia-persistenced.service",
    "nouveau.blacklist": "rm /etc/modprobe.d/gpuprov-nouveau.conf",
    "driver.packages": (
        "cd /tmp && apt-get download -q libnvidia-ml1=535.261.03-1"
        " && dpkg -i --force-depends --force-downgrade libnvidia-ml1_*.deb"
    ),
}
"""Check → the fault that it reports; one at a time they are in `scripts/campaign mutations`."""


@pytest.mark.slow
def test_faults_fail_by_name_and_are_mended_at_once(chain: Chain) -> None:
    for fault in FAULTS.values():
        chain.node.run(fault)
    assert failed_checks(chain) >= set(FAULTS)
    chain.gpuprov("apply", "--yes", "--reboot")
    assert failed_checks(chain) == set()

"""The whole chain on a real node: Debian's driver built by DKMS, a reboot, faults seeded and mended."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuprov.lab import Lab, Node

Chain = tuple[Node, Path]


def gpuprov(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """One command line, as a person types it."""
    return subprocess.run(
        [sys.executable, "-m", "gpuprov", *words], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def chain(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """A node that `gpuprov apply --reboot` has just made, and the folder of its fleet."""
    folder = tmp_path_factory.mktemp("fleet")
    [node] = module_lab.up(1, gpu="a100x4")
    (folder / "fleet.yml").write_text(module_lab.fleet("hgx-a100-4"))
    locked = gpuprov(folder, "lock")
    assert locked.returncode == 0, locked.stderr
    assert gpuprov(folder, "plan").returncode == 3
    applied = gpuprov(folder, "apply", "--reboot", "--yes")
    assert applied.returncode == 0, applied.stderr
    assert "rebooted  verified" in applied.stdout
    return node, folder


def failed_checks(folder: Path) -> set[str]:
    verdict = gpuprov(folder, "verify", "-o", "json")
    [node] = json.loads(verdict.stdout)["nodes"]
    failed = {check["check"] for check in node["checks"] if check["status"] == "failed"}
    assert verdict.returncode == (1 if failed else 0), verdict.stderr
    return failed


def test_a_second_apply_has_nothing_to_do(chain: Chain) -> None:
    _, folder = chain
    again = gpuprov(folder, "apply", "--yes")
    assert again.returncode == 0
    assert "nothing to do" in again.stderr


def test_everything_comes_back_after_a_reboot(chain: Chain) -> None:
    node, folder = chain
    node.reboot()
    node.run("systemctl is-system-running --wait", check=False)
    assert failed_checks(folder) == set()


def test_a_changed_clock_changes_just_that(chain: Chain) -> None:
    _, folder = chain
    path = folder / "fleet.lock.yml"
    locked = path.read_text()
    path.write_text(locked.replace("graphics: 1410", "graphics: 1395"))
    changed = gpuprov(folder, "apply", "--yes", "-o", "json")
    assert changed.returncode == 0, changed.stderr
    assert "gpu_settings" in changed.stderr
    assert "nvidia_driver" not in changed.stderr
    path.write_text(locked)
    assert gpuprov(folder, "apply", "--yes").returncode == 0


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("apt-mark unhold libcuda1", "pins.hold"),
        ("systemctl disable gpuprov-gpu-clocks.service", "gpu.clocks_unit"),
        ("systemctl disable --now nvidia-persistenced.service", "gpu.persistence"),
        ("rm /etc/modprobe.d/gpuprov-nouveau.conf", "nouveau.blacklist"),
        (
            "cd /tmp && apt-get download -q libnvidia-ml1=535.261.03-1"
            " && dpkg -i --force-depends --force-downgrade libnvidia-ml1_*.deb",
            "driver.packages",
        ),
    ],
    ids=["hold", "clocks-unit", "persistence", "blacklist", "library"],
)
def test_a_fault_fails_by_name_and_is_mended(chain: Chain, fault: str, check: str) -> None:
    node, folder = chain
    node.run(fault)
    assert check in failed_checks(folder)
    mended = gpuprov(folder, "apply", "--yes", "--reboot")
    assert mended.returncode == 0, mended.stderr
    assert failed_checks(folder) == set()

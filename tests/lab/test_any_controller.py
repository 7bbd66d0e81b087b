"""Locks of every system, made on a machine of another distribution without apt's sources, lists or keys.

The archives are real. If one is unreachable from here, the error must contain its right address.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from gpuprov.model.lock import read_lock
from tests.lab.command_line import gpuprov

HIDDEN = ("/etc/apt", "/var/lib/apt", "/usr/share/keyrings")
OS_RELEASE = "ID=fedora\nVERSION_ID=43\n"
ASKED = {
    "ubuntu22.04": "http://archive.ubuntu.com/ubuntu/dists/jammy",
    "ubuntu24.04": "http://archive.ubuntu.com/ubuntu/dists/noble",
    "debian12": "http://deb.debian.org/debian",
    "debian13": "http://deb.debian.org/debian",
    "rhel9": "https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64/",
}


def elsewhere(folder: Path) -> tuple[str, ...]:
    """Return a command prefix that hides this machine's system and apt files in a private mount namespace."""
    (folder / "nothing").mkdir()
    (folder / "os-release").write_text(OS_RELEASE)
    hide = "".join(f"[ ! -d {path} ] || mount --bind {folder}/nothing {path}; " for path in HIDDEN)
    enter = f'{hide} mount --bind {folder}/os-release /etc/os-release && exec "$@"'
    return ("unshare", "--mount", "--propagation", "private", "sh", "-ec", enter, "sh")


@pytest.mark.parametrize("system", ASKED)
def test_a_lock_of_every_system(tmp_path: Path, system: str) -> None:
    repository = "nvidia" if system == "rhel9" else "distribution"
    group = {"profile": "hgx-a100-4", "hosts": "gpu01", "os": system, "stack": {"repository": repository}}
    (tmp_path / "fleet.yml").write_text(yaml.safe_dump({"groups": {"train": group}}))
    program = (*elsewhere(tmp_path), sys.executable, "-m", "gpuprov")
    done = gpuprov(tmp_path, "lock", code=None, program=program)
    if done.returncode == 0:
        locked = read_lock(tmp_path / "fleet.lock.yml").groups["train"]
        own = system.rstrip("0123456789.")
        locked_from = locked.components.driver.repository.partition("-")[0]  # or its security archive
        assert (locked.os, locked_from) == (system, own if own != "rhel" else "nvidia")
        return
    assert done.returncode == 4, done.stderr
    assert ASKED[system] in done.stderr, "another address than that of the system's own archive was asked"
    [line] = [line for line in done.stderr.splitlines() if ASKED[system] in line]
    assert "name a mirror under repositories:" in line

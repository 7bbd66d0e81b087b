"""A wheelhouse: gpuprov and all its dependencies as wheels, for controllers without a package index."""

from __future__ import annotations

import zipfile
from pathlib import Path

from gpuprov.inventory.firstboot.node.first_boot import RELEASE_LOCK
from maintenance.release.locked import download, environments, read_pins

LOCK = "requirements.lock"
GLIBC = ("2_17", "2_28")
"""Versions of manylinux (PEP 600) whose wheels run on all systems of a controller."""


def fill(folder: Path, wheel: Path, python: tuple[int, int], machine: str) -> None:
    """Write the wheels that gpuprov's lock names, and the lock itself, into a folder.

    Args:
        folder: the folder, which contains gpuprov's wheel.
        wheel: that wheel; it contains the lock.
        python: version of the controller's Python.
        machine: its processor, as `uname -m` prints it; the system is Linux with glibc.

    Raises:
        GpuprovError: pip cannot download a package.
    """
    with zipfile.ZipFile(wheel) as inside:
        lock = inside.read(RELEASE_LOCK)
    [target] = environments([python], ["linux"])
    pins = [pin for pin in read_pins(lock.decode()) if pin.needed(target)]
    platforms = [f"manylinux_{glibc}_{machine}" for glibc in GLIBC] + [f"manylinux2014_{machine}"]
    options = [word for platform in platforms for word in ("--platform", platform)]
    download(pins, folder, "--python-version", "{}.{}".format(*python), *options)
    (folder / LOCK).write_bytes(lock)


def install_line(folder: Path, wheel: Path) -> str:
    """Return the commands that install from a wheelhouse, in an active virtual environment."""
    pip = f"pip install --no-index --find-links {folder}"
    return f"{pip} --require-hashes -r {folder}/{LOCK} && {pip} --no-deps {folder}/{wheel.name}"

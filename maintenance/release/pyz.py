"""`gpuprov.pyz`: one file for a machine that has only Python, built from wheels with known hashes.

shiv and pex also pack an application into one file, but with compiled wheels of one Python and one platform
in each; here these wheels are fetched at the first start, so that one file serves all. The content is stored
without compression (wheels are compressed already), so that its bytes do not depend on a version of zlib.
"""

from __future__ import annotations

import hashlib
import json
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuprov.inventory.firstboot.node.first_boot import RELEASE_LOCK
from maintenance.release import onefile
from maintenance.release.locked import ROOT, Pinned, environments, pure, pythons, read_pins

NAME = "gpuprov.pyz"
FIRST_LINE = b"#!/usr/bin/env python3\n"
FROM_WHEEL = (
    "gpuprov/__init__.py",
    "gpuprov/files/__init__.py",
    "gpuprov/files/mutex.py",
    "gpuprov/files/ways.py",
)
"""Modules of gpuprov that the program of the file imports before anything is installed."""
EARLIEST = 315532800
"""1980-01-01 in seconds since 1970, the earliest date in a zip file."""


def build_pyz(wheel: Path, target: Path, scratch: Path, when: int) -> None:
    """Write `gpuprov.pyz`; the same wheel and date always result in the same bytes.

    Args:
        wheel: gpuprov's wheel, which contains the lock of its dependencies.
        target: path of the file.
        scratch: folder for downloads.
        when: date of the files inside, in seconds since 1970.

    Raises:
        GpuprovError: pip cannot download a package.
    """
    with zipfile.ZipFile(wheel) as inside:
        pins = read_pins(inside.read(RELEASE_LOCK).decode())
    pins += [pin for pin in read_pins((ROOT / "scripts/build.lock").read_text()) if pin.name == "pip"]
    everywhere = list(environments(pythons()))
    needed = [pin for pin in pins if any(map(pin.needed, everywhere))]
    wheels = pure(needed, scratch)
    pack(target, wheel, wheels, [pin for pin in needed if pin not in wheels], when)


def pack(
    target: Path, wheel: Path, wheels: Mapping[Pinned, Path], compiled: Sequence[Pinned], when: int
) -> None:
    """Write the file from wheels.

    Args:
        target: path of the file.
        wheel: gpuprov's.
        wheels: those that are pure Python; one of them is pip's.
        compiled: packages that pip fetches at the first start.
        when: date of the files inside, in seconds since 1970.
    """
    with zipfile.ZipFile(wheel) as inside:
        own = {name: inside.read(name) for name in FROM_WHEEL}
    about = {
        "version": wheel.name.split("-")[1],
        "python": [list(each) for each in pythons()],
        "compiled": sorted({pin.name for pin in compiled}),
    }
    files = {
        "__main__.py": Path(onefile.__file__).read_bytes(),
        onefile.ABOUT: (json.dumps(about, indent=1) + "\n").encode(),
        onefile.INSTALL: _install_lock(wheel, wheels, compiled).encode(),
        **own,
        **{f"{onefile.WHEELS}/{path.name}": path.read_bytes() for path in [wheel, *wheels.values()]},
    }
    write_archive(target, files, when)


def _install_lock(wheel: Path, wheels: Mapping[Pinned, Path], compiled: Sequence[Pinned]) -> str:
    """Return the requirements file: wheels of the archive by path, the others by version, all with hashes."""
    own = f"./{onefile.WHEELS}/{wheel.name} --hash=sha256:{digest(wheel)}"
    inside = [
        f"./{onefile.WHEELS}/{path.name}{pin.condition} {pin.with_hashes}" for pin, path in wheels.items()
    ]
    outside = [f"{pin.name}=={pin.version}{pin.condition} {pin.with_hashes}" for pin in compiled]
    return "".join(f"{line}\n" for line in sorted([own, *inside, *outside]))


def write_archive(target: Path, files: Mapping[str, bytes], when: int) -> None:
    """Write an executable zip file whose bytes depend only on the files and the date.

    Args:
        files: path inside → content.
        when: date of all files in UTC, in seconds since 1970; zip files begin with 1980.
    """
    date = time.gmtime(max(when, EARLIEST))[:6]
    with target.open("wb") as file:
        file.write(FIRST_LINE)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as whole:
            for name, content in sorted(files.items()):
                entry = zipfile.ZipInfo(name, date)
                entry.external_attr = 0o644 << 16
                whole.writestr(entry, content)
    target.chmod(0o755)


def digest(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

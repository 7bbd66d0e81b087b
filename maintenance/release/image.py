"""`gpuprov-image.tar`: a container image with gpuprov, built from packages of Debian without a base image.

Debian's packages come from a mirror whose index debootstrap verifies, gpuprov and its dependencies from
wheels by hash. The same packages, wheel and date give the same bytes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpuprov.catalog import load
from gpuprov.errors import GpuprovError
from maintenance.release.locked import ROOT, download, read_pins
from maintenance.release.wheelhouse import LOCK, fill

NAME = "gpuprov-image.tar"
SUITE, PYTHON = "trixie", (3, 13)
"""Release of Debian, and the version of its Python."""
PACKAGES = ("ca-certificates", "gpgv", "openssh-client", "python3")
TOOLS = ("buildah", "debootstrap")
PROGRAM = "/opt/gpuprov"
WHEELS = "tmp/wheels"
INSTALL = f"""\
python3 -I -m venv --without-pip {PROGRAM}
pip=$(echo /{WHEELS}/pip-*.whl)
for words in "--require-hashes --requirement /{WHEELS}/{LOCK}" /{WHEELS}/gpuprov-*.whl; do
    {PROGRAM}/bin/python -I "$pip/pip" install --quiet --no-index --find-links /{WHEELS} \\
        --no-deps --no-compile $words
done
rm -rf /{WHEELS}
"""
CLEAN = f"""\
find / -xdev -name __pycache__ -prune -exec rm -r {{}} +
python3 -m compileall -q --invalidation-mode unchecked-hash \\
    /usr/lib/python3 /usr/lib/python3.* {PROGRAM}/lib || true
rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* /var/tmp/* /etc/machine-id /etc/hostname /etc/resolv.conf
"""
"""Commands that remove what differs between two builds.

The date of each file is changed later, so Python's compiled files must not depend on it. compileall fails for
files of other versions of Python in the tests of a package.
"""


def archive() -> str:
    """Return the URL of Debian's archive, as the catalog has it."""
    return load().repositories["debian"].url or ""


def build_image(wheel: Path, target: Path, version: str, mirror: str, scratch: Path, when: int) -> None:
    """Write the image, in the format that `podman load` and `docker load` read. Needs root.

    It is not compressed: Podman 4.3 reads no compressed one.

    Args:
        wheel: gpuprov's; it contains the lock of its dependencies.
        target: path of the file.
        mirror: URL of Debian's archive.
        scratch: an empty folder with 2 GB of room.
        when: date of the files inside, in seconds since 1970.

    Raises:
        GpuprovError: a tool is missing, or fails; or pip cannot download a wheel.
    """
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise GpuprovError(f"{', '.join(missing)} not installed", do=f"apt install {' '.join(TOOLS)}")
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(when)}
    wheels = scratch / "wheels"
    wheels.mkdir()
    shutil.copy(wheel, wheels)
    fill(wheels, wheel, PYTHON, os.uname().machine)
    [pip] = [pin for pin in read_pins((ROOT / "scripts/build.lock").read_text()) if pin.name == "pip"]
    download([pip], wheels)
    with _container(scratch) as buildah:
        root = Path(_said([*buildah, "mount", "image"]).strip())
        _said(debian(root, mirror), environment)
        shutil.copytree(wheels, root / WHEELS)
        for commands in (INSTALL, CLEAN):
            _said(["chroot", str(root), "sh", "-euc", commands])
        for path in (root / "dev").iterdir():  # the engine makes its own
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        settings = [f'--entrypoint=["{PROGRAM}/bin/gpuprov"]', "--cmd=--help", "--workingdir=/fleet"]
        settings += [f"--env=PATH={PROGRAM}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "--env=LANG=C.UTF-8"]
        labels = {"title": "gpuprov", "version": version, "licenses": "GPL-3.0-or-later"}
        settings += [f"--label=org.opencontainers.image.{key}={value}" for key, value in labels.items()]
        _said([*buildah, "config", *settings, "image"])
        target.unlink(missing_ok=True)
        place = f"docker-archive:{target.absolute()}:localhost/gpuprov:{version}"
        _said([*buildah, "commit", "--quiet", "--timestamp", str(when), "--format=docker", "image", place])


def debian(root: Path, mirror: str) -> list[str]:
    """Return the command that installs Debian's packages into an empty folder.

    It fails without Debian's keys, as on another system: debootstrap would only warn, and install what the
    mirror serves.
    """
    include = f"--include={','.join(PACKAGES)}"
    return ["debootstrap", "--force-check-gpg", "--variant=minbase", include, SUITE, str(root), mirror]


@contextmanager
def _container(scratch: Path) -> Iterator[list[str]]:
    """Yield the words of buildah with a store in `scratch`, which has the empty container `image`; remove the
    container at the end. Raises as `_said`.
    """
    store = [f"--root={scratch / 'store'}", f"--runroot={scratch / 'run'}", "--storage-driver=vfs"]
    buildah = ["buildah", *store]
    _said([*buildah, "from", "--name=image", "scratch"])
    try:
        yield buildah
    finally:
        _said([*buildah, "rm", "image"])


def _said(command: Sequence[str], environment: dict[str, str] | None = None) -> str:
    """Return the output of a command; raise GpuprovError with the end of its messages if it fails."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        end = "\n".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise GpuprovError(f"{' '.join(command[:3])} … exited with {done.returncode}: {end}")
    return done.stdout

"""Installs gpuprov by each way of the pages on fresh nodes, up to the first `gpuprov doctor --local`.

    scripts/campaign install [--os debian13]... [--way pyz]...

A node has the system's minimal packages, Python, and no pip. Packages of the system come from its archive,
everything else from a server of this machine. Prints minutes, and the bytes that a way needs and installs.
Exit 1 if a way fails.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuprov import __version__
from gpuprov_lab import Lab, Node
from gpuprov_lab.mirror.serve import MirrorServer, served
from gpuprov_lab.network import GATEWAY
from gpuprov_lab.variants import with_control_groups, with_network_parameters
from maintenance.release import deb, image
from maintenance.release.pyz import NAME, build_pyz
from maintenance.release.wheelhouse import fill
from tests import ROOT
from tests.collection.build import build
from tests.lab.package_index import build_index, index_wheels

SYSTEMS = ("debian12-minimal", "debian13-minimal", "rocky9-played")
WHEN = 1795000000
MINORS = (11, 13)
"""Minor numbers of the systems' Python 3."""
LONGEST_S = 3600
"""Longest time of a way's lines."""
WHO = "Anna Example <anna@example.org>"
FETCH = (
    "import sys, urllib.request as url; [url.urlretrieve(each, each.split('/')[-1]) for each in sys.argv[1:]]"
)
APT = "DEBIAN_FRONTEND=noninteractive apt-get -qy"
VENV = "python3 -I -m venv ~/.gpuprov && . ~/.gpuprov/bin/activate"
DOCTOR = "doctor --local -o json >/tmp/doctor || true; grep -q gpuprov.doctor /tmp/doctor"
"""Words behind the program; the doctor exits with 1 if it finds a fault."""
NEWER = "python3.12"
"""RHEL 9's Python that gpuprov can run with."""
COLLECTION = f"gpuprov-gpuprov-{__version__}.tar.gz"
WHEEL = f"gpuprov-{__version__}-py3-none-any.whl"


@dataclass(frozen=True)
class Way:
    """A way of installing.

    Attributes:
        files: what is downloaded, by names on the server.
        lines: what is typed.
        debian: whether the way is for Debian's family alone.
    """

    files: tuple[str, ...]
    lines: tuple[str, ...]
    debian: bool = False


WAYS = {
    "pyz": Way((NAME,), (f"install -D {NAME} ~/.local/bin/gpuprov", f"~/.local/bin/gpuprov {DOCTOR}")),
    "wheelhouse": Way(
        ("wheelhouse.tar",),
        (
            "tar xf wheelhouse.tar",
            VENV,
            "pip install -q --no-index --find-links wheelhouse"
            " --require-hashes -r wheelhouse/requirements.lock",
            "pip install -q --no-index --no-deps wheelhouse/gpuprov-*.whl",
            f"gpuprov {DOCTOR}",
        ),
    ),
    "wheels": Way(
        (WHEEL, "requirements.lock"),
        (
            VENV,
            "pip install -q --require-hashes --only-binary :all: -r requirements.lock",
            "pip install -q --no-deps --no-index gpuprov-*.whl",
            f"gpuprov {DOCTOR}",
        ),
    ),
    "deb": Way((deb.NAME,), (f"{APT} install ./{deb.NAME}", f"gpuprov {DOCTOR}"), debian=True),
    "image": Way(
        (image.NAME,),
        (
            f"{APT} install podman runc",  # the lab states runc as the runtime
            f"podman load -q -i {image.NAME}",
            f"podman run --rm --privileged localhost/gpuprov:{__version__} {DOCTOR}",
        ),
        debian=True,
    ),
    "collection": Way(
        (COLLECTION,),
        (
            VENV,
            "pip install -q ansible-core",
            f"ansible-galaxy collection install {COLLECTION}",
            "ansible-doc -t role -l gpuprov.gpuprov | grep -q nvidia_driver",
        ),
    ),
}
NEEDS_PIP = ("wheelhouse", "wheels", "collection")


def make(folder: Path, scratch: Path, ways: set[str]) -> None:
    """Write the files that these ways of installation need into `folder`, which is served."""
    wheel = build_index(folder)
    build_pyz(wheel, folder / NAME, scratch / "pyz", WHEN)
    (folder / "requirements.lock").write_bytes((ROOT / "requirements.lock").read_bytes())
    if "deb" in ways:
        deb.build_deb(folder / NAME, folder / deb.NAME, __version__, WHO, scratch / "deb", WHEN)
    if "collection" in ways:
        build(folder, "https://example.com/gpuprov")
    if "image" in ways:
        (scratch / "image").mkdir()
        image.build_image(wheel, folder / image.NAME, __version__, image.archive(), scratch / "image", WHEN)
    for minor in MINORS:
        house = scratch / f"{minor}/wheelhouse"
        house.mkdir(parents=True)
        (house / wheel.name).write_bytes(wheel.read_bytes())
        fill(house, wheel, (3, minor), "x86_64")
        index_wheels(house, folder)
        target = folder / f"3.{minor}"
        target.mkdir()
        command = ["tar", "-C", str(house.parent), "-cf", str(target / "wheelhouse.tar"), house.name]
        subprocess.run(command, check=True)


@contextmanager
def node_of(lab: Lab, system: str) -> Iterator[Node]:
    """Yield a fresh node without pip, which is removed at the end."""
    [node] = lab.up(1, os=system, prepare=[with_control_groups, with_network_parameters])
    try:
        assert node.run("python3 -m pip --version", check=False).returncode == 1
        yield node
    finally:
        lab.down([node.name])


def used(node: Node) -> int:
    """Return the bytes of all files of a node."""
    return int(node.run("du -sxb / --exclude=/proc --exclude=/sys --exclude=/run").stdout.split()[0])


def tried(node: Node, way: str, server: MirrorServer) -> tuple[float, int, int]:
    """Install on a node; return seconds, bytes of the downloaded files, and bytes installed.

    Raises:
        NodeFailed: a line fails.
    """
    stated, debian = WAYS[way], node.run("command -v apt-get", check=False).returncode == 0
    minor = node.run("python3 -c 'import sys; print(sys.version_info[1])'").stdout.strip()
    before, begun = used(node), time.monotonic()
    if debian and (stated.debian or way in NEEDS_PIP):
        node.run("apt-get -q update")
    if way in NEEDS_PIP:
        node.run(f"{APT} install python3-venv" if debian else f"dnf -q -y install {NEWER}")
    urls = [
        f"{server.url}/3.{minor}/{name}" if name == "wheelhouse.tar" else f"{server.url}/{name}"
        for name in stated.files
    ]
    node.run(shlex.join(["python3", "-c", FETCH, *urls]))
    size = int(node.run(f"cat {shlex.join(stated.files)} | wc -c").stdout)
    settings = f"export PIP_INDEX_URL={server.url}/simple PIP_TRUSTED_HOST={GATEWAY}"
    lines = [line if debian else line.replace("python3 ", f"{NEWER} ") for line in stated.lines]
    node.run(f"set -e; {settings}; " + "\n".join(lines), timeout=LONGEST_S)
    return time.monotonic() - begun, size, used(node) - before


def main() -> int:
    """Install in each way on each system, and print the rows; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--os", action="append", choices=SYSTEMS)
    parser.add_argument("--way", action="append", choices=list(WAYS))
    stated = parser.parse_args()
    ways, bad = stated.way or list(WAYS), 0
    with tempfile.TemporaryDirectory(prefix="gpuprov-install-") as scratch, Lab("install") as lab:
        folder, others = Path(scratch, "served"), Path(scratch, "scratch")
        folder.mkdir()
        others.mkdir()
        make(folder, others, set(ways))
        print(
            "| system | way | minutes | downloaded, MB | installed, MB |\n|---|---|---|---|---|", flush=True
        )
        with served(folder) as server:
            for system in stated.os or SYSTEMS:
                for way in ways:
                    if WAYS[way].debian and not system.startswith("debian"):
                        continue
                    bad += not row(lab, system, way, server)
    return 1 if bad else 0


def row(lab: Lab, system: str, way: str, server: MirrorServer) -> bool:
    """Try a way on a fresh node, and print its row; return whether it works."""
    begin = f"| {system} | {way} | "
    try:
        with node_of(lab, system) as node:
            seconds, size, installed = tried(node, way, server)
    except Exception as error:  # noqa: BLE001 - the next way is tried
        print(f"{begin}failed: {str(error).strip()[-300:]!r} | | |", flush=True)
        return False
    print(f"{begin}{seconds / 60:.1f} | {size / 1e6:.1f} | {installed / 1e6:.0f} |", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())

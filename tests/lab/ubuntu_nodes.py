"""Lab nodes that appear as Ubuntu: its os-release, and an archive in its layout."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from gpuprov_lab import Node
from gpuprov_lab.images import UBUNTU_RELEASE
from gpuprov_lab.mirror.apt import publish_suite
from gpuprov_lab.mirror.deb import build_deb, control, deb_name, stanza
from gpuprov_lab.mirror.key import SigningKey
from gpuprov_lab.mirror.specs import PackageSpec
from tests.systems import CODENAMES, UBUNTU

COMPONENTS = ("main", "restricted", "universe", "multiverse")
BORROWED = (
    *("docker.io", "containerd", "runc", "sysstat", "atop", "prometheus-node-exporter"),
    *("podman", "conmon", "crun", "golang-github-containers-common", "golang-github-containers-image"),
    *("uidmap", "slirp4netns", "passt", "netavark", "aardvark-dns", "catatonit"),
)
"""Packages that the roles install from a distribution's archive."""
CLIENT = "docker-cli"
"""Docker's client, where it is a separate package: from Debian 13 on."""
STUB = PackageSpec("linux-tools-generic", "6.8.0-90.91", "amd64")
"""Stub of Ubuntu's perf package, which has another name in Debian."""


def os_release(system: str) -> str:
    """Return the os-release of a system such as `ubuntu24.04`."""
    return UBUNTU_RELEASE.format(version=system.removeprefix("ubuntu"), codename=CODENAMES[system])


def build_ubuntu(root: Path, node: Node, key: SigningKey) -> None:
    """Build an archive in Ubuntu's layout from the real packages of a Debian node's archive.

    Args:
        root: the archive's folder, in which `dists` and `pool` are created.
        node: node whose apt downloads the packages.
        key: signing key.
    """
    pool = root / "pool"
    pool.mkdir(parents=True)
    node.run("apt-get -q update")
    there = node.run(f"apt-cache pkgnames {CLIENT}").stdout.split()
    names = " ".join([*BORROWED, *({CLIENT} & {*there})])
    node.run(f"mkdir -p /srv/pool && cd /srv/pool && apt-get -q download {names}")
    for package in (node.root / "srv/pool").iterdir():
        # apt's name of the file has the version's epoch, that of the archive does not.
        subprocess.run(["cp", package, pool / re.sub(r"_\d+%3a", "_", package.name)], check=True)
    listing = node.run(f"apt-cache show --no-all-versions {names}").stdout
    listing = re.sub(r"(?m)^Filename: .*/", "Filename: pool/", listing)
    missing = [name for name in re.findall(r"(?m)^Filename: (.*)$", listing) if not (root / name).exists()]
    assert missing == [], missing
    (pool / deb_name(STUB)).write_bytes(build_deb(STUB))
    stub = stanza({**control(STUB), **_fetched(root, STUB)})
    for codename in (CODENAMES[system] for system in UBUNTU):
        about = {"Origin": "Ubuntu", "Label": "Ubuntu", "Codename": codename}
        for suite in (codename, f"{codename}-updates", f"{codename}-security"):
            # apt ignores a suite without packages.
            packages = listing + stub if suite == codename else stub
            texts = {**dict.fromkeys(COMPONENTS, ""), "universe": packages}
            publish_suite(root, suite, texts, "amd64", key, about)


def _fetched(root: Path, spec: PackageSpec) -> dict[str, str]:
    """Return the fields of a package's file in an index: name, size and hash."""
    from hashlib import sha256

    name = f"pool/{deb_name(spec)}"
    content = (root / name).read_bytes()
    return {"Filename": name, "Size": str(len(content)), "SHA256": sha256(content).hexdigest()}

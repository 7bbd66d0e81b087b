"""Installation on a controller with only Python: `gpuprov.pyz` verified, started, refused; `gpuprov.deb`."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator

import pytest

from gpuprov import __version__
from gpuprov_lab import Lab, Node
from gpuprov_lab.mirror.key import signing_key
from gpuprov_lab.mirror.serve import MirrorServer, served
from gpuprov_lab.network import GATEWAY
from maintenance.release import deb
from maintenance.release.pyz import NAME, build_pyz
from maintenance.release.sums import KEYRING, SIGNATURE, SUMS, VERIFY, sign
from tests.lab.package_index import build_index

pytestmark = pytest.mark.slow
RELEASE, WHEN = "release", 1795000000
FETCH = (
    "import sys, urllib.request as url; [url.urlretrieve(each, each.split('/')[-1]) for each in sys.argv[1:]]"
)
"""Program that downloads files into the current folder: a minimal system has neither curl nor wget."""
NO_PIP = "python3 -m pip --version"
CACHE = "/root/.cache/gpuprov/pyz"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MirrorServer]:
    """Server of a package index in `simple`, and of a signed release in `release`."""
    folder = tmp_path_factory.mktemp("install")
    wheel = build_index(folder)
    release = folder / RELEASE
    release.mkdir()
    build_pyz(wheel, release / NAME, tmp_path_factory.mktemp("wheels"), WHEN)
    who, scratch = "Anna Example <anna@example.org>", tmp_path_factory.mktemp("deb")
    deb.build_deb(release / NAME, release / deb.NAME, __version__, who, scratch, WHEN)
    with pytest.MonkeyPatch.context() as patch, signing_key() as key:
        patch.setenv("GNUPGHOME", str(key.home))
        sign(release, key.fingerprint)
    with served(folder) as server:
        yield server


@pytest.fixture(scope="module")
def node(module_lab: Lab, index: MirrorServer) -> Node:
    """A Debian 12 without pip, with the files of the release in root's home."""
    [node] = module_lab.up(1, os="debian12")
    assert node.run(NO_PIP, check=False).returncode == 1
    assert node.run("command -v pip3 ansible-playbook", check=False).stdout == ""
    files = (NAME, SUMS, SIGNATURE, KEYRING)
    urls = [f"{index.url}/{RELEASE}/{name}" for name in files]
    node.run(shlex.join(["python3", "-c", FETCH, *urls]))
    return node


def test_an_empty_debian_has_gpuprov_after_two_lines(node: Node, index: MirrorServer) -> None:
    node.run(VERIFY)
    size, before = int(node.run(f"stat -c %s {NAME}").stdout), used(node)
    begun = time.monotonic()
    settings = f"PIP_INDEX_URL={index.url}/simple PIP_TRUSTED_HOST={GATEWAY}"
    first = node.run(f"{settings} python3 {NAME} --version")
    seconds = time.monotonic() - begun
    assert first.stdout == f"gpuprov, version {__version__}\n"
    begun = time.monotonic()
    again = node.run(f"python3 {NAME} --version")
    assert (again.stdout, again.stderr) == (first.stdout, "")
    print(  # noqa: T201
        f"{NAME}: {size} bytes; first start {seconds:.0f} s, {used(node) - before} bytes;"
        f" then {time.monotonic() - begun:.1f} s"
    )
    doctor = node.run(f"python3 {NAME} doctor --local -o json")
    assert '"schema": "gpuprov.doctor' in doctor.stdout
    [folder] = node.run(f"ls {CACHE}").stdout.split()
    assert node.run(f"{CACHE}/{folder}/bin/ansible-playbook --version").stdout.startswith(
        "ansible-playbook [core"
    )
    assert node.run(f"find {CACHE}/{folder} -perm /022 ! -type l").stdout == ""


def test_others_cannot_write_the_environment(node: Node) -> None:
    [folder] = node.run(f"ls {CACHE}").stdout.split()
    node.run(f"chmod o+w {CACHE}/{folder}")
    refused = node.run(f"python3 {NAME} --version", check=False)
    assert (refused.returncode, refused.stdout) == (5, "")
    assert "other users may write it" in refused.stderr
    node.run(f"chmod o-w {CACHE}/{folder}; python3 {NAME} --version")


def test_without_an_index_what_is_missing_is_named(node: Node) -> None:
    said = node.run(f"XDG_CACHE_HOME=/root/empty PIP_NO_INDEX=1 python3 {NAME} --version", check=False)
    assert (said.returncode, said.stdout) == (1, "")
    last = said.stderr.strip().splitlines()[-1]
    assert "cryptography, markupsafe, pydantic-core" in last
    assert (
        "PIP_INDEX_URL=https://MIRROR/simple gpuprov.pyz, or PIP_NO_INDEX=1 PIP_FIND_LINKS=WHEELHOUSE" in last
    )


def test_apt_installs_the_package_and_lintian_finds_nothing(node: Node, index: MirrorServer) -> None:
    node.run(shlex.join(["python3", "-c", FETCH, f"{index.url}/{RELEASE}/{deb.NAME}"]))
    node.run(f"apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -qy install ./{deb.NAME} lintian")
    settings = f"PIP_INDEX_URL={index.url}/simple PIP_TRUSTED_HOST={GATEWAY}"
    assert node.run(f"{settings} gpuprov --version").stdout == f"gpuprov, version {__version__}\n"
    assert node.run(f"lintian --allow-root --info {deb.NAME}", check=False).stdout == ""
    node.run("apt-get -qy purge gpuprov && test ! -e /usr/share/gpuprov")


@pytest.mark.parametrize("name", [NAME, SUMS])
def test_a_changed_byte_is_refused(node: Node, name: str) -> None:
    path = node.root / "root" / name
    whole = path.read_bytes()
    path.write_bytes(whole[:20] + bytes([whole[20] ^ 1]) + whole[21:])
    assert node.run(VERIFY, check=False).returncode != 0
    path.write_bytes(whole)
    node.run(VERIFY)


def used(node: Node) -> int:
    """Return the number of bytes in root's home."""
    return int(node.run("du -sb /root").stdout.split()[0])

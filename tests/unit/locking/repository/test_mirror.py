"""Packages of the mirror, compared with observations of the real repositories."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from debian.debfile import DebFile

from gpuprov.catalog import Catalog
from gpuprov.errors import InvalidInput
from gpuprov.locking.repository import sources
from gpuprov.locking.repository.fetch import Fetcher
from gpuprov.locking.repository.index import Index
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.deb import build_deb
from gpuprov_lab.mirror.key import SigningKey
from gpuprov_lab.mirror.rpmfile import build_rpm
from gpuprov_lab.mirror.specs import PackageSpec, cuda_repository, releases, toolkit_repository
from tests.unit.locking.fleets import SYSTEMS


@pytest.fixture(scope="module")
def held(catalog: Catalog) -> dict[str, set[tuple[str, str]]]:
    """Names and versions in each system's CUDA repository."""
    specs = {system: cuda_repository(catalog.systems[system], "x86_64", catalog) for system in SYSTEMS}
    return {system: {(spec.name, spec.version) for spec in listed} for system, listed in specs.items()}


def opened(content: bytes) -> DebFile:
    """Return a .deb file with this content, opened."""
    return DebFile(fileobj=BytesIO(content))


@pytest.mark.parametrize(
    ("system", "name", "version"),
    [
        ("ubuntu24.04", "cuda-compat-13-0", "580.95.05-0ubuntu1"),
        ("ubuntu22.04", "libnvidia-gl", "590.48.01-0ubuntu1"),
        ("ubuntu24.04", "nvidia-driver-pinning-590.48.01", "590.48.01-0ubuntu1"),
        ("ubuntu24.04", "libnvidia-compute-580", "580.126.16-1ubuntu1"),
        ("ubuntu24.04", "nvidia-open", "615.71.09-2ubuntu1"),
        ("ubuntu24.04", "cuda-nvcc-13-0", "13.0.88-1"),
        ("ubuntu24.04", "libnccl2", "2.28.3-1+cuda13.0"),
        ("ubuntu24.04", "libcudnn9-cuda-13", "9.14.0.64-1"),
        ("ubuntu24.04", "libcudnn9-cuda-12", "9.15.0.58-1"),
        ("ubuntu24.04", "datacenter-gpu-manager-4-core", "1:4.5.2-1"),
        ("debian12", "nvidia-kernel-open-dkms", "580.95.05-1"),
        ("rhel9", "nvidia-open", "3:610.57.04-1.el9"),
        ("rhel8", "nvidia-fabric-manager", "570.195.03-1"),
        ("rhel10", "nvidia-fabricmanager", "580.95.05-1"),
        ("rhel9", "libcudnn8", "8.9.7.29-1.cuda12.2"),
        ("rhel9", "libnccl", "2.26.2-1+cuda12.8"),
    ],
)
def test_versions_as_they_were_seen(
    held: dict[str, set[tuple[str, str]]], system: str, name: str, version: str
) -> None:
    assert (name, version) in held[system]


@pytest.mark.parametrize(
    ("system", "name"),
    [
        ("ubuntu24.04", "nvidia-open-590"),
        ("ubuntu24.04", "nvidia-fabricmanager-580"),
        ("ubuntu24.04", "nvidia-open-535"),
        ("debian12", "nvidia-open-580"),
        ("rhel9", "nvidia-driver-pinning-580"),
    ],
)
def test_names_that_do_not_exist(held: dict[str, set[tuple[str, str]]], system: str, name: str) -> None:
    assert name not in {held_name for held_name, _ in held[system]}


def test_no_proprietary_modules_from_615_on(catalog: Catalog) -> None:
    for system in SYSTEMS:
        specs = cuda_repository(catalog.systems[system], "x86_64", catalog)
        newest = [spec for spec in specs if "615.71.09" in spec.version]
        assert newest
        assert not {"cuda-drivers", "nvidia-dkms", "nvidia-kernel-dkms", "kmod-nvidia-latest-dkms"} & {
            spec.name for spec in newest
        }
        assert not any(stream.endswith("615-dkms") for spec in specs for stream in spec.streams)


def test_every_release_is_a_fact_of_the_catalog(catalog: Catalog) -> None:
    drivers = {str(version) for version in catalog.known_drivers}
    assert {release["driver"] for release in releases()["drivers"]} <= drivers
    assert set(releases()["cuda"]) <= {str(toolkit.version) for toolkit in catalog.toolkits}
    toolkits = {str(toolkit.version) for toolkit in catalog.container_toolkits}
    assert set(releases()["container_toolkit"]) <= toolkits


def test_arm_servers(catalog: Catalog) -> None:
    """Check that the packages for ARM servers are of their architecture, without those that exist only for
    x86-64.
    """
    specs = cuda_repository(catalog.systems["ubuntu24.04"], "aarch64", catalog)
    assert {spec.architecture for spec in specs} == {"arm64", "all"}
    assert "libnvsdm" not in {spec.name for spec in specs}


def test_each_package_once(catalog: Catalog) -> None:
    """Check that no repository has a package and version twice."""
    for system in SYSTEMS:
        specs = cuda_repository(catalog.systems[system], "x86_64", catalog)
        assert len({(spec.name, spec.version) for spec in specs}) == len(specs)


def test_debs_are_what_dpkg_reads() -> None:
    files = {"etc/tool.conf": b"a\n", "usr/bin/tool": b"#!/bin/sh\n"}
    package = opened(build_deb(PackageSpec("tool", "1:1.0-1", "amd64", files=files)))
    assert package.debcontrol()["Version"] == "1:1.0-1"
    assert package.control.get_content("conffiles") == b"/etc/tool.conf\n"
    assert package.data.get_content("etc/tool.conf") == b"a\n"
    assert package.data.tgz().getmember("./usr/bin/tool").mode == 0o755


def test_same_specs_same_bytes() -> None:
    spec = toolkit_repository("apt", "x86_64")[0]
    assert build_deb(spec) == build_deb(replace(spec))
    assert build_rpm(toolkit_repository("dnf", "x86_64")[0]) == build_rpm(
        toolkit_repository("dnf", "x86_64")[0]
    )


def test_keyring_package_holds_this_mirrors_key_and_list(mirror: nvidia.Mirror) -> None:
    place = mirror.root / "compute/cuda/repos/debian12/x86_64"
    deb = opened((place / "cuda-keyring_1.1-1_all.deb").read_bytes())
    keyring = deb.data.get_content("usr/share/keyrings/cuda-archive-keyring.gpg")
    assert keyring == (mirror.root / "keys/mirror.gpg").read_bytes()
    (entry,) = sources.parse_sources(
        str(deb.data.get_content("etc/apt/sources.list.d/cuda-debian12-x86_64.list", "utf-8"))
    )
    assert (entry.uri, entry.suite) == (
        mirror.cuda().format(folder="debian12", arch="x86_64").rstrip("/"),
        "/",
    )
    assert entry.signed_by == "/usr/share/keyrings/cuda-archive-keyring.gpg"


def test_pinning_package_writes_the_pin(mirror: nvidia.Mirror) -> None:
    place = mirror.root / "compute/cuda/repos/ubuntu2404/x86_64"
    deb = opened((place / "nvidia-driver-pinning-595.91.07_595.91.07-1ubuntu1_all.deb").read_bytes())
    pin = deb.data.get_content("etc/apt/preferences.d/nvidia-driver-pin", "utf-8")
    assert "Pin: version 595.91.07-*\nPin-Priority: 1000\n" in str(pin)


def test_a_new_release_appears_overnight(
    tmp_path: Path, catalog: Catalog, key: SigningKey, fetcher: Fetcher
) -> None:
    def newest(today: set[str]) -> str:
        """Build the mirror with today's releases; return the newest version that it offers."""

        def only(folder: str, specs: list[PackageSpec]) -> list[PackageSpec]:
            """Return the packages of today's releases."""
            return [
                spec for spec in specs if spec.name == "nvidia-open" and spec.version.split("-")[0] in today
            ]

        built = nvidia.build(tmp_path, catalog, ["debian12"], key=key, change=only)
        spec = sources.nvidia(built.cuda(), "debian12", "x86_64", "apt", built.key)
        index: Index = spec.open("x86_64", fetcher)
        return index.candidate("nvidia-open").version

    assert newest({"580.95.05"}) == "580.95.05-1"
    assert newest({"580.95.05", "580.178.04"}) == "580.178.04-1"


def test_unknown_system(tmp_path: Path, catalog: Catalog, key: SigningKey) -> None:
    """Check that a mirror of an unknown system is refused."""
    with pytest.raises(InvalidInput, match="system 'beos'; expected one of ubuntu"):
        nvidia.build(tmp_path, catalog, ["beos"], key=key)


def test_no_agent_is_left_behind(key: SigningKey) -> None:
    from gpuprov_lab.mirror.key import signing_key

    with signing_key() as fresh:
        home = str(fresh.home)
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert home not in listed
    assert not Path(home).exists()

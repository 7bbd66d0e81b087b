"""Sets of packages that must change version together."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gpuprov.errors import Refused
from gpuprov.locking.repository import sources
from gpuprov.locking.repository.apt import parse_depends
from gpuprov.locking.repository.closure import closure
from gpuprov.locking.repository.fetch import Fetcher
from gpuprov.locking.repository.index import Index, Package, PackageList
from gpuprov.locking.repository.rpm import with_streams
from gpuprov.locking.repository.versions import DEB
from gpuprov_lab.mirror import nvidia as nvidia_mirror

FAMILY = ["(?:drv.*)", "(?:libcuda|libml)"]


def index(packages: Iterable[Package], origin: str = "file:/test") -> Index:
    """Return an index of Debian packages."""
    return Index(PackageList(DEB, origin, packages))


def package(name: str, version: str, depends: str = "", provides: str = "", source: str = "drv") -> Package:
    """Return a package with its relations in Debian's format."""
    offers = tuple(offer for group in parse_depends(provides) for offer in group)
    return Package(name, version, "amd64", source, parse_depends(depends), offers)


def test_exact_versions_all_the_way() -> None:
    offered = [
        package(name, version, depends.format(version))
        for version in ("1-1", "2-1")
        for name, depends in {
            "drv": "libcuda (= {0}), libc6",
            "libcuda": "libml (= {0})",
            "libml": "",
        }.items()
    ]
    assert closure(index(offered), {"drv": "1"}, FAMILY) == {"drv": "1-1", "libcuda": "1-1", "libml": "1-1"}
    assert closure(index(offered), {"drv": None}, FAMILY) == {"drv": "2-1", "libcuda": "2-1", "libml": "2-1"}


def test_an_open_dependency_stays_with_its_own_release() -> None:
    """Keep a release's dependencies: nvidia-open 595 requires nvidia-driver-open (>= 595); apt takes 610."""
    offered = [package("drv", v, f"drv-open (>= {v[:-2]})") for v in ("1-1", "2-1")]
    offered += [package("drv-open", v) for v in ("1-1", "2-1")]
    assert closure(index(offered), {"drv": "1"}, FAMILY) == {"drv": "1-1", "drv-open": "1-1"}


def test_a_later_exact_demand_moves_an_earlier_open_one() -> None:
    offered = [
        package("drv", "1-1", "drv-tool, drv-bin"),
        package("drv-tool", "5-1", "libml"),
        package("drv-bin", "4-1", "libml (= 1-1)"),
        package("libml", "1-1"),
        package("libml", "2-1"),
    ]
    assert closure(index(offered), {"drv": None}, FAMILY)["libml"] == "1-1"


def test_demands_that_cannot_be_met_together() -> None:
    offered = [
        package("drv", "1-1", "drv-a, drv-b"),
        package("drv-a", "1-1", "libml (= 1-1)"),
        package("drv-b", "1-1", "libml (= 2-1)"),
        package("libml", "1-1"),
        package("libml", "2-1"),
    ]
    with pytest.raises(Refused) as caught:
        closure(index(offered), {"drv": None}, FAMILY)
    said = str(caught.value)
    assert said.startswith("no version fits: ")
    assert "drv-a 1-1 needs libml (= 1-1)" in said
    assert "drv-b 1-1 needs libml (= 2-1)" in said


def test_roots_that_contradict_each_other() -> None:
    offered = [package("drv", "1-1", "libml (= 1-1)"), package("libml", "1-1"), package("libml", "2-1")]
    with pytest.raises(Refused, match="libml 2-1 is asked for, but drv 1-1 needs"):
        closure(index(offered), {"drv": None, "libml": "2"}, FAMILY)


def test_the_first_alternative_that_can_be_had() -> None:
    offered = [
        package("drv", "1-1", "drv-gone | drv-b | drv-a"),
        package("drv-a", "1-1"),
        package("drv-b", "1-1"),
    ]
    assert "drv-b" in closure(index(offered), {"drv": None}, FAMILY)


def test_an_alternative_that_is_asked_for_already() -> None:
    offered = [
        package("drv", "1-1", "drv-dkms | drv-open"),
        package("drv-dkms", "1-1"),
        package("drv-open", "1-1"),
    ]
    assert closure(index(offered), {"drv": None, "drv-open": None}, FAMILY) == {
        "drv": "1-1",
        "drv-open": "1-1",
    }


def test_an_alternative_of_another_family_is_left_to_apt() -> None:
    offered = [
        package("drv", "1-1", "other | drv-a"),
        package("other", "1", source="x"),
        package("drv-a", "1-1"),
    ]
    assert closure(index(offered), {"drv": None}, FAMILY) == {"drv": "1-1"}


def test_virtual_packages_prefer_the_same_source() -> None:
    offered = [
        package("drv", "3-1", "drv-support--v1"),
        package("drv-aaa", "9-1", provides="drv-support--v1", source="drv-legacy"),
        package("drv-support", "2-1", provides="drv-support--v1"),
    ]
    assert closure(index(offered), {"drv": None}, FAMILY) == {"drv": "3-1", "drv-support": "2-1"}


def test_an_exact_demand_on_what_a_virtual_name_brought() -> None:
    offered = [
        package("drv", "3-1", "drv-support--v1, drv-bin"),
        package("drv-bin", "1-1", "drv-support (= 1-1)"),
        package("drv-support", "1-1", provides="drv-support--v1"),
        package("drv-support", "2-1", provides="drv-support--v1"),
    ]
    assert closure(index(offered), {"drv": None}, FAMILY)["drv-support"] == "1-1"


def test_versioned_provides() -> None:
    """Accept versioned Provides, such as (= 535.309.01) of firmware-nvidia-gsp 535.309.01-0+deb12u1."""
    offered = [package("drv", "1-1", "drv-gsp (= 1)"), package("drv-gsp", "1-1", provides="drv-gsp (= 1)")]
    assert closure(index(offered), {"drv": None}, FAMILY) == {"drv": "1-1", "drv-gsp": "1-1"}
    bare = [package("drv", "1-1", "drv-gsp (= 1)"), package("drv-gsp", "2-1", provides="drv-gsp-any")]
    with pytest.raises(Refused, match=r"drv 1-1 needs drv-gsp \(= 1\), which no repository offers"):
        closure(index(bare), {"drv": None}, FAMILY)


def test_what_is_needed_and_not_offered_is_no_concern_outside_the_family() -> None:
    assert closure(index([package("drv", "1-1", "libc6 (>= 9)")]), {"drv": None}, ["(?:drv.*)"]) == {
        "drv": "1-1"
    }


def test_sources_count_as_family() -> None:
    offered = [package("drv", "1-1", "oddly-named"), package("oddly-named", "1-1", source="drv")]
    assert "oddly-named" in closure(index(offered), {"drv": None}, ["(?:drv)"])


def test_circles_end() -> None:
    """Check that packages that depend on each other are found once."""
    offered = [package("drv", "1-1", "libml"), package("libml", "1-1", "drv")]
    assert set(closure(index(offered), {"drv": None}, FAMILY)) == {"drv", "libml"}


def test_several_repositories_as_one() -> None:
    main = index([package("drv", "1-1", "libml (= 1-1)"), package("libml", "1-1")], "file:/main")
    security = index([package("drv", "1-1+deb12u1", "libml (>= 1)")], "file:/security")
    assert closure(main.union(security), {"drv": None}, FAMILY) == {"drv": "1-1+deb12u1", "libml": "1-1"}


@pytest.mark.parametrize(
    "driver", ["580.95.05", "580.126.16", "590.48.01", "595.71.05", "610.43.02", "615.71.09"]
)
def test_one_driver_version_on_ubuntu(mirror: nvidia_mirror.Mirror, fetcher: Fetcher, driver: str) -> None:
    ubuntu = sources.nvidia(mirror.cuda(), "ubuntu2404", "x86_64", "apt", mirror.key).open("x86_64", fetcher)
    found = closure(ubuntu, {"nvidia-open": driver, "nvidia-fabricmanager": driver}, ["(?:.*nvidia.*)"])
    assert {DEB.upstream(version) for version in found.values()} == {driver}
    assert len(found) >= 18
    assert not any("dkms" in name and "open" not in name for name in found)


@pytest.mark.parametrize(("system", "stream"), [("rhel9", "580-open"), ("rhel10", None)])
def test_one_driver_version_on_rhel(
    mirror: nvidia_mirror.Mirror, fetcher: Fetcher, system: str, stream: str | None
) -> None:
    rhel = sources.nvidia(mirror.cuda(), system, "x86_64", "rpm", mirror.key).open("x86_64", fetcher)
    if stream:
        rhel = with_streams(rhel, f"nvidia-driver:{stream}")
    roots = dict.fromkeys(
        ("nvidia-driver-cuda", "kmod-nvidia-open-dkms", "nvidia-fabricmanager"), "580.126.16"
    )
    found = closure(rhel, roots, ["(?:.*nvidia.*)"])
    assert {rhel.order.upstream(version) for version in found.values()} == {"580.126.16"}
    assert {"nvidia-kmod-common", "libnvidia-ml", "nvidia-persistenced"} <= set(found)
    assert "kmod-nvidia-latest-dkms" not in found


def test_of_two_that_provide_a_name_the_same_source_precedes_the_same_version() -> None:
    offered = [
        package("drv", "3-1", "drv-support--v1"),
        package("drv-aaa", "3-1", provides="drv-support--v1", source="drv-legacy"),
        package("drv-support", "2-1", provides="drv-support--v1"),
    ]
    assert closure(index(offered), {"drv": None}, FAMILY) == {"drv": "3-1", "drv-support": "2-1"}

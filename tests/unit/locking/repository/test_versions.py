"""Order and upstream parts of versions in both packaging systems."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gpuprov.locking.repository.versions import DEB, RPM, matches_upstream, rpmvercmp


@pytest.mark.parametrize(
    "ascending",
    [
        ["1.0~rc1-1", "1.0-1", "1.0-1+deb12u1", "1.0-2", "1.0.1-1", "1:0.5-1"],
        ["535.261.03-1", "535.309.01-0+deb12u1", "550.163.01-2", "550.163.01-4~bpo13+1", "550.163.01-4"],
        ["580.95.05-0ubuntu1", "580.105.08-0ubuntu1", "580.126.16-1ubuntu1"],
        ["2.28.3-1+cuda12.9", "2.28.3-1+cuda13.0", "2.28.9-1+cuda13.0"],
    ],
)
def test_debian_order(ascending: list[str]) -> None:
    """Check that Debian's versions are ordered as dpkg orders them."""
    assert all(
        DEB.compare(older, newer) < 0 < DEB.compare(newer, older) for older, newer in pairwise(ascending)
    )


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        # From rpm's own test suite, tests/rpmvercmp.at.
        ("1.0", "2.0"),
        ("2.0", "2.0.1"),
        ("2.0.1", "2.0.1a"),
        ("5.5p1", "5.5p2"),
        ("5.5p1", "5.5p10"),
        ("10xyz", "10.1xyz"),
        ("xyz.4", "8"),
        ("xyz", "xyz.4"),
        ("5.5p2", "5.6p1"),
        ("6.0", "6.0.rc1"),
        ("10a2", "10b2"),
        ("1.0~rc1", "1.0"),
        ("1.0~rc1", "1.0~rc2"),
        ("1.0~rc1~git123", "1.0~rc1"),
        ("1.0", "1.0^"),
        ("1.0", "1.0^git1"),
        ("1.0^git1", "1.0^git2"),
        ("1.0^git1", "1.01"),
        ("1.0^20160101", "1.0.1"),
        ("1.0~rc1", "1.0~rc1^git1"),
        ("1.0^git1~pre", "1.0^git1"),
    ],
)
def test_rpm_order(older: str, newer: str) -> None:
    """Check that rpm's versions are ordered as rpm orders them."""
    assert rpmvercmp(older, newer) == -1
    assert rpmvercmp(newer, older) == 1


@pytest.mark.parametrize(("one", "two"), [("1.0", "1.0"), ("1.05", "1.5"), ("2_0", "2.0"), ("5.5.", "5.5")])
def test_rpm_equals(one: str, two: str) -> None:
    """Check that differently written versions are equal to rpm."""
    assert rpmvercmp(one, two) == 0


def test_rpm_epoch_decides_before_the_version() -> None:
    assert RPM.compare("3:580.1-1.el9", "610.1-1.el9") > 0


def test_rpm_dependency_without_release_accepts_any() -> None:
    assert RPM.satisfies("3:580.95.05-1.el9", "=", "3:580.95.05")
    assert not RPM.satisfies("3:580.95.05-1.el9", "=", "3:580.95.05-2.el9")


@pytest.mark.parametrize(
    ("operator", "held"), [("<<", False), ("<=", True), ("=", True), (">=", True), (">>", False)]
)
def test_operators(operator: str, held: bool) -> None:
    """Check whether a version satisfies a relation such as `>=`."""
    assert DEB.satisfies("1.0-1", operator, "1.0-1") is held


def test_upstream_part() -> None:
    """Check the upstream part of a package's version, without epoch and revision."""
    assert DEB.upstream("1:4.5.2-1") == "4.5.2"
    assert DEB.upstream("580.95.05-0ubuntu1") == "580.95.05"
    assert RPM.upstream("3:610.57.04-1.el9") == "610.57.04"


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        ("535.309.01", True),
        ("535.309", True),
        ("535", True),
        ("53", False),
        ("535.3", False),
        ("535.309.011", False),
    ],
)
def test_prefix_ends_at_a_component(wanted: str, matches: bool) -> None:
    assert matches_upstream("535.309.01", wanted) is matches


def test_a_letter_after_a_version_continues_its_last_component() -> None:
    assert not matches_upstream("1.18.0rc2", "1.18.0")
    assert matches_upstream("1.18.0~rc.2", "1.18.0")

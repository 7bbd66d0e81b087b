"""Packages that satisfy a relation, by their names and by Provides."""

from __future__ import annotations

import pytest

from gpuprov.locking.repository.index import Index, Package, PackageList, Relation
from gpuprov.locking.repository.versions import DEB, RPM, Order


def index(order: Order, *packages: Package) -> Index:
    """Return an index of packages with an order of versions."""
    return Index(PackageList(order, "file:/test", packages))


def package(name: str, version: str, *provides: Relation) -> Package:
    """Return a package that provides these relations."""
    return Package(name, version, "amd64", name, provides=provides)


@pytest.mark.parametrize(
    ("order", "satisfied"), [pytest.param(DEB, False, id="deb"), pytest.param(RPM, True, id="rpm")]
)
def test_provides_without_a_version_and_a_relation_with_one(order: Order, satisfied: bool) -> None:
    """Accept such a Provides for rpm only: Debian Policy 7.5 excludes it from versioned dependencies."""
    bare = package("drv-gsp-any", "2-1", Relation("drv-gsp"))
    assert index(order, bare).satisfies(bare, Relation("drv-gsp", ">=", "1")) is satisfied


@pytest.mark.parametrize("order", [DEB, RPM], ids=["deb", "rpm"])
def test_a_relation_without_a_version_is_satisfied_by_every_provides(order: Order) -> None:
    bare, versioned = package("a", "1-1", Relation("x")), package("b", "1-1", Relation("x", "=", "5"))
    assert index(order, bare, versioned).providers(Relation("x")) == [bare, versioned]


def test_the_version_in_provides_counts_and_not_the_package_s() -> None:
    offer = package("firmware", "9-1", Relation("drv-gsp", "=", "1"))
    offered = index(DEB, offer)
    assert offered.providers(Relation("drv-gsp", "=", "1")) == [offer]
    assert offered.providers(Relation("drv-gsp", "=", "9-1")) == []

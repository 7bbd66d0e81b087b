"""Observations of packages: locked ones, absent ones, and files of components without a package."""

from __future__ import annotations

from typing import Any

from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.model.forms import of_family
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation
from gpuprov.roles.components import ABSENT_CHECKS, PACKAGE_CHECKS, UNPACKAGED_CHECKS


def _versions(facts: Facts, expectation: Expectation) -> Any:
    """Return expected package → its version, or None if it is not completely installed."""
    return {name: facts.packages.complete(name) for name in expectation.expected}


def _absent(facts: Facts, expectation: Expectation) -> Any:
    """Return the installed packages, sorted, that match the expression of an absent component."""
    names = facts.packages.by_name
    found = filter(of_family(str(expectation.subject)), names)
    return sorted(name for name in found if facts.packages.version(name))


def _unpackaged(facts: Facts, expectation: Expectation) -> Any:
    """Return the files of a component that belong to no package."""
    return list(_leftovers(facts, expectation.check))


def _leads(facts: Facts, expectation: Expectation) -> Any:
    """Return the places that make programs use files without a package."""
    return _leftovers(facts, expectation.check).values()


def _leftovers(facts: Facts, check: str) -> dict[str, str | None]:
    """Return files of a component without a package → the place that makes programs use them, if known."""
    found = facts.unpackaged
    files = {"driver.unpackaged": found.driver, "cuda.unpackaged": found.toolkits}.get(check, ())
    preloaded = found.preloaded if check == "driver.unpackaged" else {}
    return {**dict.fromkeys(files), **found.named(*UNPACKAGED_CHECKS[check]), **preloaded}


for _check in PACKAGE_CHECKS:
    observes(_check, "packages")(_versions)
for _check in ABSENT_CHECKS:
    observes(_check, "packages")(_absent)
for _check in UNPACKAGED_CHECKS:
    observes(_check, "unpackaged")(_unpackaged)
    names_who(_check)(_leads)

"""Observations of holds, of unattended upgrades, of preferred versions and of the packages' files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation


@observes("pins.hold", "packages", "sources")
def _holds(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected packages that are held; none if apt is configured to ignore holds."""
    held = set(() if facts.apt.ignores_holds else facts.packages.held)
    return [name for name in expectation.expected if name in held]


@observes("pins.unattended", "sources")
def _unattended(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected patterns that unattended upgrades exclude."""
    left_out = set(facts.apt.unattended_blacklist)
    return [pattern for pattern in expectation.expected if pattern in left_out]


@names_who("pins.hold")
@names_who("pins.unattended")
def _clears(facts: Facts, expectation: Expectation) -> Iterable[str | None]:
    """Return the places that clear the list of packages to keep, or make apt ignore holds."""
    return facts.apt.cleared


@observes("pins.candidates", "candidates")
def _candidates(facts: Facts, expectation: Expectation) -> Any:
    """Return the versions that apt would take by preference instead of the installed ones, as text."""
    return [str(each) for each in facts.candidates.preferred]


@names_who("pins.candidates")
def _prefers(facts: Facts, expectation: Expectation) -> Iterable[str | None]:
    """Return the places that state the preferences."""
    return facts.candidates.places


@observes("pins.files", "package_files")
def _files(facts: Facts, expectation: Expectation) -> Any:
    """Return the files that are missing, diverted or changed, as text."""
    return [str(each) for each in facts.package_files]


@names_who("pins.files")
def _paths(facts: Facts, expectation: Expectation) -> Iterable[str | None]:
    """Return the paths of these files."""
    return [each.path for each in facts.package_files]

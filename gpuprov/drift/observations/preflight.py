"""Observations of the system and its package manager."""

from __future__ import annotations

from typing import Any

from gpuprov.drift.observations.registry import observes
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation
from gpuprov.roles.preflight import is_system


@observes("system.os", "system")
def _os(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected system if the node is that one, else the node's ID and VERSION_ID."""
    if is_system(expectation.expected, facts.os.id, facts.os.version):
        return expectation.expected
    return facts.os.id + facts.os.version


@observes("system.arch", "system")
def _arch(facts: Facts, expectation: Expectation) -> Any:
    """Return the node's architecture."""
    return facts.arch


@observes("dpkg.consistent", "packages")
def _dpkg(facts: Facts, expectation: Expectation) -> Any:
    """Return packages that are not completely installed, with their state; a note if dpkg was interrupted,
    and its message if it cannot read its settings.
    """
    broken = [f"{package.name} {package.state}" for package in facts.packages.broken]
    broken += ["dpkg was interrupted"] * facts.packages.interrupted
    return broken + [facts.dpkg_refuses] * bool(facts.dpkg_refuses)

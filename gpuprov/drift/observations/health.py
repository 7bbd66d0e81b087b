"""Observations of a node's health check."""

from __future__ import annotations

from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.drift.observations.units import replaced_by, unit_state
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation
from gpuprov.roles.health import FIRST_S

observes("health.timer", "units")(unit_state)
names_who("health.timer")(replaced_by)


@observes("health.files", "files")
def _files(facts: Facts, expectation: Expectation) -> dict[str, str | None]:
    """Return path → SHA-256 of the role's files on the node, None for a missing one."""
    return {path: facts.files[path].sha256 for path in expectation.expected}


@observes("health.verdict", "health")
def _verdict(facts: Facts, expectation: Expectation) -> str:
    """Return `fresh`, or what is wrong with the last verdict: missing, of an earlier boot, or too old.

    What the verdict says is not compared. In the first `FIRST_S` after a boot a missing one, or one of an
    earlier boot, counts as `fresh`.
    """
    verdict = facts.verdict
    if verdict is None or not verdict.is_of_this_boot:
        if facts.booted_s < FIRST_S:
            return "fresh"
        return "missing" if verdict is None else "of an earlier boot"
    return "fresh" if verdict.is_fresh else f"{verdict.age_s:.0f} s old, valid for {verdict.valid_s:.0f} s"

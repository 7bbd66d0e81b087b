"""Readings of where packages come from."""

from __future__ import annotations

from typing import Any

from gpuprov.drift.observations.registry import observes
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation


@observes("repositories.sources", "sources")
def _sources(facts: Facts, expectation: Expectation) -> Any:
    used = {
        f"{source.uri.rstrip('/')} {suite}"
        for source in facts.apt.sources
        if source.enabled
        for suite in source.suites
    }
    return [each for each in expectation.expected if each in used]

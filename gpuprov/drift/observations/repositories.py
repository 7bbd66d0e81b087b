"""Readings of where packages come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuprov.drift.observations.registry import names_who, observes
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


@observes("repositories.foreign", "offers")
def _foreign(facts: Facts, expectation: Expectation) -> Any:
    return [str(offer) for offer in facts.offers]


@names_who("repositories.foreign")
def _brings(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    return (offer.place for offer in facts.offers)

"""Observations of package repositories."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.probe.facts import Facts
from gpuprov.probe.parse.apt import Source
from gpuprov.roles import Expectation

OUR_FILE = "/etc/apt/sources.list.d/gpuprov.sources"
"""The file written by the role `repositories`."""


@observes("repositories.sources", "sources")
def _sources(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected repositories that an enabled source names, with a note if another file does too."""
    used = {
        f"{source.uri.rstrip('/')} {suite}"
        for source in facts.apt.sources
        if source.enabled
        for suite in source.suites
    }
    also = {source.uri.rstrip("/") for source in _also(facts, expectation)}
    return [
        f"{each} in another file" if each.rpartition(" ")[0] in also else each
        for each in expectation.expected
        if each in used
    ]


@names_who("repositories.sources")
def _name_it_too(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Return the other files that name an expected repository, sorted."""
    return iter(sorted({source.path for source in _also(facts, expectation)}))


def _also(facts: Facts, expectation: Expectation) -> Iterator[Source]:
    """Yield enabled sources of a locked repository in other files of /etc/apt.

    If their options differ, apt reads no source at all.
    """
    locked = {each.rpartition(" ")[0] for each in expectation.expected}
    for source in facts.apt.sources:
        others = source.path.startswith("/etc/apt/") and source.path != OUR_FILE
        if source.enabled and others and source.uri.rstrip("/") in locked:
            yield source


@observes("repositories.foreign", "offers")
def _foreign(facts: Facts, expectation: Expectation) -> Any:
    """Return the offers of locked packages by other sources, as text."""
    return [str(offer) for offer in facts.offers]


@names_who("repositories.foreign")
def _brings(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Return the places of sources that offer locked packages."""
    return (offer.place for offer in facts.offers)

"""Observations of package repositories."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.probe.facts import Facts
from gpuprov.probe.parse.apt import Source
from gpuprov.roles import Expectation
from gpuprov.roles.manager import OWN_FILES
from gpuprov.roles.repositories import ADDED, IN_ANOTHER_FILE

FOLDERS = ("/etc/apt/", "/etc/yum.repos.d/")
"""Folders of files of sources."""


def _require_readable(facts: Facts) -> None:
    """Check that apt can read its sources; nothing to check with dnf. With one conflict of options, apt uses
    none of them.

    Raises:
        Missing: it cannot.
    """
    if "candidates" in facts.collectors and facts.packages.manager == "dpkg":
        facts.raw("candidates")


@observes("repositories.sources", "sources", "candidates", "packages")
def _sources(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected repositories that an enabled source names, with a note if another file does too.

    Raises:
        Missing: all is as expected, but apt cannot read its sources.
    """
    locked, suites = _locked(expectation), {each.rpartition(" ")[2] for each in expectation.expected}
    used = {
        f"{uri} {suite}"
        for source in facts.apt.sources
        if source.enabled and (uris := locked & _uris(source))
        for suite in suites.intersection(source.suites)
        for uri in uris
    }
    also = {uri for source in _also(facts, expectation) for uri in locked & _uris(source)}
    found = [
        f"{each} {IN_ANOTHER_FILE}" if each.rpartition(" ")[0] in also else each
        for each in expectation.expected
        if each in used
    ]
    if found == expectation.expected:
        _require_readable(facts)
    return found


@names_who("repositories.sources")
def _name_it_too(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Return the other files that name an expected repository, sorted."""
    return iter(sorted({source.path for source in _also(facts, expectation)}))


def _also(facts: Facts, expectation: Expectation) -> Iterator[Source]:
    """Yield enabled sources of a locked repository in other files.

    If their options differ, apt reads no source at all, and dnf takes packages by the weaker check.
    """
    locked = _locked(expectation)
    for source in facts.apt.sources:
        others = source.path.startswith(FOLDERS) and source.path not in OWN_FILES.values()
        if source.enabled and others and not locked.isdisjoint(_uris(source)):
            yield source


def _locked(expectation: Expectation) -> set[str]:
    """Return the URIs of the expected repositories, `URI SUITE` each."""
    return {each.rpartition(" ")[0] for each in expectation.expected}


def _uris(source: Source) -> set[str]:
    """Return a source's URIs without a final slash, as the lock has them."""
    return {uri.rstrip("/") for uri in source.uris}


_ADDED = re.compile(
    rf"# (\S+){ADDED}\nTypes: deb\nURIs: \S+\n"
    r"Suites: (\S+)\nComponents: ([^\n]+)(?:\nSigned-By:[^\n]*(?:\n [^\n]*)*)?"
)


@observes("repositories.file", "sources")
def _file(facts: Facts, expectation: Expectation) -> Any:
    """Return the parts of gpuprov's own file: name, or first line of an unknown part → digest.

    The value of an archive's part is the expected one if the part adds nothing else, or is missing.
    """
    archives = {name: value for name, value in expectation.expected.items() if ":" in value}
    found = dict(archives)
    for digest, text in facts.own_sources:
        added = _ADDED.fullmatch(text)
        if added and added[1] in archives and _within(added[2], added[3], archives[added[1]]):
            continue
        name = text.partition("\n")[0].removeprefix("# ").removesuffix(ADDED)
        name = "head" if name.startswith("Written by") else name
        found[f"{name} again" if name in found and name not in archives else name] = digest
    return found


def _within(suite: str, components: str, allowed: str) -> bool:
    """Return whether a suite and components are among those of `bookworm: contrib non-free`."""
    suites, _, others = allowed.partition(":")
    return (not suites or suite in suites.split()) and set(components.split()) <= set(others.split())


@names_who("repositories.file")
def _own_file(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Return the path of gpuprov's own file: dnf's if it is there, else apt's; none if it has no part."""
    own = OWN_FILES["dnf" if OWN_FILES["dnf"] in facts.source_files else "apt"]
    return iter([own] if facts.own_sources else [])


@observes("repositories.foreign", "offers", "candidates", "packages")
def _foreign(facts: Facts, expectation: Expectation) -> Any:
    """Return the offers of locked packages by other sources, as text.

    Raises:
        Missing: without an offer, apt cannot read its sources.
    """
    found = [str(offer) for offer in facts.offers]
    if not found:
        _require_readable(facts)
    return found


@names_who("repositories.foreign")
def _brings(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Return the places of sources that offer locked packages."""
    return (offer.place for offer in facts.offers)

"""Observations of scratch file systems and of network storage clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.drift.observations.units import not_applied, not_applied_by
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation


@observes("scratch.filesystem", "scratch")
def _filesystem(facts: Facts, expectation: Expectation) -> Any:
    """Return expected mount point → the type of the file system that is mounted there, else the expected
    one.
    """
    mounted = {mount: facts.scratch[mount]["filesystem"] for mount in expectation.expected}
    return {**expectation.expected, **{mount: kind for mount, kind in mounted.items() if kind}}


@observes("scratch.mounted", "scratch")
def _mounted(facts: Facts, expectation: Expectation) -> Any:
    """Return expected mount point → its file system's type, None if it is not mounted."""
    return {mount: facts.scratch[mount]["filesystem"] for mount in expectation.expected}


@observes("scratch.at_boot", "scratch")
def _at_boot(facts: Facts, expectation: Expectation) -> Any:
    """Return expected mount point → `by UUID`, or the mount unit or source in fstab that mounts it instead.

    None if neither a unit nor fstab mounts it.
    """
    result = {mount: facts.scratch[mount] for mount in expectation.expected}
    sources = {mount: each.get("unit") or each["fstab"] for mount, each in result.items()}
    return {
        mount: "by UUID" if (source or "").startswith("UUID=") else source
        for mount, source in sources.items()
    }


@names_who("scratch.at_boot")
def _mounts(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield for each mount point its mount unit, or None."""
    for mount in expectation.expected:
        yield facts.scratch[mount].get("unit")


@observes("scratch.read_ahead", "scratch")
def _read_ahead(facts: Facts, expectation: Expectation) -> Any:
    """Return expected mount point → read-ahead of its device in KiB, None if it is not known."""
    return {mount: facts.scratch[mount]["read_ahead_kib"] for mount in expectation.expected}


@observes("scratch.read_ahead_at_boot", "scratch", "units")
def _read_ahead_at_boot(facts: Facts, expectation: Expectation) -> Any:
    """Return expected mount point → read-ahead that a rule of udev sets for its file system, or None; or why
    udev does not start.
    """
    values = {mount: facts.scratch[mount]["rule"][0] for mount in expectation.expected}
    return not_applied(facts, expectation) or values


@names_who("scratch.read_ahead_at_boot")
def _rules(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield the places that keep udev from starting, then for each mount point the line of its rules that
    sets the read-ahead, or None.
    """
    yield from not_applied_by(facts, expectation)
    for mount in expectation.expected:
        yield facts.scratch[mount]["rule"][1]


@observes("storage.client_options", "modprobe", "system")
def _client_options(facts: Facts, expectation: Expectation) -> dict[str, str | None]:
    """Return each expected `module.option` → its value in modprobe's configuration, None if not set."""
    found = facts.modprobe.options
    names = (name.split(".", 1) for name in expectation.expected)
    return {f"{module}.{option}": found.get(module, {}).get(option) for module, option in names}


@names_who("storage.client_options")
def _says_otherwise(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield the places that set options to other values than the expected ones; None for an
    option not set.
    """
    for name, value in expectation.expected.items():
        module, _, option = name.partition(".")
        if facts.modprobe.options.get(module, {}).get(option) != value:
            yield facts.modprobe.places.get((module, option))


@observes("storage.clients", "packages")
def _clients(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected packages that are installed."""
    return [name for name in expectation.expected if facts.packages.complete(name)]

"""Observations of the modules of GPUDirect."""

from __future__ import annotations

from collections.abc import Iterator

from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.drift.observations.units import not_applied, not_applied_by
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation
from gpuprov.roles.gpudirect import FS_MODULE, PEERMEM_MODULE

OURS = (PEERMEM_MODULE, FS_MODULE)


@observes("gpudirect.at_boot", "modprobe", "system", "units")
def _at_boot(facts: Facts, expectation: Expectation) -> list[str] | str:
    """Return those modules that modules-load.d names, in its order; a blacklisted one is not loaded.

    If some are expected, and systemd loads none, the reason.
    """
    found = facts.modprobe
    off = {*found.blacklisted, *found.disabled}
    loaded = [name for name in found.at_boot if name in OURS and name not in off]
    return (expectation.expected and not_applied(facts, expectation)) or loaded


@names_who("gpudirect.at_boot")
def _who_keeps_them_out(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield the places that keep systemd from loading, and the lines that blacklist an expected module, or
    switch it off.
    """
    yield from not_applied_by(facts, expectation)
    found = facts.modprobe
    for name in expectation.expected:
        yield found.blacklisted.get(name) or found.disabled.get(name)


@observes("gpudirect.loaded", "modules")
def _loaded(facts: Facts, expectation: Expectation) -> list[str]:
    """Return the expected modules that are loaded."""
    return [name for name in expectation.expected if name in facts.loaded_modules]

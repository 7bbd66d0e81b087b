"""Observation of Podman's defaults for containers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation
from gpuprov.roles.podman import CONFIG, LIMITS
from gpuprov.untrusted.parsing import whole_number


@observes("podman.readable", "podman")
def _closed(facts: Facts, expectation: Expectation) -> Any:
    """Return the files that Podman of a user reads, and only root can."""
    return list(facts.podman.closed)


@names_who("podman.readable")
def _private(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield these files."""
    yield from facts.podman.closed


KEYS = dict.fromkeys(LIMITS, "default_ulimits")
"""Value → its key in containers.conf, if that has another name."""


@observes("podman.config", "podman")
def _config(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected defaults as Podman has them; None for one that it does not have."""
    said = facts.podman.options
    limits = {name: value for name, _, value in _items(said.get("ulimit", ""))}
    seen = {"shm_size": _size(said.get("shm-size", "")), "cgroup_manager": said.get("cgroup-manager")}
    seen |= {name: _limit(limits[name]) for name in LIMITS if name in limits}
    return {name: seen.get(name) for name in expectation.expected}


def _items(listed: str) -> Iterator[tuple[str, str, str]]:
    """Yield the parts of limits such as `[memlock=-1:-1,stack=67108864:67108864]`: name, `=`, value."""
    return (each.partition("=") for each in listed.strip("[]").split(","))


def _size(stated: str) -> int | str | None:
    """Return the size of /dev/shm in bytes; `1g` in containers.conf is 1,000,000,000. Keep other text; None
    for "".
    """
    parts = re.fullmatch("([0-9]+)([kmgt]?)b?", stated.lower())
    number = whole_number(parts[1]) if parts else None
    if parts is None or number is None:
        return stated or None
    size: int = number * 1000 ** "_kmgt".index(parts[2] or "_")
    return size


def _limit(stated: str) -> int | str:
    """Return a limit, soft and hard, as one number or "unlimited"; the text if they differ."""
    soft, _, hard = stated.partition(":")
    if soft != (hard or soft):
        return stated
    number = whole_number(soft)
    return "unlimited" if soft == "-1" else stated if number is None else number


@names_who("podman.config")
def _places(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield the files that override gpuprov's own."""
    for name in expectation.expected:
        place = facts.podman.places.get(KEYS.get(name, name))
        yield None if place == CONFIG else place

"""Keys and variables of an imported fleet that run something: they are named for a person, and left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from gpuprov.inventory.imports.ways import WAY_IN
from gpuprov.model.nodeset import fold
from gpuprov.untrusted import UNSAFE, is_template, on_one_line

KEYS = {"groups", "also", "host_vars", "ssh", "reboot", "plugin"}
"""Keys of a fleet that are imported. Others name commands (`rollout`, `secure_boot`), or what is trusted."""
CONNECTION = {*WAY_IN, "ansible_become"}
"""Variables named `ansible_` that are imported. Others can name a program, its options, or a password."""
RUNS = "can decide what Ansible or gpuprov runs or installs, or contain passwords"
EXPANDS = "are templates, which Ansible expands"


def leave_out(fleet: Mapping[str, Any], source: str, narrate: Callable[[str], None]) -> dict[str, Any]:
    """Return a fleet without the keys and variables that a person must check first.

    Args:
        fleet: keys of a fleet, from an untrusted file.
        source: name of the file.
        narrate: called with the lines for the user, which name what was left out.
    """
    kept = deepcopy({key: value for key, value in fleet.items() if key in KEYS})
    left: dict[str, dict[str, list[str]]] = {RUNS: {key: [] for key in fleet if key not in KEYS}, EXPANDS: {}}
    for place, variables in _variables(kept):
        for name, value in [*variables.items()]:
            if reason := _reason(name, value):
                left[reason].setdefault(name, []).append(place)
                del variables[name]
    for reason, names in left.items():
        if names:
            listed = ", ".join(f"{name}{_places(where)}" for name, where in names.items())
            narrate(
                on_one_line(
                    f"left out, because they {reason}: {listed}; check them in {source}, then"
                    " add them to the fleet"
                )
            )
    if isinstance(hosts := kept.get("host_vars"), dict):
        kept["host_vars"] = {host: own for host, own in hosts.items() if own != {}}
    return {key: value for key, value in kept.items() if value != {}}


def _variables(fleet: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place of variables, and the variables; a part of another type is refused with the fleet."""
    for section in ("groups", "also"):
        for name, group in _mapping(fleet.get(section)).items():
            yield f"group {name}", _mapping(_mapping(group).get("vars"))
    for host, variables in _mapping(fleet.get("host_vars")).items():
        yield host, _mapping(variables)


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _reason(name: str, value: object) -> str:
    if name.startswith("ansible_") and name not in CONNECTION:
        return RUNS
    return EXPANDS if _has_template({name: value}) else ""


def _has_template(value: object) -> bool:
    """Return whether Ansible could expand a part of a value; it never expands text that is marked."""
    if isinstance(value, dict):
        return set(value) != {UNSAFE} and any(map(_has_template, [*value, *value.values()]))
    if isinstance(value, list):
        return any(map(_has_template, value))
    return isinstance(value, str) and is_template(value)


def _places(where: list[str]) -> str:
    groups = [place for place in where if place.startswith("group ")]
    hosts = [place for place in where if place not in groups]
    return f" ({', '.join([*groups, *([fold(hosts)] if hosts else [])])})" if where else ""

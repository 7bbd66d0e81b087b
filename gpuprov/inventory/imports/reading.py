"""Reading of an untrusted Ansible inventory: limits of Ansible, names, types, encrypted values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuprov.errors import InvalidInput, NodeFailed
from gpuprov.inventory.ansible import (
    FLEET_VARIABLE,
    GROUP_VARIABLE,
    HOST_VARIABLE,
    KINDS_VARIABLE,
    NAME_VARIABLE,
)
from gpuprov.untrusted import shown
from gpuprov.untrusted.parsing import read_json
from gpuprov.untrusted.programs import Answer, run_limited, with_limits

TIMEOUT_S = 300
ANSWER_BYTES = 64 << 20
ANSWER_VALUES = 1 << 20
MEMORY_KIB = 4 << 20
"""Maximum address space of ansible-inventory, where the system supports such a limit."""
ENCRYPTED = "__ansible_vault"
"""Key of a mapping that stands for a value that ansible-vault encrypted, in Ansible's JSON."""
SHAPES: Sequence[tuple[tuple[str, ...], type, str]] = (
    ((GROUP_VARIABLE,), dict, "a mapping"),
    ((GROUP_VARIABLE, "name"), str, "text"),
    ((NAME_VARIABLE,), str, "text"),
    ((FLEET_VARIABLE,), dict, "a mapping"),
    ((KINDS_VARIABLE,), list, "a list of names"),
    ((HOST_VARIABLE,), dict, "a mapping"),
    ((HOST_VARIABLE, "ssh"), dict, "a mapping"),
    ((HOST_VARIABLE, "variables"), list, "a list of names"),
)
"""Type of each value that the import reads from the variables that gpuprov writes; lists are of text."""


def check_shapes(variables: Mapping[str, Any], place: str) -> None:
    """Check the types of gpuprov's own variables of a group or host, and that the fleet's has no groups.

    Raises:
        InvalidInput: with the place, the variable, and what was expected.
    """
    for path, kind, expected in SHAPES:
        found: Any = variables
        for key in path:
            if key not in found:
                break
            found = found[key]
        else:
            texts = kind is not list or (isinstance(found, list) and all(isinstance(e, str) for e in found))
            if not isinstance(found, kind) or not texts:
                raise InvalidInput(
                    f"{place}: {'.'.join(path)} is {shown(found)}",
                    expected=f"{expected}, as `gpuprov inventory generate` writes it",
                )
    if "groups" in variables.get(FLEET_VARIABLE, {}):
        raise InvalidInput(
            f"{place}: {FLEET_VARIABLE} has the key groups",
            expected=f"the keys of a group in its variable {GROUP_VARIABLE}",
        )


def run_bounded(command: Sequence[str], environment: Mapping[str, str]) -> Answer:
    """Run a command with limits of its time (`TIMEOUT_S`), memory, output and files; return its answer at any
    exit code.

    Raises:
        InvalidInput: it exceeded the limit of time or output.
    """
    argv = with_limits(command, memory=MEMORY_KIB << 10, file=ANSWER_BYTES)
    try:
        return run_limited(argv, seconds=TIMEOUT_S, limit=ANSWER_BYTES, environment=environment)
    except NodeFailed as error:
        raise InvalidInput(f"Ansible cannot read the inventory within the limits: {error.seen}") from None


def parsed(answer: bytes, path: Path) -> Any:
    """Return the document that ansible-inventory printed for an inventory.

    Raises:
        InvalidInput: it is not JSON, or has too many bytes or values.
    """
    try:
        return read_json(answer, ANSWER_BYTES, ANSWER_VALUES)
    except ValueError as error:
        raise InvalidInput(f"{path}: Ansible's answer cannot be read: {error}") from None


def check_names(names: Iterable[str], path: Path) -> None:
    """Check names of groups and hosts: Ansible makes paths of them, group_vars/NAME, and expands variables.

    The vars plugin gpuprov_import reads no file for the names that are refused here.

    Raises:
        InvalidInput: a name has `/` or `$`, or begins with a dot: it could lead to another folder, or to a
            hidden file.
    """
    for name in names:
        if name.startswith(".") or "/" in name or "$" in name:
            raise InvalidInput(
                f"{path}: {shown(name)} is the name of a group or host",
                expected="names without / and $ that do not begin with a dot: Ansible makes paths of them",
                do="rename it in the inventory",
            )


def is_encrypted(value: object) -> bool:
    """Return whether ansible-vault encrypted a part of a value."""
    if isinstance(value, dict):
        return ENCRYPTED in value or any(map(is_encrypted, value.values()))
    return isinstance(value, list) and any(map(is_encrypted, value))

"""Readings that checks of several roles share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node


def unit_state(host: Node, unit: str) -> str:
    """Return `enabled` if a unit starts at boot and is active; otherwise what is wrong, in drift's terms.

    These are `not installed`, `disabled`, another state of `systemctl is-enabled`, or `enabled, but
    inactive`.
    """
    seen = host.service(unit).systemd_properties
    stated, active = seen.get("UnitFileState") or seen.get("LoadState", "unknown"), seen.get("ActiveState")
    enabled = {"not-found": "not installed", "loaded": "disabled"}.get(stated, stated)
    return enabled if enabled != "enabled" or active == "active" else f"enabled, but {active}"


def own_unit_state(host: Node, unit: str) -> str:
    """Return the unit's state; `enabled, with another command` if its last ExecStart= is the administrator's.

    A command is the administrator's if its file is below /etc or /run and gpuprov did not write it; a file of
    the package may set one, too.
    """
    state, command = unit_state(host, unit), ""
    for part in re.split(r"(?m)^(?=# /)", host.run("systemctl cat %s", unit).stdout):
        if re.search(r"(?m)^ExecStart=.", part):
            command = part
    theirs = re.match(r"# /(?:etc|run)/", command) and "# Written by gpuprov" not in command
    return f"{state}, with another command" if state == "enabled" and theirs else state


def reads_elsewhere(host: Node, unit: str, path: str) -> bool:
    """Return whether a daemon is started with another configuration file than `path`.

    False if its command names no file by `-c`, `--config` or `--config-file`.
    """
    command = host.run("systemctl show --property=ExecStart --value %s", unit).stdout
    named = re.search(r"\s(?:-c|--config|--config-file)[= ](\S+)", command)
    return bool(named and named[1] != path)


def part_of(document: Any, wanted: Any) -> Any:
    """Return the parts of a document that `wanted` contains; other keys and items are the site's own.

    Mappings keep the keys of `wanted`, with None for a missing one; lists keep the items that are in
    `wanted`. Other values, and those of another type than in `wanted`, are returned unchanged.
    """
    if isinstance(document, dict) and isinstance(wanted, dict):
        return {key: part_of(document.get(key), value) for key, value in wanted.items()}
    if isinstance(document, list) and isinstance(wanted, list):
        return [item for item in document if item in wanted]
    return document

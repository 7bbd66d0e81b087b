"""Variables and expectations of Podman and its defaults for containers."""

from __future__ import annotations

import re
from typing import Any

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.components import closure, unwanted
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import fails
from gpuprov.untrusted.parsing import whole_number

CONFIG = "/etc/containers/containers.conf.d/gpuprov.conf"
LIMITS = ("memlock", "stack")
"""Limits of containers that a fleet can state, by their names in the kernel and in containers.conf."""
_LATER = "a later file of /etc/containers/containers.conf.d"

OVERRULED = (
    *fails("podman", "podman.config", _LATER),
    *fails("containers", "podman.config", _LATER),
    *fails("podman", "podman.readable", "/etc/hosts or another file with mode 600"),
)


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return the expected packages, no files that only root can read, and the stated defaults of containers.

    Empty if Podman is not locked.
    """
    podman, role = group.components.podman, "podman"
    if podman is None:
        return []
    stated = [Expectation("podman.packages", podman.closure, role), Expectation("podman.readable", [], role)]
    if values := defaults(group):
        stated.append(Expectation("podman.config", values, role))
    return stated


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return packages, and the tables of containers.conf; all are empty if Podman is not locked."""
    return {
        "podman_packages": closure(group.components.podman),
        "podman_unwanted": unwanted(group, "podman"),
        "podman_config": _tables(group),
    }


def defaults(group: LockedGroup) -> dict[str, int | str]:
    """Return the stated defaults of Podman's containers: sizes in bytes, or "unlimited", and the cgroup
    manager; {} without Podman.
    """
    if group.components.podman is None:
        return {}
    stated = group.setting("containers") or {}
    values = {"shm_size": in_bytes(stated.get("shm_size"))}
    values |= {name: stated.get(name) for name in LIMITS}
    values["cgroup_manager"] = stated.get("cgroup_driver")
    return {name: value for name, value in values.items() if value is not None}


def _tables(group: LockedGroup) -> dict[str, dict[str, Any]]:
    """Return the stated defaults as tables of containers.conf(5); tables without a value are left out.

    The size is in bytes: Podman reads `1g` there as 1,000,000,000.
    """
    values = defaults(group)
    containers: dict[str, Any] = {}
    if "shm_size" in values:
        containers["shm_size"] = str(values["shm_size"])
    if limits := [f"{name}={_both(values[name])}" for name in LIMITS if name in values]:
        containers["default_ulimits"] = limits
    engine = {"cgroup_manager": values["cgroup_manager"]} if "cgroup_manager" in values else {}
    return {name: table for name, table in (("containers", containers), ("engine", engine)) if table}


def _both(value: int | str) -> str:
    """Return a limit as containers.conf states it, soft and hard; -1 is unlimited."""
    number = -1 if value == "unlimited" else value
    return f"{number}:{number}"


def in_bytes(size: str | None) -> int | str | None:
    """Return a size such as `1g` in bytes, as Docker and Podman parse it; other text and None unchanged."""
    parts = re.fullmatch("([0-9]+)([bkmg]?)", size or "")
    number = whole_number(parts[1]) if parts else None
    if parts is None or number is None:
        return size
    return number * {"k": 2**10, "m": 2**20, "g": 2**30}.get(parts[2], 1)

"""Variables and expectations of IMEX, whose packages change together with the driver's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuprov.model.lock import Lock, LockedGroup
from gpuprov.model.nodeset import fold
from gpuprov.roles.components import version
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import BY_HAND, CONDITION, OTHER_FILE, OTHER_PROGRAM, fails, mends

IMEX_UNIT = "nvidia-imex.service"
UNITS = {"imex.unit": IMEX_UNIT}
NODES_FILE = "/etc/nvidia-imex/nodes_config.cfg"
CONFIG = "/etc/nvidia-imex/config.cfg"
NODES_KEY = "IMEX_NODE_CONFIG_FILE"
"""Key of the configuration for the file with the nodes."""
SOCKET_KEYS = ("IMEX_CMD_ENABLED", "IMEX_CMD_UNIX_DOMAIN_PATH")
SOCKET = "/etc/nvidia-imex/imex_ctrl.sock"
"""Command socket, the default of the DRA driver's chart (hostSocketPath)."""
ON_HOSTS = ("service", "dra-host")
"""Modes in which the host's daemon runs, with the same nodes on all nodes of a domain."""

OVERRULED = (
    *mends("imex", "imex.unit", BY_HAND),
    *fails("imex", "imex.unit", OTHER_FILE, OTHER_PROGRAM, CONDITION),
    *mends("imex", "imex.nodes", f"{NODES_KEY} in {CONFIG}"),
)


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return the expected unit, and for a daemon of the host its nodes and socket; empty without a mode."""
    mode, role = group.setting("imex"), "imex"
    if mode is None:
        return []
    if mode not in ON_HOSTS:
        return [Expectation("imex.unit", "masked", role)]
    stated = [
        Expectation("imex.unit", "enabled", role, subject=version(group.components.imex)),
        Expectation("imex.nodes", nodes(group), role),
    ]
    return stated + ([Expectation("imex.socket", SOCKET, role)] if mode == "dra-host" else [])


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return mode, version and the nodes' addresses; `unset` if the lock states no mode, and no nodes unless
    a daemon of the host runs.
    """
    mode = group.setting("imex")
    return {
        "imex_mode": mode or "unset",
        "imex_version": version(group.components.imex),
        "imex_nodes": nodes(group) if mode in ON_HOSTS else [],
    }


def nodes(group: LockedGroup) -> list[str]:
    """Return the sorted addresses of the group's hosts, which are one NVLink domain, also of those that are
    not in the lock of a worker or a process.
    """
    return group.addresses


def domains(lock: Lock) -> list[str]:
    """Return the NVLink domains whose nodes have to change together, each as a folded set of nodes.

    IMEX needs one driver version in a domain; a domain whose groups are without IMEX, or have it off, has no
    such need.
    """
    groups = lock.hosts()
    return [
        fold(hosts)
        for hosts in (lock.nvlink_domains or {}).values()
        if any(_needs_one_version(groups[host]) for host in hosts if host in groups)
    ]


def _needs_one_version(group: LockedGroup) -> bool:
    """Return whether a group has IMEX, and its mode is not `off`."""
    return group.components.imex is not None and group.setting("imex") != "off"


def socket_of(settings: Mapping[str, str]) -> str | None:
    """Return the command socket by the configuration's keys, None if it is off."""
    switch, path = SOCKET_KEYS
    return settings.get(path) if settings.get(switch) == "1" else None

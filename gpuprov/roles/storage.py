"""Variables and expectations of storage: scratch file systems by UUID
with read-ahead, and network clients.
"""

from __future__ import annotations

from typing import Any

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import NOT_APPLIED, NOT_BY_SYSTEMD, fails, mends

OVERRULED = (
    *mends("scratch", "scratch.mounted", "umount by hand"),
    *fails("scratch", "scratch.at_boot", "a mount unit in /etc/systemd/system"),
    *mends("scratch", "scratch.read_ahead", "blockdev or a later udev rule"),
    *mends("scratch", "scratch.read_ahead_at_boot", "gpuprov's udev rule removed"),
    *fails(
        "scratch",
        "scratch.read_ahead_at_boot",
        "a later udev rule for the file system",
        NOT_APPLIED,
        NOT_BY_SYSTEMD,
    ),
    *fails("client_options", "storage.client_options", "a later file of modprobe.d"),
    *mends("storage_clients", "storage.clients", "apt by hand: these packages are not held"),
)


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return the expected scratch file systems, clients, and options of their modules."""
    options = client_options(group)
    stated = [Expectation("storage.client_options", options, "storage")] if options else []
    return [*_scratch(group), *_clients(group), *stated]


def client_options(group: LockedGroup) -> dict[str, str]:
    """Return the stated `module.option` → value for the modules that mount network file systems."""
    stated = group.setting("client_options") or {}
    slots, networks = (stated.get("nfs") or {}).get("slots"), (stated.get("lustre") or {}).get("networks")
    names = ("sunrpc.tcp_slot_table_entries", "sunrpc.tcp_max_slot_table_entries")
    found = dict.fromkeys(names, str(slots)) if slots is not None else {}
    return {**found, **({"lnet.networks": networks} if networks else {})}


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return the scratch file systems, the packages of clients, and options of their modules; each empty if
    not stated.
    """
    return {
        "storage_scratch": list(group.setting("scratch") or []),
        "storage_clients": clients(group),
        "storage_client_options": client_options(group),
    }


def clients(group: LockedGroup) -> list[str]:
    """Return the packages of stated clients, sorted."""
    return sorted((group.setting("storage_clients") or {}).values())


def _clients(group: LockedGroup) -> list[Expectation]:
    """Return the expected packages of network storage clients; [] if no client is stated."""
    names = clients(group)
    return [Expectation("storage.clients", names, "storage")] if names else []


def _scratch(group: LockedGroup) -> list[Expectation]:
    """Return expected mounts, mounts at boot by UUID, and read-ahead in KiB, now and at boot, if stated.

    [] without scratch. No role replaces a file system of another type, which may hold data.
    """
    stated = group.setting("scratch")
    if not stated:
        return []
    role = "storage"
    ahead = {
        each["mount"]: each["read_ahead_kib"] for each in stated if each.get("read_ahead_kib") is not None
    }
    filesystems = {each["mount"]: each["filesystem"] for each in stated}
    found = [
        Expectation("scratch.filesystem", filesystems, None),
        Expectation("scratch.mounted", filesystems, role),
        Expectation("scratch.at_boot", {each["mount"]: "by UUID" for each in stated}, role),
    ]
    checks = ("scratch.read_ahead", "scratch.read_ahead_at_boot") if ahead else ()
    return [*found, *(Expectation(check, ahead, role) for check in checks)]

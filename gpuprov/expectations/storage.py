"""Scratch space: mounted, by UUID at every boot, read ahead."""

from __future__ import annotations

from gpuprov.expectations.statement import Expectation
from gpuprov.lock import LockedGroup


def storage(group: LockedGroup) -> list[Expectation]:
    """Every scratch file system of the lock."""
    stated = group.setting("scratch")
    if not stated:
        return []
    role = "storage"
    ahead = {
        each["mount"]: each["read_ahead_kib"] for each in stated if each.get("read_ahead_kib") is not None
    }
    found = [
        Expectation("scratch.mounted", {each["mount"]: each["filesystem"] for each in stated}, role),
        Expectation("scratch.at_boot", {each["mount"]: "by UUID" for each in stated}, role),
    ]
    return [*found, Expectation("scratch.read_ahead", ahead, role)] if ahead else found

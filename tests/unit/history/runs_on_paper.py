"""Sample runs of nodes, and a matching lock."""

from __future__ import annotations

from typing import Any

from gpuprov.drift.judge import Difference, NodeDrift
from gpuprov.history.record import Group, Run

CHECKS = ("driver.packages", "driver.loaded", "gpu.count", "pins.hold")


def differs(check: str, expected: Any = "a", actual: Any = "b") -> Difference:
    """Return a difference of a check that the role nvidia_driver corrects."""
    return Difference(check, expected, actual, "error", "nvidia_driver", reboot=False)


def node(name: str, *drift: Difference) -> NodeDrift:
    """Return a node's result with these differences."""
    return NodeDrift(name, "drifted" if drift else "in_sync", drift)


def lost(name: str, reason: str = "no SSH on 192.0.2.7 port 22: timed out") -> NodeDrift:
    """Return the result of a node that cannot be reached."""
    return NodeDrift(name, "unreachable", reason=reason)


def run(*nodes: NodeDrift, id_: str = "20260131-142501-drift-9f3a", fleet: str = "/fleet.lock.yml") -> Run:
    """Return a run of drift with these results, in one group."""
    groups = {"train": Group(tuple(each.name for each in nodes), CHECKS)}
    return Run(id_, "drift", "2026-01-31T14:25:01+00:00", fleet, groups, list(nodes))

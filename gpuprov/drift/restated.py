"""Results of workers: what the lock states is taken from the lock, and only what was seen from the worker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gpuprov.drift.judge import Difference, NodeDrift
from gpuprov.roles import Expectation
from gpuprov.ssh.answers import require_stated
from gpuprov.untrusted import on_one_line


def restated(node: NodeDrift, stated: Mapping[str, Expectation]) -> NodeDrift:
    """Return a worker's result, with expected values, roles, severities and reboots of the lock.

    Args:
        stated: check → the node's expectation.

    Raises:
        NodeFailed: a check is not one of the lock, or is there twice.
    """
    if node.status in ("unreachable", "error"):
        return NodeDrift(node.name, node.status, reason=on_one_line(node.reason or "no reason was given"))
    require_stated((each.check for each in node.drift), stated)
    found = tuple(_of_lock(each, stated[each.check]) for each in node.drift)
    return NodeDrift(node.name, "drifted" if found else "in_sync", found)


def _of_lock(difference: Difference, expectation: Expectation) -> Difference:
    """Return the difference with the values that the lock states.

    A difference that cannot be corrected until the driver answers keeps no role, and a reboot.
    """
    role, reboot = expectation.role, expectation.reboot
    if expectation.needs_driver and difference.role is None and difference.reboot:
        role, reboot = None, True  # nothing can be set or read until the driver answers
    return Difference(
        expectation.check,
        _differing(expectation.expected, difference),
        difference.actual,
        expectation.severity,
        role,
        reboot,
        difference.by,
    )


def _differing(expected: Any, difference: Difference) -> Any:
    """Return the part of an expected value that differs; all of it if it is no mapping or list."""
    if isinstance(expected, dict) and isinstance(difference.actual, dict):
        return {key: expected.get(key) for key in difference.actual}
    if all(isinstance(each, list) for each in (expected, difference.expected, difference.actual)):
        theirs = {_key(item) for item in difference.expected}
        return [item for item in expected if _key(item) in theirs]
    return expected


def _key(item: Any) -> str:
    """Return a text that is equal for equal items, also for those that cannot be hashed: the worker chooses
    the length of its list.
    """
    return json.dumps(item, sort_keys=True)

"""Nodes whose last verification passed, and what they were verified against.

Drift reads less of a node than verify. A node without drift is therefore known to match the lock only if its
last verification passed against the same expectations.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from gpuprov import __version__
from gpuprov.errors import GpuprovError
from gpuprov.history.store import History
from gpuprov.model.lock import Lock
from gpuprov.verify.verdict import Verdict
from gpuprov.verify.wanted import wanted


def keep_verdict(lock: Lock, path: Path, verdict: Verdict, narrate: Callable[[str], None]) -> None:
    """Store which nodes of a verdict passed.

    No error is raised: the record is not the result of the verification, and must not end the run.
    A node that failed or could not be judged counts as not verified. The record of an unreachable node stays.

    Args:
        path: file of the lock.
    """
    try:
        digests = _digests(lock)
        passed = {node.name: digests[node.name] for node in verdict.nodes if node.status == "passed"}
        failed = [node.name for node in verdict.nodes if node.status in ("failed", "error")]
        with History() as history:
            history.record_verified(str(path.absolute()), passed, failed)
    except Exception as error:  # noqa: BLE001 - see above
        narrate(f"this verification is not in the history: {error}")


def not_verified(lock: Lock, path: Path, names: Iterable[str]) -> list[str]:
    """Return the nodes whose last verification failed, is not known, or had other expectations.

    If the history cannot be read, return all.
    """
    digests = _digests(lock)
    try:
        with History() as history:
            known = history.verified(str(path.absolute()))
    except (sqlite3.Error, GpuprovError, UnicodeError):
        known = {}
    return [name for name in names if known.get(name) != digests[name]]


def _digests(lock: Lock) -> dict[str, str]:
    """Return node → SHA256 of its group's expectations and of the version of gpuprov that checks them."""
    found: dict[str, str] = {}
    for group in lock.groups.values():
        stated = [asdict(each) for each in wanted(group).values()]
        text = json.dumps([__version__, stated], sort_keys=True, default=str)
        found |= dict.fromkeys(group.hosts, hashlib.sha256(text.encode()).hexdigest())
    return found

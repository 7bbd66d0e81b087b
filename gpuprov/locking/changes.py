"""Differences between two locks, as lines for people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from gpuprov.model.components import MOVABLE
from gpuprov.model.lock import Lock
from gpuprov.untrusted.openpgp import fingerprints

KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
VERSION = re.compile(r"[^.]+\.components\.\w+\.version")
"""Path of a component's version."""
DETAIL = re.compile(
    r"[^.]+\.components\.\w+\.(?:packages|closure|reason|source|hold_patterns|beside|module_package)\b"
)
"""Paths of values that follow from a component's version."""
MOST = 100
"""Most characters of a value to show, and most width of the paths; the lock has all of a value."""


def changes(old: Lock | None, new: Lock) -> list[str]:
    """Return lines such as `train.components.driver.version  535.261.03 → 535.309.01`; for a first lock one
    for each component; raises as `fingerprints`.

    Versions of components come first, then the details, both in the order of the lock. Empty if nothing
    differs; `nothing` is a value that one of the locks does not have.
    """
    if old is None:
        return [
            f"{name}: {kind} {component.version} ({', '.join(sorted(component.packages))})"
            for name, group in new.groups.items()
            for kind, component in group.components.each()
        ]
    before, after = (dict(_leaves(_compared(lock))) for lock in (old, new))
    paths = [*after, *(path for path in before if path not in after)]
    moved = [
        (path, before.get(path), after.get(path)) for path in paths if before.get(path) != after.get(path)
    ]
    moved.sort(key=lambda each: VERSION.fullmatch(each[0]) is None)
    width = min(MOST, max((len(path) for path, _, _ in moved), default=0))
    return [f"{path:<{width}}  {_word(was)} → {_word(now)}" for path, was, now in moved]


def brief(lines: Iterable[str]) -> list[str]:
    """Return lines of `changes` without those that follow from a version, and their number at the end; all of
    them if no other line is left.
    """
    listed = list(lines)
    kept = [line for line in listed if not DETAIL.match(line)]
    left = len(listed) - len(kept)
    return [
        *kept,
        *([f"and {left} lines of packages and reasons: -v shows them"] if left and kept else []),
    ] or listed


def unmoved(old: Lock | None, new: Lock, named: Iterable[str]) -> list[str]:
    """Return a line for each named component that still has its old version, group by group; empty without an
    old lock.
    """
    asked, found = set(named), []
    for name, group in new.groups.items() if old else ():
        before = dict(old.groups[name].components.each()) if old and name in old.groups else {}
        found += [
            f"{name}: {kind} stays {each.version}: fleet.yml, its profile and the repositories allow nothing"
            " newer; if fleet.yml states a version, change it there first"
            for kind, each in group.components.each()
            if kind in asked and kind in before and before[kind].version == each.version
        ]
    return found


def taken_out(old: Lock | None, new: Lock) -> list[str]:
    """Return a line for each component of a group's old lock that the new one neither has nor excludes."""
    found = []
    for name, group in new.groups.items() if old else ():
        before = dict(old.groups[name].components.each()) if old and name in old.groups else {}
        now = {*dict(group.components.each()), *group.components.absent}
        found += [
            f"{name}: {kind} is not stated any more: nodes keep it, and drift does not judge it; to remove"
            f" it, state `stack: {{{kind}: none}}` (or once: gpuprov apply --full)"
            for kind in before
            if kind not in now and kind in MOVABLE
        ]
    return found


def _compared(lock: Lock) -> dict[str, Any]:
    """Return the parts of a lock to compare: its groups by name, and its pinned catalog as text, if any.

    The size of a component's packages is left out, as it follows from their versions.
    """
    pin = {"catalog": f"{lock.catalog.version} (sha256 {lock.catalog.sha256[:12]}…)"} if lock.catalog else {}
    groups: dict[str, Any] = lock.model_dump(mode="json")["groups"]
    for group in groups.values():
        for component in filter(None, group["components"].values()):
            component.pop("download", None)
    return pin | groups


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted path and value of each leaf of nested mappings; a list is a leaf."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, tree


def _word(value: Any) -> str:
    """Return a value as text: `nothing` for None, `none` for an empty one, commas in a list, a key's
    fingerprints, at most `MOST` characters; raises as `fingerprints`.
    """
    if value is None:
        return "nothing"
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    if text.startswith(KEY):
        return f"key {', '.join(fingerprints(text.encode()))}"
    return (text or "none") if len(text) <= MOST else text[:MOST] + "…"

"""The steps of a node's way, each for many nodes at once. Every step looks first and does only what is left.

A step gets the trip, the nodes, and a folder of its own; it returns node → why it failed there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from gpuprov.apply.converge import Consent, Convergence, converge
from gpuprov.apply.plan import NodePlan, plan_node
from gpuprov.drift.survey import survey
from gpuprov.errors import GpuprovError
from gpuprov.model.documents import write_text
from gpuprov.model.lock import Lock, render_lock
from gpuprov.report.text import difference
from gpuprov.upgrade import hooks
from gpuprov.upgrade.context import RECORDS, Trip, rebooting
from gpuprov.upgrade.managed import managed
from gpuprov.upgrade.remote import PACKAGES_S, act, await_nodes, failures, same
from gpuprov.verify import run as look_apart

Failures = dict[str, str]
Step = Callable[[Trip, list[str], Path], Failures]
AGAIN_S = 5.0


def record(trip: Trip, names: list[str], folder: Path) -> Failures:
    """Write down each node's last good set, there and here."""
    arguments = {}
    for name in names:
        alone = trip.old.model_copy(update={"groups": _only(trip.old, name)})
        arguments[name] = [trip.id, render_lock(alone), managed(trip.groups[name][0])]
    answers = act(trip.old, "record", arguments, trip.options)
    for name, answer in answers.items():
        if not isinstance(answer, GpuprovError):
            write_text(trip.run / RECORDS / f"{name}.json", json.dumps(answer))
    return failures(answers)


def snapshot(trip: Trip, names: list[str], folder: Path) -> Failures:
    """The site's own way back, if it has one."""
    return hooks.run(trip, "snapshot", names)


def drain(trip: Trip, names: list[str], folder: Path) -> Failures:
    """Take nodes out of service."""
    return hooks.run(trip, "drain", names)


def resume(trip: Trip, names: list[str], folder: Path) -> Failures:
    """Put nodes into service again."""
    return hooks.run(trip, "resume", names)


def apply(trip: Trip, names: list[str], folder: Path) -> Failures:
    """Roles bring nodes to the new lock, as far as that goes without a reboot."""
    failed = _roles(trip, rebooting(trip.new, together=0), names, folder)
    moved = [name for name in names if name not in failed]
    return failed | failures(act(trip.new, "seal", same(moved, trip.id), trip.options))


def reboot(trip: Trip, names: list[str], folder: Path) -> Failures:
    """Reboot what needs it, all at once: they are out of service anyway."""
    plans = [NodePlan(name, (), reboot=True, because=(), beyond=()) for name in names]
    lock = rebooting(trip.new, together=len(names))
    return _wrong(_converge(trip, lock, plans, folder), names)


def verify(trip: Trip, names: list[str], folder: Path) -> Failures:
    """Testinfra judges by the new lock, as often as the time to settle allows."""
    return _judged(trip, trip.new, names, folder)


def restore(trip: Trip, names: list[str], folder: Path) -> Failures:
    """Packages in one transaction, files and units of the last good set.

    A node that was just lost gets the time of a boot to answer again.
    """
    patience = max(trip.groups[name][0].reboot.timeout_s for name in names)
    await_nodes(trip.old, names, trip.options, patience)
    arguments = {}
    for name in names:
        spare = trip.source / RECORDS / f"{name}.json"
        known = json.loads(spare.read_text()) if spare.exists() else None
        arguments[name] = [trip.source.name, known, managed(trip.groups[name][0])]
    answers = act(trip.old, "restore", arguments, trip.options, seconds=PACKAGES_S)
    write_text(folder / "restored.json", json.dumps(answers, default=str, indent=1))
    return failures(answers)


def mend(trip: Trip, names: list[str], folder: Path) -> Failures:
    """What still differs from the old lock: roles, and a reboot where the wrong module is loaded."""
    return _roles(trip, rebooting(trip.old, together=len(names)), names, folder)


def confirm(trip: Trip, names: list[str], folder: Path) -> Failures:
    """Testinfra judges by the old lock."""
    return _judged(trip, trip.old, names, folder)


BY_NAME: Mapping[str, Step] = {
    step.__name__: step
    for step in (record, snapshot, drain, apply, reboot, verify, restore, mend, confirm, resume)
}


def _only(lock: Lock, node: str) -> dict[str, Any]:
    return {
        name: group.model_copy(update={"hosts": {node: group.hosts[node]}})
        for name, group in lock.groups.items()
        if node in group.hosts
    }


def _roles(trip: Trip, lock: Lock, names: list[str], folder: Path) -> Failures:
    found = survey(lock, names, forks=trip.options.forks, password=trip.options.become_password)
    lost = {node.name: node.reason for node in found if node.reason is not None}
    plans = [plan_node(node) for node in found if node.reason is None]
    return lost | _wrong(
        _converge(trip, lock, plans, folder), [plan.name for plan in plans if not plan.empty]
    )


def _converge(trip: Trip, lock: Lock, plans: list[NodePlan], folder: Path) -> Convergence:
    consent = Consent(downgrade=True)  # the gate showed both versions; a lock of older ones is meant
    return converge(
        lock,
        plans,
        folder,
        options=trip.options,
        consent=consent,
        listen=trip.listen,
        narrate=trip.narrate,
    )


def _wrong(result: Convergence, names: Collection[str]) -> Failures:
    """Why roles or reboots failed; nodes that were lost afterwards among them."""
    failed = {}
    for name in names:
        outcome, seen = result.outcomes.get(name), result.drift.get(name)
        if outcome is not None and not outcome.ok:
            said = outcome.failed[0].get("msg") if outcome.failed else outcome.unreachable
            failed[name] = str(said)
        elif seen is not None and seen.reason is not None:
            failed[name] = seen.reason
        elif name in result.rebooted and seen is not None and any(each.reboot for each in seen.drift):
            wrong = ", ".join(difference(each) for each in seen.drift if each.reboot)
            failed[name] = f"after the reboot: {wrong}"
    return failed


def _judged(trip: Trip, lock: Lock, names: list[str], folder: Path) -> Failures:
    """Why nodes fail verification, those asked again that did until the time to settle is over."""
    deadline = time.monotonic() + trip.rollout.settle_s
    failed: Failures = {}
    asked = names
    while True:
        verdict = look_apart(
            lock,
            asked,
            json=folder / "verify.json",
            forks=trip.options.forks,
            password=trip.options.become_password,
        )
        for node in verdict.nodes:
            wrong = ", ".join(check.check for check in node.failed_checks)
            failed.pop(node.name, None)
            if node.status != "passed":
                failed[node.name] = f"{wrong} failed" if wrong else node.message
        asked = list(failed)
        if not asked or time.monotonic() >= deadline:
            return failed
        time.sleep(AGAIN_S)

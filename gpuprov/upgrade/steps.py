"""Steps of an upgrade, each for many nodes in parallel. Each checks first and does only what is missing.

A step gets the context, the nodes, and a folder for its files; it returns node → why it failed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from gpuprov.apply.converge import Convergence, converge
from gpuprov.apply.plan import NodePlan, plan_node
from gpuprov.apply.remote import same
from gpuprov.drift.survey import survey
from gpuprov.drift.text import difference
from gpuprov.errors import GpuprovError
from gpuprov.model.documents import write_text
from gpuprov.model.lock import Lock, render_lock
from gpuprov.upgrade import hooks
from gpuprov.upgrade.acceptance import accepted
from gpuprov.upgrade.context import RECORDS, UpgradeContext, rebooting
from gpuprov.upgrade.managed import managed
from gpuprov.upgrade.remote import PACKAGES_S, act, await_nodes, failures
from gpuprov.verify import run_verification

Failures = dict[str, str]
Step = Callable[[UpgradeContext, list[str], Path], Failures]
AGAIN_S = 5.0
UNSEEN = "there is no result of this node: its state is not known"


def record(context: UpgradeContext, names: list[str], folder: Path) -> Failures:
    """Record each node's last good set, on the node and in the run's folder; return the failures."""
    arguments = {}
    for name in names:
        alone = context.old.model_copy(update={"groups": _only(context.old, name)})
        arguments[name] = [context.id, render_lock(alone), managed(*context.groups[name])]
    answers = act(context.old, "record", arguments, context.options, holds=context.leases)
    for name, answer in answers.items():
        if not isinstance(answer, GpuprovError):
            write_text(context.folder / RECORDS / f"{name}.json", json.dumps(answer))
    return failures(answers)


def snapshot(context: UpgradeContext, names: list[str], folder: Path) -> Failures:
    """Run the site's snapshot hook, if it has one."""
    return hooks.run_hook(context, "snapshot", names)


def drain(context: UpgradeContext, names: list[str], folder: Path) -> Failures:
    """Take nodes out of service by the site's drain hook, if it has one."""
    return hooks.run_hook(context, "drain", names)


def resume(context: UpgradeContext, names: list[str], folder: Path) -> Failures:
    """Return nodes to service by the site's resume hook, if it has one."""
    return hooks.run_hook(context, "resume", names)


def held(context: UpgradeContext, reasons: Mapping[str, str]) -> Failures:
    """Say why nodes stay out of service by the site's hook `held`, if it has one."""
    return hooks.run_hook(context, "held", reasons, reasons)


def apply(context: UpgradeContext, names: list[str], folder: Path) -> Failures:
    """Bring nodes to the new lock with roles, as far as possible without a reboot; then record packages."""
    failed = _roles(context, rebooting(context.lock, together=0), names, folder)
    moved = [name for name in names if name not in failed]
    arguments, holds = same(moved, context.id), context.leases
    sealed = act(context.lock, "seal", arguments, context.options, holds=holds, read=lambda answer: None)
    return failed | failures(sealed)


def reboot(context: UpgradeContext, names: list[str], folder: Path) -> Failures:
    """Reboot the nodes that need it, all in parallel, because they are out of service."""
    plans = [NodePlan(name, (), reboot=True, because=(), beyond=()) for name in names]
    lock = rebooting(context.lock, together=len(names))
    return _wrong(converge(context.toward(lock, folder), plans), names, lock)


def verify(context: UpgradeContext, names: list[str], folder: Path) -> Failures:
    """Verify nodes with testinfra by the new lock, within the time to settle; then measure those without a
    failure, see `accepted`.
    """
    failed = _judged(context, context.lock, names, folder)
    return failed | accepted(context, [name for name in names if name not in failed], folder)


def restore(context: UpgradeContext, names: list[str], folder: Path) -> Failures:
    """Restore files, packages (in one transaction) and units of the last good set; write the answers into the
    folder.

    An unreachable node gets the time of a boot to answer again. A node without its own record of the set gets
    the run's.
    """
    patience = max(context.groups[name][0].reboot.timeout_s for name in names)
    await_nodes(context.old, names, context.options, patience)
    arguments = {}
    for name in names:
        spare = context.source / RECORDS / f"{name}.json"
        known = json.loads(spare.read_text()) if spare.exists() else None
        arguments[name] = [context.source.name, known, managed(*context.groups[name])]
    answers = act(
        context.old, "restore", arguments, context.options, holds=context.leases, seconds=PACKAGES_S
    )
    write_text(folder / "restored.json", json.dumps(answers, default=str, indent=1))
    return failures(answers)


def mend(context: UpgradeContext, names: list[str], folder: Path) -> Failures:
    """Repair remaining differences from the old lock with roles, and reboot if the wrong module is loaded."""
    return _roles(context, rebooting(context.old, together=len(names)), names, folder)


def confirm(context: UpgradeContext, names: list[str], folder: Path) -> Failures:
    """Verify nodes with testinfra by the old lock."""
    return _judged(context, context.old, names, folder)


BY_NAME: Mapping[str, Step] = {
    step.__name__: step
    for step in (record, snapshot, drain, apply, reboot, verify, restore, mend, confirm, resume)
}


def _only(lock: Lock, node: str) -> dict[str, Any]:
    """Return name → group of a node, reduced to this node."""
    return {
        name: group.model_copy(update={"hosts": {node: group.hosts[node]}})
        for name, group in lock.groups.items()
        if node in group.hosts
    }


def _roles(context: UpgradeContext, lock: Lock, names: list[str], folder: Path) -> Failures:
    """Run the roles that correct the drift of nodes from a lock, with the reboots that it allows.

    Returns:
        node → why it failed, also if it does not answer.
    """
    options = context.options
    found = survey(lock, names, dispatch=options.dispatch)
    seen = {node.name for node in found}
    lost = {name: UNSEEN for name in names if name not in seen}
    lost |= {node.name: node.reason for node in found if node.reason is not None}
    plans = [plan_node(node) for node in found if node.reason is None]
    result = converge(context.toward(lock, folder), plans)
    return lost | _wrong(result, [plan.name for plan in plans if not plan.empty], lock)


def _wrong(result: Convergence, names: Collection[str], lock: Lock) -> Failures:
    """Return why roles or reboots failed, including nodes that were lost or not surveyed afterwards, not
    rebooted although the lock allows it, or whose reboot did not end the drift.
    """
    failed, hosts = {}, lock.hosts()
    for name in names:
        outcome, seen = result.outcomes.get(name), result.drift.get(name)
        if outcome is not None and not outcome.ok:
            failed[name] = str(outcome.reason)
        elif seen is None:
            failed[name] = UNSEEN
        elif seen.reason is not None:
            failed[name] = seen.reason
        elif name in result.reboot_needed and hosts[name].reboot.allowed:
            failed[name] = "it needs a reboot and was not rebooted"
        elif name in result.rebooted and any(each.reboot for each in seen.drift):
            wrong = ", ".join(difference(each) for each in seen.drift if each.reboot)
            failed[name] = f"after the reboot: {wrong}"
    return failed


def _judged(context: UpgradeContext, lock: Lock, names: list[str], folder: Path) -> Failures:
    """Verify nodes, and write `verify.json` into the folder; return why nodes fail.

    Failing ones are verified again until the time to settle is over; a node without a result fails.
    """
    deadline = time.monotonic() + context.rollout.settle_s
    failed: Failures = {}
    asked = names
    while True:
        verdict = run_verification(
            lock,
            asked,
            json=folder / "verify.json",
            dispatch=context.options.dispatch,
        )
        failed |= dict.fromkeys(asked, UNSEEN)
        for node in verdict.nodes:
            wrong = ", ".join(check.check for check in node.failed_checks)
            failed.pop(node.name, None)
            if node.status != "passed":
                failed[node.name] = f"{wrong} failed" if wrong else node.message
        asked = list(failed)
        if not asked or time.monotonic() >= deadline:
            return failed
        time.sleep(AGAIN_S)

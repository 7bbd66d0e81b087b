"""Steps of a repair, each for many nodes in parallel. Each checks first and does only what is missing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpuprov.apply.converge import reboot_nodes
from gpuprov.apply.remote import Answer, same
from gpuprov.errors import GpuprovError, Unreachable
from gpuprov.model.documents import write_text
from gpuprov.untrusted import on_one_line
from gpuprov.untrusted.numbers import finite
from gpuprov.upgrade import hooks
from gpuprov.upgrade.acceptance import accepted
from gpuprov.upgrade.context import rebooting
from gpuprov.upgrade.remote import act, await_nodes, failures
from gpuprov.upgrade.repair import look, power
from gpuprov.upgrade.repair.context import RepairContext
from gpuprov.upgrade.repair.holders import HOLDERS, JOINING, SETTINGS
from gpuprov.upgrade.repair.ladder import Rung
from gpuprov.upgrade.repair.result import Result
from gpuprov.upgrade.repair.state import ACCEPT, IDLE, LOOK, RUNGS

AGAIN_S = 5.0
RESET_S, UNIT_S = 300.0, 90.0
"""Time limits in seconds of a reset, and of units that stop before it or start after it."""
JOBS = 8
"""Most jobs of a node that are named."""


Step = Callable[[RepairContext, list[str], Path], Result]


@dataclass(frozen=True)
class Use:
    """Use of a node's GPUs: programs that are jobs, the boot, and the time of the node's clock."""

    jobs: tuple[str, ...]
    boot: str
    at: float


def named(step: str) -> Step:
    """Return the function of a step by its name in the journal."""
    for rung in RUNGS:
        for prefix, function in ((IDLE, idle), (LOOK, look_again), (ACCEPT, accept)):
            if step == prefix + rung:
                return partial(function, rung)
    return BY_NAME[step]


def drain(context: RepairContext, names: list[str], folder: Path) -> Result:
    """Take nodes out of service by the site's drain hook, if it has one."""
    return Result(hooks.run_hook(context, "drain", names))


def resume(context: RepairContext, names: list[str], folder: Path) -> Result:
    """Return nodes to service by the site's resume hook, if it has one."""
    return Result(hooks.run_hook(context, "resume", names))


def idle(rung: Rung, context: RepairContext, names: list[str], folder: Path) -> Result:
    """Wait until no job uses the GPUs, at most as long as the run allows; return the nodes still in use →
    why.

    A node that does not answer is free only if a rung of this run was tried on it, or a drain hook, which
    waits for the scheduler's jobs, has succeeded. Writes each node's boot id for `_due`.
    """
    deadline = time.monotonic() + context.about.patience_s
    waiting, reasons, said = list(names), dict[str, str](), False
    while waiting:
        answers = use(context, waiting)
        for name, answer in answers.items():
            # A node in use that falls silent is still in use; one that is silent at first is not asked again.
            if not (isinstance(answer, Unreachable) and name in reasons):
                reasons[name] = _in_use(context, name, answer)
            if isinstance(answer, Use):
                write_text(context.place(name, rung), answer.boot)
        waiting = [
            name for name in waiting if reasons[name] and (said or not isinstance(answers[name], Unreachable))
        ]
        if not waiting or time.monotonic() >= deadline:
            break
        if not said:
            context.narrate("; ".join(f"waiting: {name}: {reasons[name]}" for name in waiting))
            said = True
        time.sleep(AGAIN_S)
    return Result({name: why for name, why in reasons.items() if why})


def _in_use(context: RepairContext, name: str, answer: Use | GpuprovError) -> str:
    """Return why a rung must not interrupt a node: jobs, or an answer that is an error; empty if it may.

    An unreachable node may be interrupted if this run has tried a rung on it, or a drain hook is stated.
    """
    if isinstance(answer, Unreachable):
        if context.progress()[name].tried or context.rollout.hooks.drain is not None:
            return ""
        return f"{answer}; whether jobs run there is not known, and no drain hook has waited for them"
    if isinstance(answer, GpuprovError):
        return str(answer)
    more = f" and {len(answer.jobs) - JOBS} more" if len(answer.jobs) > JOBS else ""
    return f"the GPUs are in use by {', '.join(answer.jobs[:JOBS])}{more}" if answer.jobs else ""


def use(context: RepairContext, names: Iterable[str]) -> dict[str, Use | GpuprovError]:
    """Ask nodes which jobs use their GPUs; return node → the answer, or the error."""
    arguments = same(names, list(HOLDERS), list(JOINING))
    answers: dict[str, Answer] = act(
        context.lock, "gpu_use", arguments, context.options, holds=context.leases, read=_read_use
    )
    return answers


def _read_use(answer: Mapping[str, Any]) -> Use:
    """Return a node's answer to `use`, without characters that a terminal would interpret.

    Raises:
        KeyError, TypeError, NodeFailed: it has another form.
    """
    jobs = tuple(on_one_line(str(job))[:100] for job in answer["jobs"])
    return Use(jobs, on_one_line(str(answer["boot"]))[:64], finite(answer["at"]))


def reset(context: RepairContext, names: list[str], folder: Path) -> Result:
    """Reset the GPUs of the faults with nvidia-smi, on the node with its units stopped meanwhile; write the
    time of each reset into the run's folder.

    A node without such GPUs fails.
    """
    patients = context.about.patients
    arguments = {
        name: [list(patients[name].gpus), *map(list, (HOLDERS, JOINING, SETTINGS)), RESET_S, UNIT_S]
        for name in names
        if patients[name].gpus
    }
    answers = act(
        context.lock,
        "gpu_reset",
        arguments,
        context.options,
        holds=context.leases,
        seconds=RESET_S + 4 * UNIT_S,
        read=lambda answer: finite(answer["at"]),
    )
    for name, at in answers.items():
        if not isinstance(at, GpuprovError):
            write_text(context.place(name, look.SINCE), repr(at))
    without = {name: "nvidia-smi lists no GPU to reset" for name in names if name not in arguments}
    return Result(failures(answers) | without)


def reboot(context: RepairContext, names: list[str], folder: Path) -> Result:
    """Reboot nodes, except those that have booted since the journal has the step."""
    waiting, _, busy = _due(context, "reboot", names)
    if not waiting:
        return Result({}, busy=busy)
    run = context.toward(rebooting(context.lock, together=len(waiting)), folder)
    result = reboot_nodes(run, waiting)
    failed = {}
    for name in waiting:
        outcome = result.outcomes.get(name)
        if outcome is not None and not outcome.ok:
            failed[name] = on_one_line(str(outcome.reason))[:300]
        elif name not in result.rebooted:
            failed[name] = "the node was not rebooted"
    return Result(failed, busy=busy)


def cycle(context: RepairContext, names: list[str], folder: Path) -> Result:
    """Switch nodes off and on by their BMC, except those that have booted since the journal has the step;
    wait until they answer, at most for the longest reboot. Nodes in use are returned as busy.
    """
    waiting, answering, busy = _due(context, "power", names)
    failed = power.cycle({name: context.bmcs.get(name) for name in waiting}, answering)
    away = [name for name in waiting if name not in failed]
    if away:
        seconds = max(context.groups[name][1].reboot.timeout_s for name in away)
        await_nodes(context.lock, away, context.options, seconds)
    return Result(failed, busy=busy)


def _due(context: RepairContext, rung: Rung, names: list[str]) -> tuple[list[str], list[str], dict[str, str]]:
    """Return the nodes on which a rung is due, those of them that answer, and why others are in use.

    It is due on a node that has not booted since the wait before the rung, as far as is known, and is still
    free: a job can have begun since, while other nodes were waited for or after the controller died.
    """
    answers, answering, booted, busy = use(context, names), list[str](), list[str](), dict[str, str]()
    for name, answer in answers.items():
        before = context.place(name, rung)
        if isinstance(answer, Unreachable):
            continue
        if isinstance(answer, Use) and before.exists() and before.read_text() not in ("", answer.boot):
            booted.append(name)
        elif why := _in_use(context, name, answer):
            busy[name] = why
        else:
            answering.append(name)
    return [name for name in names if name not in (*booted, *busy)], answering, busy


def look_again(rung: Rung, context: RepairContext, names: list[str], folder: Path) -> Result:
    """Ask the doctor again and again, within the time to settle, whether the reason for the repair is gone;
    after a reset once.

    Return node → why not, and the verdicts of the others.
    """
    deadline = time.monotonic() + (context.rollout.settle_s if rung != "reset" else 0)
    failed, data, asked = dict[str, str](), dict[str, dict[str, Any]](), list(names)
    while asked:
        for name, now in look.again(context, asked).items():
            failed.pop(name, None)
            if reason := look.not_mended(context.about.patients[name], now):
                failed[name] = reason
            else:
                data[name] = {"verdict": now.verdict}
        asked = list(failed)
        if not asked or time.monotonic() >= deadline:
            break
        time.sleep(AGAIN_S)
    return Result(failed, data)


def accept(rung: Rung, context: RepairContext, names: list[str], folder: Path) -> Result:
    """Measure nodes under load, at the level of `rollout.accept`; without one nothing is measured. See
    `accepted`.
    """
    return Result(accepted(context, names, folder))


def bundle(context: RepairContext, names: list[str], folder: Path) -> Result:
    """Write a bundle for the vendor's support of each node that stays out, with what was tried."""
    return look.bundles(context, names)


BY_NAME: Mapping[str, Step] = {
    "drain": drain,
    "resume": resume,
    "reset": reset,
    "reboot": reboot,
    "power": cycle,
    "bundle": bundle,
}

"""Active checks: a share of the fleet a week is tested under load, idle or drained nodes in turn.

A node with a job is skipped. One that is free is drained, tested, and returned to service. A journal has
the nodes before they are drained, so that the next run returns those that a killed one has left.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gpuprov.accept.run import measure_there
from gpuprov.errors import GpuprovError, InvalidInput, Refused
from gpuprov.files.runs import run_folders
from gpuprov.history.ledger import Event
from gpuprov.model.lock import Lock
from gpuprov.model.nodeset import fold
from gpuprov.model.rollout import Hook, Hooks, Rollout, portion
from gpuprov.ssh.transport import targets
from gpuprov.upgrade import hooks
from gpuprov.upgrade.context import is_of_fleet, pack
from gpuprov.upgrade.exclusive import leases_for
from gpuprov.upgrade.header import ended
from gpuprov.upgrade.journal import NAME, Journal, read
from gpuprov.upgrade.repair.context import RepairContext
from gpuprov.upgrade.repair.steps import Use, use
from gpuprov.upgrade.state import out_of_service

VERB = "accept"
DAYS = 7
BY_HAND = "return them to service by hand; the next run tries again"
DRAIN_S = 60
"""Most seconds for a drain: a node whose jobs do not end by then has some, and is returned."""


@dataclass(frozen=True)
class Share:
    """Result of a run: node → its answer, nodes that were skipped → why, and nodes that stay out → why."""

    answers: Mapping[str, Mapping[str, Any] | GpuprovError]
    skipped: Mapping[str, str]
    stuck: Mapping[str, str]


def valid_share(text: str) -> str:
    """Return a share of the fleet a week; raise InvalidInput if it is not a percentage from 1% to 100%."""
    if not re.fullmatch(r"100%|[1-9][0-9]?%", text):
        raise InvalidInput(f"--share {text}", expected="a percentage of the fleet a week, such as 25%")
    return text


def refuse_unhooked(lock: Lock) -> None:
    """Raise Refused for active checks of a fleet without a drain hook: a job could start on a node under
    test.
    """
    if lock.rollout is None or lock.rollout.hooks.drain is None:
        raise Refused(
            "no drain hook keeps jobs away from a node under test",
            do="state rollout.hooks.drain in fleet.yml and lock, or type `gpuprov accept NODES --drained`",
        )


def turn(
    names: Sequence[str], events: Iterable[Event], share: str, now: datetime | None = None
) -> tuple[list[str], int]:
    """Return the nodes in the order of their turns, oldest test first, and how many to test.

    A test without a result counts for the order, so that one node does not take the turns of all others. A
    node that was tested in the last half day is left out. The number is a day's part of the share, less if
    the week's share is nearly done, and 0 when it is.

    Args:
        names: all nodes of the fleet.
        events: the ledger of this fleet.
        share: portion of the fleet a week, such as `25%`.
    """
    moment = now or datetime.now(UTC)
    # Half a day less than a week: a daily run is not on the second.
    week, lately = ((moment - timedelta(days=days)).isoformat() for days in (DAYS - 0.5, 0.5))
    last, tested = dict.fromkeys(names, ""), set[str]()
    for event in events:
        if event.node in last and event.kind in ("accepted", "rejected", "tried"):
            last[event.node] = max(event.at, last[event.node])
            if event.kind != "tried" and event.at >= week:
                tested.add(event.node)
    wanted = max(1, portion(share, len(names)))
    done = len(tested)
    order = sorted((name for name in names if last[name] < lately), key=lambda name: last[name])
    return order, max(0, min(math.ceil(wanted / DAYS), wanted - done, len(order)))


def check_share(context: RepairContext, order: Sequence[str], count: int, level: Any, at_once: int) -> Share:
    """Test the first `count` nodes of `order` that are free, at most `at_once` out of service at a time.

    For nodes whose test has no result others follow, until twice as many were tried. It ends early if a node
    cannot be returned to service.

    Raises:
        Refused: there is no drain hook.
    """
    refuse_unhooked(context.lock)
    pack(context.folder, context.old, context.lock)
    answers: dict[str, Mapping[str, Any] | GpuprovError] = {}
    skipped: dict[str, str] = {}
    stuck: dict[str, str] = {}
    waiting = list(order)
    with Journal(context.folder / NAME) as journal, leases_for(context) as leases:
        while waiting and not stuck and (left := _left(answers, count)):
            part, waiting = _next(waiting, min(at_once, left))
            refused = {name: str(error) for name, error in leases.take(part).items()}
            free = _free(context, [name for name in part if name not in refused])
            skipped |= refused | free.skipped
            answers |= _tested(context, journal, free.names, level, skipped, stuck)
    return Share(answers, skipped, stuck)


def _left(answers: Mapping[str, Mapping[str, Any] | GpuprovError], count: int) -> int:
    """Return how many nodes are still to be tested: `count` results, from at most twice as many nodes."""
    results = sum(not isinstance(each, GpuprovError) for each in answers.values())
    return max(0, min(count - results, 2 * count - len(answers)))


@dataclass(frozen=True)
class _Free:
    """Nodes without jobs, and others → why they are skipped."""

    names: list[str]
    skipped: dict[str, str]


def _next(waiting: list[str], count: int) -> tuple[list[str], list[str]]:
    """Return the first nodes, and the rest."""
    return waiting[:count], waiting[count:]


def _free(context: RepairContext, names: list[str]) -> _Free:
    """Ask nodes for jobs on their GPUs; return those without one, and node → why it is left out (up to three
    jobs, or the error) for the others.
    """
    skipped = {}
    for name, answer in use(context, names).items():
        if not isinstance(answer, Use):
            skipped[name] = str(answer)
        elif answer.jobs:
            skipped[name] = f"in use by {', '.join(answer.jobs[:3])}"
    return _Free([name for name in names if name not in skipped], skipped)


def _tested(
    context: RepairContext,
    journal: Journal,
    names: list[str],
    level: Any,
    skipped: dict[str, str],
    stuck: dict[str, str],
) -> dict[str, Mapping[str, Any] | GpuprovError]:
    """Drain nodes, test those that are then free, and return all of them to service, also after an error;
    journalled and narrated.

    Nodes that are not free are added to `skipped`, those that could not be returned to `stuck`.
    """
    if not names:
        return {}
    journal.write("drain", "begun", names)
    try:
        busy = {name: f"drain: {why}" for name, why in hooks.run_hook(context, "drain", names).items()}
        free = _free(context, [name for name in names if name not in busy])
        skipped |= busy | free.skipped
        context.narrate(f"testing {fold(free.names)}" if free.names else "no node is free")
        nodes = targets(context.lock, free.names)
        return dict(measure_there(nodes, level, dispatch=context.options.dispatch, drained=True))
    finally:
        stuck |= back(context, journal, names)


def back(context: RepairContext, journal: Journal, names: Sequence[str]) -> dict[str, str]:
    """Put nodes back into service by the site's resume hook, and write down which are.

    Returns:
        node → why it could not be put back.
    """
    failed = hooks.run_hook(context, "resume", names)
    journal.write("resume", "done", [name for name in names if name not in failed])
    return failed


def finish(context: RepairContext) -> None:
    """Return the nodes that a killed run, whose folder the context has, left out of service.

    Raises:
        Refused: the run is still at work.
        GpuprovError: a node could not be returned; the others are.
    """
    names = left_out(context.folder)
    with Journal(context.folder / NAME) as journal, leases_for(context) as leases:
        failed = {name: str(error) for name, error in leases.take(names).items()}
        failed |= back(context, journal, [name for name in names if name not in failed])
        if failed:
            raise GpuprovError("; ".join(f"{name}: {why}" for name, why in failed.items()), do=BY_HAND)


def left_out(folder: Path) -> list[str]:
    """Return the nodes that a run has drained and not returned; [] if it has no journal; raises as `read`."""
    if not (folder / NAME).exists():
        return []
    *_, (_, out) = ("", frozenset[str]()), *out_of_service(read(folder))
    return sorted(out)


def unfinished(fleet: Path | None) -> list[Path]:
    """Return the folders of a fleet's runs that have drained nodes and not returned them, oldest first;
    raises as `left_out`.
    """
    return [folder for folder in run_folders(VERB) if is_of_fleet(folder, fleet) and left_out(folder)]


def drained_by_others() -> dict[str, str]:
    """Return the nodes that unfinished upgrades, rollbacks and repairs have drained → the run; raises as
    `left_out`.

    Those of other fleets count, too: two fleets can have the same machine, and it is only left alone.
    """
    found = {}
    for folder in run_folders("upgrade", "rollback", "repair"):
        out = left_out(folder)
        if out and not ended(read(folder)):
            found.update(dict.fromkeys(out, folder.name))
    return found


def hurried(rollout: Rollout) -> Rollout:
    """Return the rollout with a drain that ends after `DRAIN_S`: this run gives way to jobs."""
    drain: Hook | None = rollout.hooks.drain
    if drain is None:
        return rollout
    quick = drain.model_copy(update={"timeout_s": min(drain.timeout_s, DRAIN_S)})
    stated: Hooks = rollout.hooks.model_copy(update={"drain": quick})
    return rollout.model_copy(update={"hooks": stated})

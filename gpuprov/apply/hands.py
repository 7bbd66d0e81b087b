"""Changes of nodes, done here or by a worker's hand: one attempt on a shard of a run's nodes.

A hand has a lease of its own on its nodes, which follows the run's, is renewed by the worker, and passes to
the run again at the end. A worker that was frozen finds that another hand has had the node, and does nothing
more there; one that died is followed once its lease was not renewed for `HAND_S`.
"""

from __future__ import annotations

import os
import secrets
import signal
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gpuprov.apply.context import Consent, Options, RunContext
from gpuprov.apply.heard import FILE_CHARACTERS, Hearing, is_kept
from gpuprov.apply.leases import PATIENCE_S, Leases, Terms
from gpuprov.apply.node.lease import HAND_S
from gpuprov.errors import GpuprovError
from gpuprov.model.lock import Lock
from gpuprov.model.selection import narrowed
from gpuprov.runs import state_dir
from gpuprov.ssh import elsewhere

V = TypeVar("V")
R = TypeVar("R")
Change = Callable[[RunContext, Mapping[str, V]], Mapping[str, R]]
MARGIN_S = 10.0
"""The worker stops so long before the node would let another hand follow."""


@dataclass(frozen=True)
class _Order:
    """What a worker needs of a run. `family` is the run that holds the leases, for `seconds`; None where
    nobody does."""

    lock: Lock
    name: str
    family: str | None
    seconds: float
    options: Options
    consent: Consent


def change(
    work: Change[V, R], run: RunContext, each: Mapping[str, V], *, answer: Any
) -> dict[str, R | GpuprovError]:
    """Change nodes, here or by workers' hands.

    Args:
        work: it is given a run whose folder, leases and listeners are those of the place where it is done.
        each: node → what the work needs for it.
        answer: the type of a result, see `elsewhere.spread`.

    Returns:
        node → its result, or why nothing was done there.
    """
    if not each:
        return {}
    if not elsewhere.is_engaged():
        return dict(work(run, each))
    family, terms = (run.leases.run, run.leases.terms) if run.leases else (None, Terms())
    options = replace(run.options, become_password=None)  # it does not go to workers

    def part(names: Collection[str]) -> elsewhere.Work[V, R | GpuprovError]:
        lock = narrowed(run.lock, names)
        order = _Order(lock, run.id, family, terms.seconds, options, run.consent)
        return partial(_by_hand, work, order)

    hear = Hearing(run).take
    found = dict(elsewhere.spread(part, each, answer=answer, hear=hear, changes=True))
    return {name: found[name] for name in each if name in found}


def _by_hand(work: Change[V, R], order: _Order, each: Mapping[str, V]) -> dict[str, R | GpuprovError]:
    """On a worker: take the nodes, do the work on those that could be had, and pass them back to the run."""
    attempt = elsewhere.attempt()
    assert attempt is not None  # noqa: S101
    tell = attempt.tell
    with _folder(f"{order.name}-{attempt.number}") as folder:
        run = RunContext(
            narrowed(order.lock, each),
            folder,
            order.options,
            order.consent,
            lambda event: tell({"event": event}),
            lambda line: tell({"line": line}),
        )
        with _stopped_on_demand(folder, attempt.stop):
            try:
                return _leased(work, run, order, attempt.number, each)
            finally:
                for file, text in _files(folder):
                    tell({"file": file, "text": text})


def _leased(
    work: Change[V, R], run: RunContext, order: _Order, number: int, each: Mapping[str, V]
) -> dict[str, R | GpuprovError]:
    if order.family is None:
        return dict(work(run, each))
    terms = Terms(order.seconds, hold_s=HAND_S - MARGIN_S)
    hand = f"{order.family}/{number}.{secrets.token_hex(2)}"
    how = order.options
    with Leases(
        [run.lock], run.folder, forks=how.forks, password=how.become_password, terms=terms, run=hand
    ) as leases:
        errors: dict[str, R | GpuprovError] = dict(leases.take(each, patience_s=PATIENCE_S))
        ours = {name: asked for name, asked in each.items() if name not in errors}
        return errors | (dict(work(replace(run, leases=leases), ours)) if ours else {})


@contextmanager
def _folder(name: str) -> Iterator[Path]:
    """A folder of a worker's own, which goes with the work: what is in it is told before."""
    above = state_dir() / "hands"
    above.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(prefix="", dir=above, ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch) / name
        folder.mkdir()
        yield folder


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield what Ansible was given and said, of what the run keeps."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and is_kept(str(inside)) and path.stat().st_size <= FILE_CHARACTERS:
            yield str(inside), path.read_text(errors="replace")


@contextmanager
def _stopped_on_demand(folder: Path, stop: threading.Event) -> Iterator[None]:
    """End Ansible when the controller wants no more of it: a play ends between two tasks."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            if stop.is_set():
                for process in ansible_at_work(folder):
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGTERM)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def ansible_at_work(folder: Path) -> list[int]:
    """Ansible's own processes that write events into a folder; ssh masters they left are none."""
    mark = f"GPUPROV_EVENTS={folder}/".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = mark in (process / "environ").read_bytes()
            if ours and b"ansible-playbook" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue  # ended meanwhile, or another user's
    return found

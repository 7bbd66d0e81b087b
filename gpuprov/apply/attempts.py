"""Changes of nodes, by the controller itself or by workers: a worker attempt changes a part of a run's nodes.

An attempt holds its own lease on each of its nodes. The lease replaces the run's, is renewed by the worker,
and returns to the run at the end. A worker that was suspended finds that a later attempt has held the node,
and changes nothing more there. A worker that died is replaced once its lease was not renewed for `ATTEMPT_S`.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import stat
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gpuprov.apply.context import Consent, Options, RunContext
from gpuprov.apply.lease_manager import PATIENCE_S, LeaseManager, Terms
from gpuprov.apply.node.lease import ATTEMPT_S
from gpuprov.apply.worker_messages import FILE_CHARACTERS, WorkerMessages, is_kept
from gpuprov.errors import GpuprovError
from gpuprov.files.runs import state_dir
from gpuprov.files.writing import make_folders
from gpuprov.model.lock import Lock
from gpuprov.model.selection import for_worker, narrowed
from gpuprov.ssh.dispatch import Work, current_attempt

V = TypeVar("V")
R = TypeVar("R")
Change = Callable[[RunContext, Mapping[str, V]], Mapping[str, R]]
MARGIN_S = 10.0
"""Seconds by which a worker stops before the node would give the lease to another attempt."""


@dataclass(frozen=True)
class _Order:
    """Data of a run for a worker. `family` is the run that holds the leases, each for `seconds`; None if the
    run has no leases."""

    lock: Lock
    name: str
    family: str | None
    seconds: float
    options: Options
    consent: Consent


def change(
    work: Change[V, R], run: RunContext, each: Mapping[str, V], *, answer: Any
) -> dict[str, R | GpuprovError]:
    """Change nodes, on this machine, or on workers if the run has any.

    Args:
        work: the change; its run has the folder, leases and listeners of the machine that does the work.
        each: node → input of the work for it.
        answer: the type of a result, see `Dispatch.spread`.

    Returns:
        node → its result, or the error if nothing was done there; {} without nodes.

    Raises:
        CrewLost: as `Dispatch.spread`.
    """
    if not each:
        return {}
    dispatch = run.options.dispatch
    if dispatch.crew is None:
        return dict(work(run, each))
    family, terms = (run.leases.run, run.leases.terms) if run.leases else (None, Terms())
    options = replace(run.options, dispatch=dispatch.here())

    def part(names: Collection[str]) -> Work[V, R | GpuprovError]:
        lock = for_worker(run.lock, names)
        order = _Order(lock, run.id, family, terms.seconds, options, run.consent)
        return partial(_attempt, work, order)

    hear = WorkerMessages(run).take
    found = dict(dispatch.spread(part, each, answer=answer, hear=hear, changes=True))
    return {name: found[name] for name in each if name in found}


def _attempt(work: Change[V, R], order: _Order, each: Mapping[str, V]) -> dict[str, R | GpuprovError]:
    """Lease the nodes, do the work on the leased ones, and return the leases to the run; runs on a worker.

    Events and lines are sent to the controller at once, the files that the run keeps at the end.

    Returns:
        node → its result, or the error if it could not be leased.
    """
    attempt = current_attempt()
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
    """Lease nodes for this attempt, do the work on the leased ones, and return the leases; without leases of
    the run, do the work on all.

    Returns:
        node → its result, or the error if it could not be leased.
    """
    if order.family is None:
        return dict(work(run, each))
    terms = Terms(order.seconds, hold_s=ATTEMPT_S - MARGIN_S)
    attempt = f"{order.family}/{number}.{secrets.token_hex(2)}"
    with LeaseManager(
        [run.lock], run.folder, dispatch=order.options.dispatch, terms=terms, run=attempt
    ) as leases:
        errors: dict[str, R | GpuprovError] = dict(leases.take(each, patience_s=PATIENCE_S))
        ours = {name: asked for name, asked in each.items() if name not in errors}
        return errors | (dict(work(replace(run, leases=leases), ours)) if ours else {})


@contextmanager
def _folder(name: str) -> Iterator[Path]:
    """Yield a new folder for an attempt in the worker's state folder; remove it at the end. Raises as
    `state_dir`.
    """
    above = state_dir() / "attempts"
    make_folders(above)
    with tempfile.TemporaryDirectory(prefix="", dir=above, ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch) / name
        make_folders(folder)
        yield folder


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield relative path and text of each file that the run keeps, Ansible's input and output.

    Files with more than `FILE_CHARACTERS` bytes, also as JSON, are left out.
    """
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and is_kept(str(inside)) and path.stat().st_size <= FILE_CHARACTERS:
            text = path.read_text(errors="replace")
            if len(json.dumps(text)) <= FILE_CHARACTERS:
                yield str(inside), text


@contextmanager
def _stopped_on_demand(folder: Path, stop: threading.Event) -> Iterator[None]:
    """Terminate Ansible as soon as the controller cancels the attempt, until the block ends.

    A play then ends between two tasks.
    """
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
    """Return the ids of this user's processes of Ansible that write events into a folder, without its ssh
    masters.

    Root can read the environment of others' processes, too, in which they can state any folder.
    """
    mark = f"GPUPROV_EVENTS={folder}/".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = _is_ours(process) and mark in (process / "environ").read_bytes()
            if ours and b"ansible-playbook" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue  # ended meanwhile, or owned by another user
    return found


def _is_ours(process: Path) -> bool:
    """Return whether this user has started a process: not one of a program such as su, which has its owner's
    rights and the environment of any user who starts it.

    Raises:
        OSError: it has ended, or is another user's.
    """
    program = (process / "exe").stat()
    return process.stat().st_uid == os.geteuid() and not program.st_mode & stat.S_ISUID

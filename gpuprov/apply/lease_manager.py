"""Leases of a run on its nodes: taken before any change, renewed during the run, given back at the end.

A lease expires some time after its last renewal, by the node's clock; until then the node reports its holder
to every other run. The run computes the earliest possible end of a lease by the controller's clock, from the
time before its request. After that end, or when the node reports that the lease is not the run's, the run
does nothing more on the node.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gpuprov.apply.lease import HeldByWorker, Lease, read_lease
from gpuprov.apply.node.lease import family
from gpuprov.apply.remote import Answer, ask_nodes, same
from gpuprov.errors import GpuprovError, InvalidInput, NodeFailed, Refused, Unreachable
from gpuprov.files.mutex import Locked, wait_for
from gpuprov.files.runs import known_run, started_by
from gpuprov.model.documents import write_text
from gpuprov.model.exclusive import refusal
from gpuprov.model.lock import Lock
from gpuprov.ssh.dispatch import DIRECT, CrewLost, Dispatch
from gpuprov.ssh.transport import targets
from gpuprov.untrusted.stated import stated_json

MODULES = (
    "gpuprov.probe.node.base",
    "gpuprov.probe.node.main",
    "gpuprov.files.mutex",
    "gpuprov.apply.node.lease",
    "gpuprov.apply.node.main",
)
LOOKS = 20
"""Checks per duration of a lease; each check renews the leases that are older than a quarter of it."""
JOIN_S = 5.0
AGAIN_S = 2.0
PATIENCE_S = 1800.0
"""Seconds that a run waits for its own worker attempts or Ansible processes that a dead controller left."""
FILE = "leases.json"
"""File in the folder of a run that has leases. Ansible reads it too: `plugins/plugin_utils/leased.py`."""


@dataclass(frozen=True)
class Terms:
    """Duration of leases.

    Attributes:
        seconds: time from the last renewal to the end of a lease, for example if the controller dies.
        resumable: whether the run can be resumed after an error: then its leases are not given back, and no
            other run can take them before they expire.
        hold_s: seconds after a renewal for which a worker attempt relies on a lease, if less than `seconds`.
    """

    seconds: float = 600.0
    resumable: bool = False
    hold_s: float | None = None

    @property
    def sure_s(self) -> float:
        """Seconds after a renewal for which the run may rely on a lease; fewer for a worker attempt."""
        return self.seconds if self.hold_s is None else self.hold_s


class LeaseManager:
    """Leases on nodes for one run, renewed in the background inside of a `with` block.

    At its end they are given back, except after an error in a resumable run. A resumed run waits for Ansible
    processes that its earlier controller started, and is `Refused` if they take longer than `PATIENCE_S`.

    Args:
        locks: connections to the nodes: those of the first lock, or if they fail those of the next.
        folder: the run's folder; its name is the run's id.
        dispatch: how the nodes are reached, including sudo's password, if it requires one.
        terms: duration of the leases, by default 600 s.
        run: the worker attempt (`gpuprov.apply.attempts`) that holds the leases, if not the run itself.
    """

    def __init__(
        self,
        locks: Sequence[Lock],
        folder: Path,
        *,
        dispatch: Dispatch = DIRECT,
        terms: Terms | None = None,
        run: str | None = None,
    ) -> None:
        self._locks, self._dispatch = locks, dispatch
        self.file, self.run, self.terms = folder / FILE, run or folder.name, terms or Terms()
        self.handle: int | None = None
        """Handle of the run's folder, locked while this controller or its Ansible is alive: see `is_over`."""
        self._until: dict[str, float] = {}
        self._lost: dict[str, str] = {}
        self._silent: dict[str, GpuprovError] = {}
        self._leaving, self._mutex = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._renew_in_time, daemon=True)

    def __enter__(self) -> Self:
        """Lock the run's folder and start the thread that renews leases; refuse if the folder stays locked
        for `PATIENCE_S` seconds.
        """
        self.handle = os.open(self.file.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            wait_for(self.handle, str(self.file.parent), PATIENCE_S)
        except Locked as locked:
            os.close(self.handle)
            raise refusal(locked, self.file.parent) from None
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the renewal and release the leases; an exception in a resumable run leaves them."""
        self._leaving.set()
        if kind is None or not self.terms.resumable:
            self.release()
        self._thread.join(JOIN_S)
        if self.handle is not None:
            os.close(self.handle)

    def take(self, names: Iterable[str], *, patience_s: float = 0.0) -> dict[str, GpuprovError]:
        """Lease nodes, also those that an ended run of this controller has left leased.

        Args:
            patience_s: seconds to wait for nodes that another attempt of the same run holds.

        Returns:
            node → the error if it could not be leased: `Refused` if another run holds it.
        """
        errors, deadline = self._take(list(names)), uptime() + patience_s
        while uptime() < deadline and not self._leaving.is_set():
            by_workers = [name for name, error in errors.items() if isinstance(error, HeldByWorker)]
            if not by_workers:
                break
            time.sleep(AGAIN_S)
            for name in by_workers:
                del errors[name]
            errors |= self._take(by_workers)
        return errors

    def _take(self, names: Sequence[str]) -> dict[str, GpuprovError]:
        """Lease nodes once, and return the errors as `take` does. No nodes give {}.

        Leases that ended runs of this controller have left are released first. The leases are recorded, also
        in the file for Ansible.
        """
        if not names:
            return {}
        self._write()
        asked = uptime()
        answers = self._ask("take", names)
        left = {name: lease.family for name, lease in self._others(answers).items() if is_abandoned(lease)}
        if left:
            self._act("release", {name: [run] for name, run in left.items()})
            asked = uptime()
            answers |= self._ask("take", left)
        with self._mutex:
            for name, answer in answers.items():
                if isinstance(answer, Lease) and answer.run == self.run:
                    self._until[name] = asked + self.terms.sure_s
                    self._silent.pop(name, None)
                elif isinstance(answer, GpuprovError):
                    self._silent[name] = answer
        self._write()
        self._renew(self._old(names))  # where one node was slow to be leased, the others' leases are old
        errors = {name: answer for name, answer in answers.items() if isinstance(answer, GpuprovError)}
        others = self._others(answers).items()
        return errors | {name: lease.refusal(family(self.run)) for name, lease in others}

    def prove(self, names: Iterable[str]) -> dict[str, GpuprovError]:
        """Ask nodes whether this run holds them; try once more to lease those that could not be leased.

        Returns:
            node → the error, for nodes whose lease is lost or another run's; not if a node does not answer.
        """
        names = list(names)
        ours = [name for name in names if name in self._until]
        self._renew(ours)
        refused = self.take(set(names) - {*ours, *self._lost})
        result = {name: error for name, error in refused.items() if isinstance(error, Refused)}
        return result | {name: NodeFailed(self._lost[name]) for name in names if name in self._lost}

    def lost(self, names: Iterable[str]) -> dict[str, NodeFailed]:
        """Return node → the error, for nodes that this run does not hold, or no longer.

        Leases that could not be renewed in time are renewed once more: a node that boots for longer than that
        still belongs to the run, unless another run has leased it meanwhile.
        """
        names, now = list(names), uptime()
        self._renew([name for name in names if self._until.get(name, now) < now])
        now = uptime()
        with self._mutex:
            return {name: error for name in names if (error := self._loss(name, now)) is not None}

    def require(self, name: str) -> None:
        """Check that this run holds a node.

        Raises:
            NodeFailed: it does not, or no longer.
        """
        if error := self.lost([name]).get(name):
            raise error

    def release(self) -> None:
        """Give the leases back, those of a worker attempt to its run; remove the file of the leases.

        On a node that does not answer, the lease expires.
        """
        self._leaving.set()
        unsure = {name for name, error in self._silent.items() if not isinstance(error, Unreachable)}
        ours = sorted({*self._until, *unsure})
        if self.run == family(self.run):
            self._act("release", same(ours, self.run))
        else:
            self._act("pass_on", same(ours, self.run, started_by(), self.terms.seconds))
        with self._mutex:
            self._until.clear()
            self._silent.clear()
            self.file.unlink(missing_ok=True)

    def _loss(self, name: str, now: float) -> NodeFailed | None:
        """Return the error if this run does not hold a node at a time (`uptime`); None if it does."""
        if name in self._lost:
            return NodeFailed(self._lost[name])
        if name not in self._until:
            return NodeFailed("it is not leased to this run")
        if now <= self._until[name]:
            return None
        why = self._silent.get(name, "this controller was suspended")
        return NodeFailed(f"its lease could not be renewed in time: {why}")

    def _renew_in_time(self) -> None:
        """Renew each lease once a quarter of its time has passed, until the block ends; nodes that did not
        answer are asked again at each check.
        """
        pool = ThreadPoolExecutor(self._dispatch.forks)
        renewals: dict[str, Future[None]] = {}
        while not self._leaving.wait(self.terms.sure_s / LOOKS):
            renewals = {name: renewal for name, renewal in renewals.items() if not renewal.done()}
            due = [name for name in self._old(list(self._until)) if name not in renewals]
            renewals |= self._begin_renewals(pool, due)
        pool.shutdown(cancel_futures=True)

    def _old(self, names: Iterable[str]) -> list[str]:
        """Return the nodes whose lease has used a quarter of its time."""
        old = uptime() + 0.75 * self.terms.sure_s
        with self._mutex:
            return [name for name in names if self._until.get(name, old) < old]

    def _renew(self, names: Sequence[str]) -> None:
        """Renew leases once, and wait for the last answer."""
        if not names:
            return
        pool = ThreadPoolExecutor(self._dispatch.forks)
        try:
            for renewal in self._begin_renewals(pool, names).values():
                renewal.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _begin_renewals(self, pool: ThreadPoolExecutor, names: Sequence[str]) -> dict[str, Future[None]]:
        """Begin to renew leases, each on its own, so that no lease depends on another node's answer; return
        node → its renewal.

        Workers are asked once for all nodes: they divide them among themselves. Only leases of the whole run
        are renewed through them, and these last for many times the limit of an answer.
        """
        if self._dispatch.crew is None:
            return {name: pool.submit(self._renew_now, [name]) for name in names}
        return dict.fromkeys(names, pool.submit(self._renew_now, names)) if names else {}

    def _renew_now(self, names: Sequence[str]) -> None:
        """Renew leases once, together; record nodes that do not answer, and nodes that the run no longer
        holds, also in the file for Ansible.
        """
        asked = uptime()
        answers = self._ask("renew", names)
        with self._mutex:
            for name, answer in answers.items():
                if name not in self._until:
                    continue  # given back meanwhile
                if isinstance(answer, GpuprovError):
                    self._silent[name] = answer
                elif self._is_ours(answer):
                    self._until[name] = max(asked + self.terms.sure_s, self._until[name])
                    self._silent.pop(name, None)
                else:
                    del self._until[name]
                    now = f"it is {answer}" if answer else "no run has it now"
                    self._lost[name] = f"another run took its lease while this one was at work; {now}"
        self._write()

    def _ask(self, act: str, names: Iterable[str]) -> dict[str, Answer]:
        """Return node → the lease that holds there, None without a lease, or the error."""
        return self._act(act, same(names, self.run, started_by(), self.terms.seconds))

    def _act(self, act: str, arguments: Mapping[str, Sequence[Any]]) -> dict[str, Answer]:
        """Run an act of `gpuprov.apply.node.main` on nodes; return node → the lease in its answer, or error.

        A node that is unreachable by one lock's connection is tried by that of the next.
        """
        questions = {name: {"act": act, "arguments": list(given)} for name, given in arguments.items()}
        answers: dict[str, Answer] = {}
        tried: dict[str, object] = {}
        for lock in self._locks:
            ways = [
                target
                for target in targets(lock, questions)
                if isinstance(answers.get(target.name, Unreachable("")), Unreachable)
                and tried.get(target.name) != target
            ]
            tried |= {target.name: target for target in ways}
            how: dict[str, Any] = {"dispatch": self._dispatch, "read": read_lease}
            try:
                answers |= ask_nodes(MODULES, ways, questions, **how)
            except CrewLost as lost:  # it ends changes in progress, but not a query or a release of leases
                answers |= {target.name: lost for target in ways}
        return answers

    def _others(self, answers: Mapping[str, Answer]) -> dict[str, Lease]:
        """Return the leases of other holders, including other worker attempts of this run."""
        return {
            name: answer
            for name, answer in answers.items()
            if isinstance(answer, Lease) and answer.run != self.run
        }

    def _is_ours(self, answer: Answer) -> bool:
        """Return whether a lease is this run's or one of its worker attempts'."""
        return isinstance(answer, Lease) and self.run in (answer.run, answer.family)

    def _write(self) -> None:
        """Write down for Ansible's process until when the leases hold.

        After an error in writing, Ansible stops when the last lease that it knows expires.
        """
        with self._mutex, suppress(InvalidInput):
            if self._leaving.is_set():
                return
            result = {"resumable": self.terms.resumable, "until": self._until, "lost": self._lost}
            write_text(self.file, json.dumps(result))


def uptime() -> float:
    """Return the seconds since this machine's boot, including suspended time; equal in all processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def is_abandoned(lease: Lease) -> bool:
    """Return whether the run of a lease has ended and leaves nothing to resume, and no worker attempt renews
    the lease.

    Raises as `is_over`.
    """
    return is_over(lease.family) and not lease.is_renewed


def is_over(run_id: str) -> bool:
    """Return whether a run of this controller has ended and leaves nothing to resume; raises as `known_run`.

    Its leases may then be taken. They remain if the controller was killed, or if the node was unreachable
    when the lease was given back. False for a run that this controller does not know, and for one whose file
    cannot be read.
    """
    folder = known_run(run_id)
    if folder is None or _is_alive(folder):
        return False
    try:
        return not stated_json((folder / FILE).read_bytes())["resumable"]
    except FileNotFoundError:
        return True  # it gave its leases back
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _is_alive(folder: Path) -> bool:
    """Return whether the run's controller, or an Ansible process that it started, is alive: holds the lock of
    its folder.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(handle)

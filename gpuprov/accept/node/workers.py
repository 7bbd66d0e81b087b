"""Worker processes: one that hangs in the driver is killed, and the others continue."""

import contextlib
import ctypes
import json
import os
import selectors
import signal
import sys
import time
import traceback

from gpuprov.probe.node.base import Failed
from gpuprov.probe.node.variables import MPS_FOLDER, NO_MPS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpuprov.probe.node.base import Values

HEARTBEAT = 2.0
"""Seconds between two empty lines to the controller."""
PR_SET_PDEATHSIG = 1
"""Operation of prctl(2): the signal that a process gets when its parent ends."""


class Worker:
    """A child process that reads orders, one a line, and writes one line of answer each.

    `answer` is the last answer, `lines` are all of them, `busy` is whether one is outstanding, and `stuck`
    whether the process was killed and has not ended.

    Args:
        work: called in the child with each order's name and arguments.
        free: call it once with the descriptor of the answers; it writes lines without orders.
    """

    def __init__(self, name: str, work: "Callable[..., Any]", free: bool = False) -> None:
        self.name, self.answer, self.lines = name, None, []  # type: str, Any, list[Any]
        self.busy, self.stuck, self._buffer = free, False, b""
        orders, self._orders = os.pipe()
        self.answers, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._orders)
            os.close(self.answers)
            _child(orders, answers, work, free)
        os.close(orders)
        os.close(answers)
        self.alive = True

    def order(self, name: str, arguments: "Any") -> None:
        """Send an order without waiting for the answer.

        If the process has ended unnoticed, the worker is ended, and its answer is that error. Must not be
        called if `alive` is False: the pipes are closed, and `busy` would remain True.
        """
        self.answer, self.busy = None, True
        try:
            os.write(self._orders, (json.dumps([name, arguments]) + "\n").encode())
        except OSError:
            self.end("it is gone")

    def take(self) -> None:
        """Read once from the process, waiting for something to read, and store the complete answers.

        After a part of an answer there may be none, and `busy` remains. If the process has ended, the worker
        is ended; its answer is that error if one is outstanding, and otherwise the last answer.
        """
        chunk = os.read(self.answers, 65536)
        if not chunk:
            self.end("it ended by itself")
            return
        whole, _, self._buffer = (self._buffer + chunk).rpartition(b"\n")
        for line in whole.splitlines():
            self.answer, self.busy = json.loads(line.decode("utf-8", "replace")), False
            self.lines.append(self.answer)

    def kill(self) -> None:
        """Kill the process, if it is alive, without waiting for its end; `end` must follow."""
        if self.alive:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def end(self, why: str = "") -> None:
        """Kill the process, if it is alive, and wait for its end, at most a second; `why` becomes its answer
        if one is outstanding.
        """
        if not self.alive:
            return
        self.kill()
        self.alive = False
        status = 0
        for _ in range(50):  # a process that sleeps in the kernel is not waited for
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            time.sleep(0.02)
        self.stuck = not pid
        if self.busy:
            ended = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            self.answer, self.busy = (
                {"error": why + (" (signal {})".format(ended) if ended not in (0, 9) else "")},
                False,
            )
        os.close(self._orders)
        os.close(self.answers)


def _child(orders: int, answers: int, work: "Callable[..., Any]", free: bool) -> None:
    """Run the child process and never return: it dies with its parent, and its own output is discarded."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.environ.setdefault(MPS_FOLDER, NO_MPS)
        silent = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(silent, number)
        if free:
            work(answers)
            os._exit(0)
        with os.fdopen(orders) as lines:
            for line in lines:
                name, arguments = json.loads(line)
                result = _tried(work, name, arguments)
                os.write(answers, (json.dumps(result) + "\n").encode())
    except BaseException:  # noqa: BLE001
        os._exit(1)
    os._exit(0)


def _tried(work: "Callable[..., Any]", name: str, arguments: "Any") -> "Values":
    """Run `work`; return its `value` or its `error`, with the times `begun` and `ended`.

    A value with infinity or NaN is an error: with it the whole document would not be JSON.
    """
    begun = time.monotonic()
    try:
        result = {"value": work(name, arguments)}  # type: Values
        json.dumps(result, allow_nan=False)
    except Failed as failed:
        result = {"error": str(failed)}
    except Exception as error:  # noqa: BLE001
        place = traceback.extract_tb(sys.exc_info()[2])[-1]
        result = {"error": "{}: {} ({} line {})".format(type(error).__name__, error, place[2], place[1])}
    return dict(result, begun=begun, ended=time.monotonic())


class Gone(Exception):
    """Error: the controller no longer waits for the answer."""


class Crew:
    """All workers of one run.

    Args:
        deadline: of time.monotonic(), after which everything is killed.
        beat: write an empty line at an interval, to notice that the controller is gone.
    """

    def __init__(self, deadline: float, beat: bool) -> None:
        self._deadline, self._beat = deadline, beat
        self._workers = []  # type: list[Worker]
        self._said = time.monotonic()

    def hire(self, name: str, work: "Callable[..., Any]", free: bool = False) -> Worker:
        """Start one more worker and return it."""
        worker = Worker(name, work, free)
        self._workers.append(worker)
        return worker

    def ask(self, workers: "list[Worker]", name: str, arguments: "Any", seconds: float) -> "list[Any]":
        """Give workers the same order at the same time and return their answers; kill those that are late.

        A worker that failed, or has ended before, has `error` as answer.

        Args:
            seconds: time limit for all of them.

        Raises:
            Gone: the controller is gone.
        """
        self.begin(workers, name, arguments)
        return self.finish(workers, seconds)

    def begin(self, workers: "list[Worker]", name: str, arguments: "Any") -> None:
        """Give workers the same order without waiting for the answers; `finish` must follow. One that has
        ended has an error as its answer.
        """
        for worker in workers:
            if worker.alive:
                worker.order(name, arguments)
            elif worker.answer is None or "error" not in worker.answer:
                worker.answer = {"error": "its process ended before the request"}

    def finish(self, workers: "list[Worker]", seconds: float) -> "list[Any]":
        """Wait for the answers to orders that `begin` gave, as `ask` does, and return them.

        Args:
            seconds: time limit from now.

        Raises:
            Gone: the controller is gone.
        """
        until = min(time.monotonic() + seconds, self._deadline)
        while any(worker.busy for worker in workers) and time.monotonic() < until:
            self._listen(min(0.5, max(0.0, until - time.monotonic())))
        for worker in workers:
            if worker.busy:
                worker.end("no answer in {:.0f} s: the GPU or its driver hangs".format(seconds))
        return [worker.answer for worker in workers]

    def stuck(self) -> "list[int]":
        """Return the ids of the workers that were killed and have not ended; they may hold a GPU."""
        return [worker.pid for worker in self._workers if worker.stuck]

    def _listen(self, seconds: float) -> None:
        """Read answers until one arrives or `seconds` are over, and write the heartbeat if it is due.

        Raises:
            Gone: the controller is gone.
        """
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                if worker.alive:
                    selector.register(worker.answers, selectors.EVENT_READ, worker)
            for key, _ in selector.select(seconds):
                key.data.take()
        if self._beat and time.monotonic() - self._said > HEARTBEAT:
            self._said = time.monotonic()
            try:
                os.write(1, b"\n")
            except OSError:
                raise Gone from None

    def end(self) -> None:
        """Kill all workers that are alive."""
        end_all(self._workers)


def end_all(workers: "list[Worker]") -> None:
    """Kill workers, if they are alive: all at once, as a process takes long to free its GPU."""
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.end()

"""Progress on the nodes as lines for people."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gpuprov.model.nodeset import fold
from gpuprov.report.live import live_line
from gpuprov.untrusted import on_one_line

SLOW_S = 10.0
SILENCE_S = 60.0
"""Seconds after which a task that still runs is reported again, without a terminal."""
LINES, DIFF_LINES = 40, 400
"""Maximum numbers of lines that are reported of a message and of a difference."""
LINE = 4000
"""Maximum number of characters of such a line."""
WAITING = 16 << 20
"""Number of characters of results that wait for the start of the next task; then they are reported."""
TOLD = ("changed", "failed", "unreachable")
REBOOT, VERIFY = "reboot", "verify"
"""Steps after the roles."""


class Progress:
    """Converter of Ansible's events to lines: each role as it starts, each task that changed or failed.

    Args:
        say: called with each line.
        diffs: show changes in files; equal changes on several nodes once.
        steps: step → its nodes: the roles to run, `REBOOT` and `VERIFY`, in order. If they are known, lines
            have the number of their step, and a role that is only a part of others, such as `packages`, gets
            no line.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        diffs: bool = False,
        steps: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._say, self._diffs, self._steps = say, diffs, dict(steps or {})
        self._step = 0  # number of the current one, from 1
        self._started = time.monotonic()
        self._roles: dict[object, str] = {}
        self._entered: dict[str, set[object]] = {}
        self._task = self._role = ""  # the current task and role
        self._began = 0.0
        self._done = 0
        self._results: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
        self._waiting = 0
        self._quiet_since = time.monotonic()

    def event(self, event: dict[str, Any]) -> None:
        """Process one event of the callback: `task` is a result of a node, each other one is the start of a
        task.

        Results are reported when the next task starts, equal ones of several nodes together.
        """
        if event.get("event") != "task":
            self._tell_results()
            self._task, self._role = str(event.get("task") or ""), str(event.get("role") or "")
            self._began, self._done = time.monotonic(), 0
            if str(event.get("play")).lower().startswith(REBOOT):
                self._reach(REBOOT)
        role = event.get("role")
        if role and role != self._roles.get(event.get("stream")):
            self._enter(str(role), event.get("stream"))
        if event.get("event") == "task":
            self._done += 1
        status = event.get("status")
        if status in TOLD:
            said = "" if status == "changed" else str(event.get("msg"))
            alike = (status, said, str(event.get("diff") or ""))
            size = len(said) + len(alike[2])
            if self._waiting + size > WAITING:
                self._tell_results()
            self._waiting += size
            self._results.setdefault(alike, []).append(event)

    def _enter(self, role: str, stream: object) -> None:
        """Report the start of a role, once if plays run it in parallel, and once if the steps are known."""
        self._roles[stream] = role
        others = self._entered.setdefault(role, set())
        if not others or stream in others:
            others.clear()
            if not self._steps:
                self._tell(f"{role} …")
            elif self._reach(role):
                self._tell(f"{role} … ({self._step} of {len(self._steps)})")
        others.add(stream)

    def _reach(self, step: str) -> bool:
        """Make a later step the current one; return False for another one."""
        number = list(self._steps).index(step) + 1 if step in self._steps else 0
        if number <= self._step:
            return False
        self._step = number
        return True

    def at(self) -> str:
        """Return the current task, empty between tasks.

        `docker: Install Docker, 3:05, done on 1 node`; with known steps `3 of 9 after 7:12  docker on
        gpu[1-2]: Install Docker, 3:05, done on 1 node`.
        """
        if not self._task:
            return ""
        done = f", done on {self._done} node{'s' if self._done > 1 else ''}" if self._done else ""
        what = f"{self._role}{self._where()}: {self._task}" if self._role else f"{self._task}{self._where()}"
        step = f"{self._step} of {len(self._steps)} after {_clock(self._started)}  " if self._step else ""
        return on_one_line(f"{step}{what}, {_clock(self._began)}{done}")

    def _where(self) -> str:
        """Return ` on NODES` with the nodes of the current role, or step; empty if it is not known."""
        if not self._step:
            return ""
        return f" on {fold(self._steps.get(self._role) or list(self._steps.values())[self._step - 1])}"

    def still(self) -> None:
        """Report the current task if nothing was reported for `SILENCE_S`."""
        if time.monotonic() - self._quiet_since >= SILENCE_S and (line := self.at()):
            self._tell(f"    still at {line}")

    @contextmanager
    def alive(self, step: str = "") -> Iterator[Progress]:
        """Show the current task meanwhile: on an updated line of a terminal, or by a line a minute.

        Args:
            step: a step without tasks, such as `VERIFY`, which is the current task.
        """
        if step:
            self._reach(step)
            self._task, self._role = step, ""
            self._began, self._done = time.monotonic(), 0
        if sys.stderr.isatty():
            with live_line(self.at):
                yield self
            return
        over = threading.Event()
        thread = threading.Thread(target=self._remind, args=(over,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            over.set()
            thread.join()

    def _remind(self, over: threading.Event) -> None:
        """Call `still` every second until `over` is set."""
        while not over.wait(1):
            self.still()

    def _tell_results(self) -> None:
        """Report the collected results, and forget them; a task that took `SLOW_S` or more has its
        seconds.
        """
        results, self._results, self._waiting = self._results, {}, 0
        for (status, said, diff), events in results.items():
            seconds = max(float(event.get("seconds") or 0) for event in events)
            took = f" ({seconds:.0f} s)" if seconds >= SLOW_S else ""
            names = fold(str(event.get("host")) for event in events)
            first, *more = _beginning(said, LINES) or [""]
            self._tell(f"    {names}  {status}  {events[0].get('task')}{took}{f': {first}' if first else ''}")
            for line in [*more, *(_beginning(diff, DIFF_LINES) if self._diffs else ())]:
                self._tell(f"        {line}")

    def _tell(self, line: str) -> None:
        """Report a line, and restart the time of silence."""
        self._quiet_since = time.monotonic()
        self._say(line)


def _clock(since: float) -> str:
    """Return the time since a moment of the monotonic clock, as minutes and seconds."""
    minutes, seconds = divmod(int(time.monotonic() - since), 60)
    return f"{minutes}:{seconds:02}"


def _beginning(text: str, most: int) -> list[str]:
    """Return the first lines of a text, each up to `LINE` characters, and after `most` lines the number of
    the others and their place.
    """
    lines = text.splitlines()
    left = len(lines) - most
    shown = [line if len(line) <= LINE else f"{line[:LINE]}…" for line in lines[:most]]
    if left <= 0:
        return shown
    return [*shown, f"… {left} more lines: in *-events.jsonl among the logs of this run"]

"""Progress on the nodes as lines for people."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gpuprov.model.nodeset import fold
from gpuprov.untrusted import on_one_line

SLOW_S = 10.0
SILENCE_S = 60.0
"""Seconds after which a task that still runs is reported again, without a terminal."""
LINES, DIFF_LINES = 40, 400
"""Maximum numbers of lines that are reported of a message and of a difference."""
TOLD = ("changed", "failed", "unreachable")


class Progress:
    """Converter of Ansible's events to lines: each role as it starts, each task that changed or failed.

    Args:
        say: called with each line.
        diffs: show changes in files; equal changes on several nodes once.
    """

    def __init__(self, say: Callable[[str], None], *, diffs: bool = False) -> None:
        self._say, self._diffs = say, diffs
        self._roles: dict[object, str] = {}
        self._entered: dict[str, set[object]] = {}
        self._task = self._role = ""  # the current task and role
        self._began = 0.0
        self._done = 0
        self._results: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
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
        role = event.get("role")
        if role and role != self._roles.get(event.get("stream")):
            self._enter(str(role), event.get("stream"))
        if event.get("event") == "task":
            self._done += 1
        status = event.get("status")
        if status in TOLD:
            said = "" if status == "changed" else str(event.get("msg"))
            alike = (status, said, str(event.get("diff") or ""))
            self._results.setdefault(alike, []).append(event)

    def _enter(self, role: str, stream: object) -> None:
        """Report the start of a role, once if plays run it in parallel."""
        self._roles[stream] = role
        others = self._entered.setdefault(role, set())
        if not others or stream in others:
            others.clear()
            self._tell(f"{role} …")
        others.add(stream)

    def at(self) -> str:
        """Return the current task: `docker: Install Docker, 3:05, done on 1 node`; empty between tasks."""
        if not self._task:
            return ""
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        done = f", done on {self._done} node{'s' if self._done > 1 else ''}" if self._done else ""
        what = f"{self._role}: {self._task}" if self._role else self._task
        return on_one_line(f"{what}, {minutes}:{seconds:02}{done}")

    def still(self) -> None:
        """Report the current task if nothing was reported for `SILENCE_S`."""
        if time.monotonic() - self._quiet_since >= SILENCE_S and (line := self.at()):
            self._tell(f"    still at {line}")

    @contextmanager
    def alive(self) -> Iterator[Progress]:
        """Show the current task meanwhile: on an updated line of a terminal, or by a line a minute."""
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True, highlight=False, markup=False)
            with Live(get_renderable=self.at, console=console, transient=True, refresh_per_second=2):
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
        results, self._results = self._results, {}
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


def _beginning(text: str, most: int) -> list[str]:
    """Return the first lines of a text, and after `most` lines the number of the others and their place."""
    lines = text.splitlines()
    left = len(lines) - most
    if left <= 0:
        return lines
    return [*lines[:most], f"… {left} more lines: in *-events.jsonl among the logs of this run"]

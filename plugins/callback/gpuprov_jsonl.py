# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Callback that writes the events of a play as JSON lines while it runs, for another program.

    {"event": "start", "play": "…", "role": "nvidia_driver", "task": "Install the driver …"}
    {"event": "begin", "host": "gpu01", "role": "nvidia_driver", "task": "…"}
    {"event": "task", "host": "gpu01", "role": "nvidia_driver", "task": "…", "status": "changed",
     "seconds": 0.41, "msg": "…", "diff": "…"}
    {"event": "stats", "hosts": {"gpu01": {"ok": 12, "changed": 1, "failed": 0, "skipped": 3, …}}}

`status` is ok, changed, failed, rescued (failed, with a `rescue`), skipped or unreachable. `msg` and `diff`
have at most `LONGEST` bytes, and all of a host about `ALL`.
"""

from __future__ import annotations

DOCUMENTATION = """
name: gpuprov_jsonl
type: notification
short_description: JSON lines of every task's result
author: gpuprov (!UNKNOWN)
description:
  - Writes one JSON object per line for the start of each task, for its start and its result on each host, and
    for the final counts.
  - Results of tasks with C(no_log) have no message and no diff.
requirements:
  - enabled in configuration, or used as the only callback
options:
  path:
    description: The file to which lines are appended; nothing is written if it is not set.
    type: path
    env:
      - name: GPUPROV_EVENTS
"""

import difflib
import json
import re
import time
from bisect import bisect_right
from collections import defaultdict
from typing import Any, TextIO

from ansible.plugins.callback import CallbackBase
from ansible.plugins.loader import filter_loader, test_loader

LAST_LINES = 20
"""Maximum number of lines of a failed program's output in a message."""
LONGEST = 1 << 18
"""Maximum size of a message and of a diff in bytes of JSON, in which a character has up to 12."""
ALL, LAST = 1 << 20, 1000
"""Maximum size of all messages and diffs of a host, and of each further one: all hosts share the file, and a
worker's connection."""
COMPARED_LINES = 4000
"""Maximum number of lines of both sides of a diff: its time grows with their product, and all nodes wait."""
WORD = re.compile(r"[^\s\"'<>]+")
SECRET = re.compile(
    r"((?:pass(?:word|wd|phrase)?|pwd|secret|token|api[_-]?key|private[_-]?key|credential|(?<![a-z])auth)s?"
    r"[\"']?\s*[:=]\s*[\"']?)[^\s\"',][^\"'\n,]*",
    re.IGNORECASE,
)
"""A name for a secret, which stays in a diff, and its value."""
EMPTY_WORDS = "non-zero return code"
"""Ansible's message for a failed program; the last line of the program's output is more specific."""


class CallbackModule(CallbackBase):
    """A writer of one line per event, each flushed at once; nothing is written if no path is set."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "gpuprov_jsonl"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, display: Any = None) -> None:
        super().__init__(display=display)
        self._file: TextIO | None = None
        self._play = ""
        self._started: dict[tuple[str, str], float] = {}
        self._left: dict[str, int] = defaultdict(lambda: ALL)

    def set_options(self, task_keys: Any = None, var_options: Any = None, direct: Any = None) -> None:
        """Open the file of the option `path`, to append to it; without a path disable this callback."""
        super().set_options(task_keys=task_keys, var_options=var_options, direct=direct)
        path = self.get_option("path")
        if path:
            self._file = open(path, "a", encoding="utf-8")  # noqa: PTH123, SIM115 - open as long as the run
        else:
            self.disabled = True

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Load Jinja's filters and tests once; otherwise each task's process on each host loads them."""
        for loader in (filter_loader, test_loader):
            list(loader.all())

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Keep the play's name for the events that follow."""
        self._play = play.get_name()

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """Write the event `start` of a task, once for all hosts."""
        self._write({"event": "start", "play": self._play, **_names(task)})

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        """Write the event `start` of a handler."""
        self.v2_playbook_on_task_start(task, is_conditional=False)

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Write the event `begin` of a task on a host, and keep its time."""
        self._started[host.get_name(), task._uuid] = time.monotonic()
        self._write({"event": "begin", "host": host.get_name(), **_names(task)})

    def v2_runner_on_ok(self, result: Any) -> None:
        """Write the result of a task with status `changed` or `ok`."""
        self._result(result, "changed" if result.is_changed() else "ok")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Write the result of a task with status `failed`.

        `rescued` if its failure is ignored or a block has a `rescue`.
        """
        self._result(result, "rescued" if ignore_errors or _has_rescue(result._task) else "failed")

    def v2_runner_on_skipped(self, result: Any) -> None:
        """Write the result of a task with status `skipped`."""
        self._result(result, "skipped")

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Write the result of a task with status `unreachable`."""
        self._result(result, "unreachable")

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Write the event `stats`: Ansible's counts, by host.

        `ok` includes changed results and ignored failures; `rescued` has only failures with a `rescue`.
        """
        hosts = {}
        for host in sorted(stats.processed):
            counts = stats.summarize(host)
            hosts[host] = {
                "failed": counts["failures"],
                **{key: counts[key] for key in ("ok", "changed", "skipped", "rescued", "unreachable")},
            }
        self._write({"event": "stats", "hosts": hosts})

    def _result(self, result: Any, status: str) -> None:
        """Write the event `task`, without message and diff for a task with `no_log`.

        `seconds` is null if the start on this host is not known.
        """
        host, task, data = result._host.get_name(), result._task, result._result
        began = self._started.pop((host, task._uuid), None)
        event = {
            "event": "task",
            "host": host,
            **_names(task),
            "status": status,
            "seconds": round(time.monotonic() - began, 3) if began is not None else None,
        }
        if not (task.no_log or data.get("_ansible_no_log")):
            # Failure is known by the method called: from Ansible 2.19 on results here have no key `failed`.
            said = _message(data, failed=status in ("failed", "rescued"))[: 2 * LONGEST]
            event["msg"] = self._limited(host, WORD.sub(_without_user, said))
            if difference := _difference(data)[: 2 * LONGEST]:
                event["diff"] = self._limited(host, _without_secrets(difference))
        self._write(event)

    def _limited(self, host: str, text: str) -> str:
        """Return the beginning of a host's text that its limits permit, and count it."""
        text, size = _beginning(text, max(LAST, min(LONGEST, self._left[host])))
        self._left[host] -= size
        return text

    def _write(self, event: dict[str, Any]) -> None:
        """Write an event as a line of JSON and flush it; values that JSON does not have become text."""
        if self._file:
            self._file.write(json.dumps(event, default=str) + "\n")
            self._file.flush()


def _beginning(text: str, most: int) -> tuple[str, int]:
    """Return the beginning of a text that has at most `most` bytes as JSON, and its size."""

    def size(end: int) -> int:
        return len(json.dumps(text[:end])) - 2

    end = min(len(text), most)
    if size(end) > most:
        end = bisect_right(range(end), most, key=size) - 1
    return text[:end], size(end)


def _names(task: Any) -> dict[str, str]:
    """Return a task's role (empty without one, without the collection's name) and its name or action."""
    role = task._role.get_name() if task._role else ""
    return {"role": role.rpartition(".")[2], "task": str(task.name or task.action)}


def _has_rescue(task: Any) -> bool:
    """Return whether a block around the task has a `rescue`, and the task is not in that or in its `always`.

    Ansible copies tasks and blocks during a play; their `_uuid` stays the same.
    """
    child, parent = task, task._parent
    while parent is not None:
        if getattr(parent, "rescue", None):
            after = {item._uuid for item in [*parent.rescue, *parent.always]}
            return child._uuid not in after or _has_rescue(parent)
        child, parent = parent, parent._parent
    return False


def _message(data: dict[str, Any], *, failed: bool) -> str:
    """Return a result's message; of a loop, that of the first failed item.

    Replace Ansible's `EMPTY_WORDS` by the last line of a failed program's stderr, else stdout; keep any other
    message. Add the last `LAST_LINES` lines of the output of a failure if the message does not contain it.
    """
    items = [item for item in _items(data) if item.get("failed")]
    source = items[0] if items else data
    said = str(source.get("msg") or source.get("reason") or "").strip()
    output = str(source.get("stderr") or source.get("stdout") or "").strip()
    if failed and output and said == EMPTY_WORDS:
        said = output.splitlines()[-1]
    if failed and output and output not in said:
        said = "\n".join([said, *output.splitlines()[-LAST_LINES:]])
    return said


def _difference(data: dict[str, Any]) -> str:
    """Return the unified diffs of a result and of the items of its loop; empty without any.

    From `COMPARED_LINES` lines on, a file has only the number of its lines.
    """
    pieces, left = [], COMPARED_LINES
    for part in [data, *_items(data)]:
        stated = part.get("diff")
        path = str(part.get("dest") or part.get("path") or "")
        for diff in stated if isinstance(stated, list) else [stated]:
            if not isinstance(diff, dict):
                continue
            if "prepared" in diff:
                pieces.append(str(diff["prepared"]))
                continue
            before, after = (_text(diff.get(side)).splitlines() for side in ("before", "after"))
            left -= len(before) + len(after)
            pieces.append(_unified(before, after, path or str(diff.get("before_header") or ""), left >= 0))
    return "".join(pieces)


def _without_secrets(diff: str) -> str:
    """Return a diff with `(hidden)` in place of passwords in URLs, as of a proxy in daemon.json, and of
    values after names for secrets: it is kept with the run, and shown in the logs of jobs.
    """
    return SECRET.sub(r"\1(hidden)", WORD.sub(_without_user, diff))


def _without_user(found: re.Match[str]) -> str:
    """Return a word; a URL without its user and password."""
    scheme, mark, rest = found[0].partition("://")
    user, at, place = rest.rpartition("@")
    return f"{scheme}{mark}(hidden)@{place}" if user and at else found[0]


def _items(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the results of a loop's items; empty without a loop. Values are the node's, of any type."""
    results = data.get("results")
    return [item for item in results if isinstance(item, dict)] if isinstance(results, list) else []


def _unified(before: list[str], after: list[str], path: str, compared: bool) -> str:
    """Return the unified diff of two contents of a file, or only the number of lines if not `compared`."""
    if not compared:
        return f"{path}: {len(before)} lines before, {len(after)} after\n"
    lines = difflib.unified_diff(before, after, path, path, lineterm="")
    return "".join(line + "\n" for line in lines)


def _text(side: Any) -> str:
    """Return one side of an entry of `diff` as text: empty if missing, JSON if it is not text."""
    if not side or isinstance(side, str):
        return side or ""
    return json.dumps(side, indent=1, sort_keys=True, default=str)

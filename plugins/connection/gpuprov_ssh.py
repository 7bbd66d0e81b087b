# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Connection plugin: Ansible's `ssh`, with limits of time and size for a node's answers to a task.

Ansible's own plugin reads without a limit. The `timeout` of a task applies to each item of a loop separately,
and not to the removal of temporary files.
"""

from __future__ import annotations

DOCUMENTATION = """
name: gpuprov_ssh
short_description: SSH with limits for the answers of a node
author: gpuprov (!UNKNOWN)
description:
  - Connects in the same way as P(ansible.builtin.ssh#connection), and has the same options.
  - Ends C(ssh), and fails the task, if the node answers more than O(answer_bytes), or not within the task's
    C(timeout). Both apply to all commands of a task on a node together, also those of a loop.
  - Fails the task if the result of a module has too many values or lines, which Ansible would keep.
  - Does not fetch files, because Ansible's programs for that have no limit.
extends_documentation_fragment:
  - connection_pipelining
  - gpuprov.gpuprov.gpuprov_ssh
options:
  answer_bytes:
    description: Maximum size of a node's answers to a task.
    type: int
    default: 8388608
    env:
      - name: GPUPROV_ANSWER_BYTES
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import SimpleNamespace
from typing import IO, Any

from ansible import constants
from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.plugins.connection import ssh
from ansible_collections.gpuprov.gpuprov.plugins.plugin_utils import results

PIECE = 65536
"""Maximum number of bytes that are read at a time."""
NEVER_S = threading.TIMEOUT_MAX
"""Seconds in place of no limit: the longest that a timer accepts."""
MARGIN_S = 1.0
"""Time that Ansible has to end a task itself, with its own message."""


def limited(parse: Callable[..., Any]) -> Callable[..., Any]:
    """Return Ansible's parser of what a module prints, with limits of characters, values and lines.

    They are for all items of a loop together: Ansible forks a process for each task and node. The parser's
    further arguments depend on the version of ansible-core; Mitogen states `profile` by its name.
    """

    characters = values = 0

    @wraps(parse)
    def parsed(action: Any, result: Any, *rest: Any, **named: Any) -> Any:
        nonlocal characters, values
        printed = result.get("stdout", "")
        characters += len(printed)
        if characters > results.SIZE:
            raise AnsibleError(f"the node answered with more than {results.SIZE} characters")
        values += results.count_values(printed)
        if values > results.VALUES:
            raise AnsibleError(f"the node answered with more than {results.VALUES} values or lines")
        return parse(action, result, *rest, **named)

    return parsed


ActionBase._parse_returned_data = limited(ActionBase._parse_returned_data)


class Allowance:
    """Time and number of bytes that a node has for its answers to a task.

    Args:
        seconds: time from now on, to which `MARGIN_S` is added; 0 is no limit.
        size: number of bytes.
    """

    def __init__(self, seconds: float, size: int) -> None:
        self._seconds, self._size, self._room = seconds, size, size
        self._end = time.monotonic() + seconds + MARGIN_S

    def left(self) -> float:
        """Return the seconds until the end, negative after it; `NEVER_S` without a limit."""
        return self._end - time.monotonic() if self._seconds else NEVER_S

    def take(self, size: int) -> None:
        """Subtract the size of a part of an answer in bytes; 0 only checks the limits.

        Raises:
            AnsibleError: the time or the number of bytes is exceeded.
        """
        self._room -= size
        if self._room < 0:
            raise AnsibleError(f"the node answered more than {self._size / (1 << 20):g} MB")
        if self.left() <= 0:
            raise AnsibleError(f"the node did not finish its answer within {self._seconds:.0f} s")


class Output:
    """Standard output or standard error of `ssh`, which is counted as it is read."""

    def __init__(self, pipe: IO[bytes], allowance: Allowance) -> None:
        self._allowance = allowance
        self.fileno, self.close = pipe.fileno, pipe.close

    def read(self) -> bytes:
        """Return the next part, up to `PIECE` bytes; empty at the end.

        Raises:
            AnsibleError: the time or the number of bytes is exceeded.
        """
        part = os.read(self.fileno(), PIECE)
        self._allowance.take(len(part))
        return part


_allowances: dict[str | None, Allowance] = {}
"""Host → allowance of the only task of this process: Ansible starts one for each task on each host."""


class Connection(ssh.Connection):
    """Ansible's connection by `ssh`, within an allowance."""

    def _bare_run(self, *arguments: Any, **named: Any) -> tuple[int, bytes, bytes]:
        """Run a command as Ansible's plugin does, within the task's allowance; return its status and outputs.

        The allowance is created by the first command of the task, with the task's timeout.

        Raises:
            AnsibleError: the time or the number of bytes is exceeded.
        """
        if self.host not in _allowances:
            seconds, _interval = signal.getitimer(signal.ITIMER_REAL)  # Ansible's timeout of this task
            size = self.get_option("answer_bytes")
            _allowances[self.host] = Allowance(seconds or constants.TASK_TIMEOUT, size)
        with _limited(_allowances[self.host]):
            answer: tuple[int, bytes, bytes] = super()._bare_run(*arguments, **named)
            return answer

    def fetch_file(self, in_path: str, out_path: str) -> None:
        """Refuse to fetch a file.

        Raises:
            AnsibleError: always.
        """
        raise AnsibleError(f"gpuprov_ssh does not fetch files: {in_path}")


@contextmanager
def _limited(allowance: Allowance) -> Iterator[None]:
    """Limit the output of the programs that Ansible's plugin starts; end them at the end of the allowance.

    They are also ended if Ansible's timeout occurs, which does not end them.

    Raises:
        AnsibleError: the time or the number of bytes is exceeded.
    """
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: Any, **named: Any) -> Any:
        program: Any = subprocess.Popen(*arguments, **named)
        started.append(program)
        program.stdout = Output(program.stdout, allowance)
        program.stderr = Output(program.stderr, allowance)
        if allowance.left() <= 0:  # since `watch` was started
            end()
        return program

    def end() -> None:
        for program in started:
            program.kill()

    allowance.take(0)
    watch = threading.Timer(allowance.left(), end)
    watch.daemon = True
    watch.start()
    ssh.subprocess = SimpleNamespace(Popen=start, PIPE=subprocess.PIPE)
    try:
        yield
    finally:
        ssh.subprocess = subprocess
        watch.cancel()
        end()
        allowance.take(0)

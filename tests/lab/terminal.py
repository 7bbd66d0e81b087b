"""A command on a pseudo-terminal with an answer to its question."""

from __future__ import annotations

import os
import pty
import re
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.lab.command_line import with_own_state
from tests.screens import exit_code, written_to


def typed(
    folder: Path, words: Sequence[str], question: str, answer: str, seconds: float = 300
) -> tuple[int, str]:
    """Run a command and answer its only question; return its exit code and its output.

    Args:
        question: regular expression of the question's end, without a colon, `?` and blanks.
        seconds: time after which the command and its children are killed; the exit code is -9 then.
    """
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execvpe(words[0], list(words), with_own_state(folder))  # noqa: S606
    end = threading.Timer(seconds, os.killpg, (child, signal.SIGKILL))  # pty.fork calls setsid(2)
    end.start()
    shown, answered, deadline = b"", False, time.monotonic() + seconds
    for shown in written_to(terminal):
        if time.monotonic() >= deadline:
            break
        if not answered and re.search(rf"{question}[:? ]*$".encode(), shown):
            os.write(terminal, f"{answer}\n".encode())
            answered = True
    code = exit_code(child, terminal)
    end.cancel()
    return code, shown.decode("utf-8", "replace")

"""A command on a pseudo-terminal with an answer to its question."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.lab.command_line import with_own_state


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
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            shown += os.read(terminal, 65536)
        except OSError:  # end of file: a pseudo-terminal reports it as an error
            break
        if not answered and re.search(rf"{question}[:? ]*$".encode(), shown):
            os.write(terminal, f"{answer}\n".encode())
            answered = True
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    end.cancel()
    os.close(terminal)  # not before: this hangs the command up (SIGHUP)
    return code, shown.decode("utf-8", "replace")

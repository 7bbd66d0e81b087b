"""The site's own program, started after a change of the verdict."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuprov.health.output import save
from gpuprov.untrusted import on_one_line

SECONDS = 10.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def run_command(program: str | None, document: Mapping[str, Any], last: str) -> None:
    """Start the site's program with verdict and rule as arguments, if it was last started with others.

    The text is in the variable GPUPROV_TEXT. It is killed with its children after `SECONDS`; if it fails, it
    is started again after the next run.

    Args:
        last: path of the file that keeps the arguments of its last start.
    """
    if program is None:
        return
    words = f"{document['verdict']} {document['rule'] or '-'}"
    with contextlib.suppress(OSError):
        if Path(last).read_text("utf-8") == words:
            return
    environment = {"PATH": PATH, "LC_ALL": "C", "GPUPROV_TEXT": on_one_line(str(document["text"]))}
    try:
        child = subprocess.Popen(
            (program, *words.split()),
            stdin=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
        code = _wait(child)
        if code == 0:
            save(last, words, 0o600, in_place=True)
        else:
            print(f"{program} exited with {code}", file=sys.stderr)
    except OSError as error:
        print(f"{program}: {error.strerror}", file=sys.stderr)


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Return the exit code of a child; it is killed with its process group after `SECONDS`."""
    try:
        return child.wait(SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(0.5)
        return -signal.SIGKILL

# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts of dnf 4 for `gpuprov_dnf`: with a time limit, or with an answer to its question.

It has temporary folders of its own.

Runs on nodes: Python 3.6 to 3.14 and its standard library.
"""

import contextlib
import re
import signal
import subprocess
import sys
import threading

from gpuprov_failures import Failed
from gpuprov_locks import RUN_DNF, remove_kept_locks
from gpuprov_node import TIMED_OUT
from gpuprov_own_tmp import with_own_tmp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

NETWORK = ("--setopt=timeout=30", "--setopt=retries=2")
WAITS = "Waiting for process with pid"
"""dnf's message while another dnf holds its lock; dnf itself waits without limit."""
ABORTED = "Operation aborted."
"""Error of a dnf whose question was answered with no, as in a simulation."""
QUESTION = b" [y/N]: "
"""End of dnf's question whether to carry out its table; also of a question about a key."""
ANSWERS = 100
"""Number of questions that are answered: the first, and those about keys of repositories."""
MISSING = re.compile(
    r"(?:No match for argument|All matches were filtered out by \w+ filtering for argument): "
)
"""Lines of dnf's standard output about a package that it cannot install."""
REASONS = re.compile(r"(?m)^Errors during downloading metadata for repository '(.+)':((?:\n +- .*)+)")
"""Warning about a repository whose metadata cannot be read: its name, and lines with the reasons."""
UNREAD = re.compile("Failed to download metadata for repo '(.+?)':")
"""Error after which dnf does not go on without the repository."""


def start(seconds: int, *words: str) -> str:
    """Run dnf with a time limit; return its standard output. Its standard error is copied to this process's.

    Raises:
        Failed: it failed or exceeded the limit; the text has the errors that it printed.
    """
    remove_kept_locks()
    done = subprocess.run(  # noqa: UP022 - Python 3.6
        ["timeout", str(seconds), *RUN_DNF, *NETWORK, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        check=False,
        **with_own_tmp(),
    )
    said, errors = (part.decode(errors="replace") for part in (done.stdout, done.stderr))
    return _succeeded(done.returncode, said, errors, seconds)


def confirm(judge: "Callable[[str], object]", seconds: int, *words: str) -> None:
    """Run a transaction of dnf, and answer its question with yes if `judge` accepts its table.

    dnf changes nothing before the answer, and what it carries out is what it showed. If this process ends
    before, dnf reads no answer, which counts as no. After the answer it has no time limit: it must not be
    killed.

    Args:
        judge: is called with dnf's standard output until the question, or all of it without a question, and
            raises an error against the transaction.
        seconds: time limit until the question.
        words: arguments of dnf, without `--assumeyes`.

    Raises:
        Failed: dnf failed, or exceeded the limit.
        Exception: what `judge` raises; nothing was changed.
    """
    remove_kept_locks()
    with subprocess.Popen(
        [*RUN_DNF, *NETWORK, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        **with_own_tmp(),
    ) as process:
        errors = _Reader(process.stderr)
        limit = threading.Timer(seconds, process.kill)
        limit.start()
        said = _until_question(process.stdout)
        limit.cancel()
        try:
            if said.endswith(QUESTION):
                _answer(process.stdin, said.decode(errors="replace"), judge)
        finally:
            said += process.stdout.read()
            errors.join()
            status = process.wait()
    if status == -signal.SIGKILL and QUESTION not in said:
        status = TIMED_OUT
    text = _succeeded(status, said.decode(errors="replace"), errors.text, seconds)
    if QUESTION not in said:
        judge(text)


class _Reader(threading.Thread):
    """A thread that reads a stream until its end, so that its writer does not wait; then `text` has it."""

    def __init__(self, stream: "IO[bytes]") -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self.text = ""
        self.start()

    def run(self) -> None:
        """Read the stream."""
        self.text = self._stream.read().decode(errors="replace")


def _until_question(stream: "IO[bytes]") -> bytes:
    """Return a stream's content until dnf's question, or until its end."""
    said = b""
    while not said.endswith(QUESTION):
        part = stream.read(65536)
        if not part:
            break
        said += part
    return said


def _answer(stdin: "IO[bytes]", said: str, judge: "Callable[[str], object]") -> None:
    """Answer dnf's questions with yes if `judge` accepts its output; raises as `judge`.

    The end of its input without an answer is a no.
    """
    with stdin:
        judge(said)
        with contextlib.suppress(BrokenPipeError):
            stdin.write(b"y\n" * ANSWERS)


def _succeeded(status: int, said: str, errors: str, seconds: int) -> str:
    """Return dnf's standard output unless it failed; copy its standard error to this process's.

    Raises:
        Failed: it failed, or exceeded its time limit in seconds; the text has the errors that it printed.
    """
    sys.stderr.write(errors)
    found = _errors(said, errors)
    if status == TIMED_OUT:
        if WAITS in said + errors:
            raise Failed(f"another dnf or rpm runs for {seconds} s", TIMED_OUT, errors)
        raise Failed(f"fetching took longer than {seconds} s ({found})", TIMED_OUT, errors)
    if found or (status and ABORTED not in errors):
        raise Failed(found or f"dnf exited with {status}", status or 1, errors)
    return said


def _errors(said: str, errors: str) -> str:
    """Return what dnf says about a failure on one line, each sentence once; empty without an error.

    The reasons of a repository's failure are warnings, and count only if dnf does not go on without it.
    """
    lines = [line.strip() for line in said.splitlines() if MISSING.match(line)]
    reasons = dict(REASONS.findall(errors))
    inside = False
    for line in errors.splitlines():
        inside = line.startswith("Error:") or (inside and (line.startswith(" ") or "GPG" in line))
        if inside and ABORTED not in line:
            for name in UNREAD.findall(line):
                lines += [why.strip(" -") for why in reasons.get(name, "").splitlines()]
            lines.append(re.sub("^Error: ?", "", line).strip(" -"))
    return " ".join(dict.fromkeys(filter(None, lines)))

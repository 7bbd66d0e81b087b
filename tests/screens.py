"""Command lines on a pseudo-terminal of some width, replayed by a terminal emulator."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from itertools import product
from pathlib import Path
from pkgutil import walk_packages

import pyte

from gpuprov.cli.common.terminal import PROGRAMS
from tests import ROOT

SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Screen:
    """A command line's output on a terminal.

    Attributes:
        code: exit code.
        written: all bytes that the terminal got.
        width: of the terminal, in columns.
    """

    code: int
    written: bytes
    width: int

    def shown(self, width: int) -> list[str]:
        """Return the lines of a terminal of `width` columns after all output; no empty ones at the end."""
        rows = self.written.count(b"\n") + len(self.written) // width + 1
        screen = pyte.Screen(width, rows)
        pyte.ByteStream(screen).feed(self.written)
        return "\n".join(line.rstrip() for line in screen.display).rstrip("\n").split("\n")

    @cached_property
    def lines(self) -> list[str]:
        """The lines at the end, as they are copied: not wrapped by the terminal."""
        text = SEQUENCE.sub("", self.written.decode())
        return self.shown(max(map(len, [*text.split("\n"), " " * self.width])) + 1)

    def complaints(self, *, document: bool = False) -> list[str]:
        """Return what is torn or garbled: a line that the terminal wraps though it could be folded, and rows
        of the terminal that are not those of the lines.

        Args:
            document: whether the output is a file's text, whose lines are never folded.
        """
        torn = [line for line in self.lines if len(line) > self.width and not (document or one_piece(line))]
        rows = [line[at : at + self.width].rstrip() for line in self.lines for at in places(line, self.width)]
        if len(rows) == len(self.lines):  # no row is wrapped: a second replay would be the same
            return [f"torn: {line}" for line in torn]
        garbled = [row for row, want in zip(self.shown(self.width), rows, strict=False) if row != want]
        return [*(f"torn: {line}" for line in torn), *(f"garbled: {row}" for row in garbled)]

    def too_wide(self) -> list[str]:
        """Return pieces of output between moves of the cursor that are wider than the terminal: for a view
        that fills it.
        """
        text = re.sub(r"\x1b\[[0-9;]*m", "", self.written.decode())
        pieces = re.split(r"[\r\n]|" + SEQUENCE.pattern, text)
        return [piece for piece in pieces if len(piece) > self.width]


def places(line: str, width: int) -> range:
    """Return where the rows of a line begin that the terminal wraps; one row for an empty line."""
    return range(0, max(len(line), 1), width)


def one_piece(line: str) -> bool:
    """Return whether a line is one command or one word below its label, which must not be folded."""
    _, gap, text = line.rpartition("  ")
    first, *others = (text if gap else line).split()
    return not others or first.strip("`'\"") in PROGRAMS


def record(
    words: Sequence[str],
    width: int,
    *,
    folder: Path,
    environment: Mapping[str, str],
    keys: Sequence[tuple[float, str]] = (),
) -> Screen:
    """Run a program on a terminal of 50 rows until it ends.

    Args:
        keys: what is typed, each after a number of seconds since the last.
    """

    def program() -> int:
        os.chdir(folder)
        os.execvpe(words[0], list(words), {**environment, "TERM": "xterm"})  # noqa: S606

    return on_terminal(program, width, keys)


def on_terminal(action: Callable[[], int], width: int, keys: Sequence[tuple[float, str]] = ()) -> Screen:
    """Run an action in a child process on a terminal of 50 rows until it ends."""
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
        os._exit(action())
    written, left = b"", [*keys]
    due = time.monotonic() + (left[0][0] if left else 0)
    for written in written_to(terminal):  # noqa: B007 - the last is the screen's
        if left and time.monotonic() >= due:
            os.write(terminal, left.pop(0)[1].encode())
            due = time.monotonic() + (left[0][0] if left else 0)
    return Screen(exit_code(child, terminal), written, width)


def written_to(terminal: int) -> Iterator[bytes]:
    """Yield all that programs have written to a pseudo-terminal, every 0.2 s, until they have closed it."""
    written = b""
    while True:
        yield written
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                written += os.read(terminal, 65536)
            except OSError:  # end of file: a pseudo-terminal reports it as an error
                return


def exit_code(child: int, terminal: int) -> int:
    """Return the exit code of a child process, -N for signal N, after its end; close its terminal."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(terminal)  # not before: this hangs the command up (SIGHUP)
    return code


def gpuprov_lines(lines: Sequence[str], folders: Mapping[int, Path]) -> list[tuple[str, Screen]]:
    """Return command lines of gpuprov with their screens, run one after another.

    One other process imports gpuprov and forks for each: a tenth of the time of starting each alone.

    Args:
        folders: width of the terminal → folder that the lines are run in, and keep their state in.
    """
    asked = json.dumps(
        {"lines": list(lines), "folders": {width: str(path) for width, path in folders.items()}}
    )
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        env={**kept, "TERM": "xterm", "PYTHONPATH": str(ROOT)},
        input=asked,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [(line, Screen(code, text.encode(), width)) for line, width, code, text in json.loads(done.stdout)]


def main() -> None:
    """Read command lines and folders from standard input, run them, and print their screens as JSON."""
    import gpuprov
    from gpuprov.catalog import load
    from gpuprov.cli.common.group import run

    for module in walk_packages(gpuprov.__path__, "gpuprov."):
        if "__main__" not in module.name:
            with suppress(ImportError):  # programs of nodes, which are packed with other modules
                import_module(module.name)
    load()

    def action(line: str, folder: str) -> int:
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(at, mode) for at, mode in ((0, "r"), (1, "w"), (2, "w"))
        )
        sys.__stdout__ = sys.stdout
        os.chdir(folder)
        os.environ["XDG_STATE_HOME"] = f"{folder}/state"
        code = run(shlex.split(line))
        sys.stdout.flush()
        return code

    asked, found = json.load(sys.stdin), []
    for line, (width, folder) in product(asked["lines"], asked["folders"].items()):
        screen = on_terminal(partial(action, line, folder), int(width))
        found.append((line, screen.width, screen.code, screen.written.decode()))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()

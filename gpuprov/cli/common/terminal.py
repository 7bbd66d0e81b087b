"""What a terminal gets more than a file: colour where it helps, and a line while something is waited for."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import click

from gpuprov.untrusted import on_one_line, printable

COLOURS = (
    (re.compile(r"\b(in sync|verified|passed|nothing to do|accepted|healthy)\b"), "green"),
    (re.compile(r"\b(FAILED|NOT VERIFIED|failed|broken|rejected|error)\b"), "red"),
    (re.compile(r"\b(REFUSED|refused|unreachable|degraded|warning|reboot needed)\b"), "yellow"),
    (re.compile(r"(?<=expected ).+(?=, is )"), "cyan"),
)
"""Words that a reader looks for, each in its colour; the first of a line decides nothing but itself."""
SLOW_S = 0.5


def colourful(stream: TextIO) -> bool:
    """Whether colour is wanted there: a terminal, and neither NO_COLOR nor TERM=dumb says otherwise.

    Source: https://no-color.org
    """
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say(line: object = "") -> None:
    """Write one line to stdout; a newline within it is spelled out, as all that steers a terminal."""
    click.echo(on_one_line(str(line)))


def show(text: str, *, err: bool = False) -> None:
    """Write lines of gpuprov's own making, or a whole document, to stdout or stderr."""
    click.echo(printable(text), err=err, nl=not text.endswith("\n"))


def tell(line: str) -> None:
    """Write a line of the result to stdout; on a terminal with colour."""
    line = on_one_line(line)
    click.echo(coloured(line) if colourful(sys.stdout) else line)


def give(data: bytes) -> None:
    """Write the bytes of a file to stdout."""
    click.echo(data, nl=False)


def coloured(line: str) -> str:
    """The line with its words in colour."""
    for words, colour in COLOURS:
        line = words.sub(lambda found, colour=colour: click.style(found[0], fg=colour), line)  # type: ignore[misc]
    return line


@contextmanager
def waiting(what: str, of: int = 0) -> Iterator[Callable[[], None]]:
    """Say on a terminal, on stderr, what is waited for, how long already, and how many have answered.

    Gives what is to be called for each answer. Without a terminal nothing is said.

    Args:
        what: `asking 64 nodes`.
        of: how many answers there will be; 0 where they are not counted.
    """
    done, begun = 0, time.monotonic()

    def answered() -> None:
        nonlocal done
        done += 1

    def line() -> str:
        minutes, seconds = divmod(int(time.monotonic() - begun), 60)
        count = f", {done} of {of}" if of else ""
        return f"{what}{count}, {minutes}:{seconds:02}" if time.monotonic() - begun > SLOW_S else ""

    if not sys.stderr.isatty():
        yield answered
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, highlight=False, markup=False)
    with Live(get_renderable=line, console=console, transient=True, refresh_per_second=4):
        yield answered

"""Output, and additions for a terminal: colour, and a line while answers are awaited."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import click

from gpuprov.report.live import live_line, print_above
from gpuprov.untrusted import on_one_line, printable

COLOURS = (
    (re.compile(r"\b(in sync|verified|passed|nothing to do|accepted|healthy)\b"), "green"),
    (re.compile(r"\b(FAILED|NOT VERIFIED|failed|broken|rejected|error)\b"), "red"),
    (re.compile(r"\b(REFUSED|refused|unreachable|degraded|warning|reboot needed)\b"), "yellow"),
)
"""Patterns of important words, and their colours."""
SLOW_S = 0.5


class Declined(click.Abort):
    """The answer no to a question; its argument is the action that was not done."""


def colourful(stream: TextIO) -> bool:
    """Return whether output is coloured: on a terminal, unless NO_COLOR is set or TERM is `dumb`.

    Source: https://no-color.org
    """
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say(line: object = "") -> None:
    """Write one line to stdout; newlines in it and other control characters are escaped."""
    click.echo(on_one_line(str(line)))


def show(text: str, *, err: bool = False) -> None:
    """Write lines that gpuprov generated, or a whole document, to stdout or stderr.

    Lines on a terminal's stderr are folded between words.
    """
    text = printable(text)
    if err and sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        text = "\n".join(part for line in text.split("\n") for part in folded(line, width))
    if not (err and print_above(text)):
        click.echo(text, err=err, nl=not text.endswith("\n"))


def tell(line: str) -> None:
    """Write a line of the result to stdout, on a terminal in colour and folded between words; control
    characters are escaped.
    """
    line = on_one_line(line)
    parts = folded(line, shutil.get_terminal_size().columns) if sys.stdout.isatty() else [line]
    for part in parts:
        click.echo(coloured(part) if colourful(sys.stdout) else part)


def folded(line: str, width: int) -> list[str]:
    """Return a line as lines of at most `width` characters, except words that are longer.

    The others are indented four characters more than the first, at most by half of the width: a text of a
    node can begin with any number of blanks.
    """
    indent = " " * min(len(line) - len(line.lstrip()) + 4, width // 2)
    fold = textwrap.TextWrapper(
        width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [line] if len(line) <= width else fold.wrap(line)


def give(data: bytes) -> None:
    """Write the bytes of a file to stdout."""
    click.echo(data, nl=False)


def coloured(line: str) -> str:
    """Return a line with its important words, and the expected value in it, in colour."""
    for words, colour in COLOURS:
        line = words.sub(lambda found, colour=colour: click.style(found[0], fg=colour), line)  # type: ignore[misc]
    before, expected, rest = line.partition("expected ")
    value, is_, after = rest.rpartition(", is ")
    if expected and value:
        return before + expected + click.style(value, fg="cyan") + is_ + after
    return line


@contextmanager
def waiting(what: str, of: int = 0) -> Iterator[Callable[[], None]]:
    """Show a line on stderr while answers are awaited: the elapsed time, and the number of answers.

    It yields a function to call for each answer. Without a terminal there is no line; on a terminal it
    appears after `SLOW_S` seconds.

    Args:
        what: start of the line, such as `asking 64 nodes`.
        of: expected number of answers; 0 if they are not counted.
    """
    done, begun = 0, time.monotonic()

    def answered() -> None:
        nonlocal done
        done += 1

    def line() -> str:
        minutes, seconds = divmod(int(time.monotonic() - begun), 60)
        count = f", {done} of {of}" if of else ""
        return f"{what}{count}, {minutes}:{seconds:02}" if time.monotonic() - begun > SLOW_S else ""

    with live_line(line):
        yield answered

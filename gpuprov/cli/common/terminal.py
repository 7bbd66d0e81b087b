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
PROGRAMS = (
    *("gpuprov", "sudo", "ssh", "ssh-keygen", "ssh-keyscan", "gpg", "apt", "apt-get", "dnf", "dpkg", "pip"),
    *("systemctl", "journalctl", "nvidia-smi", "modprobe", "echo", "printf", "python3", "docker", "podman"),
    *("kubectl", "scontrol", "ansible-galaxy", "ansible-playbook", "export", "ps", "df", "cat"),
)
"""Programs whose command lines are not folded: a line break would make two commands of a copied one."""
_WORD = r"(?: [a-z]+(?:-[a-z]+)*(?=[,;.)]*(?:\s|$)))"
_ARGUMENT = r"(?: [^\s(]*[-/@=\[\]{}<>&|\\\d_A-Z'\"$*%.][^\s]*(?<![,;:)]))"
_LINE = rf"(?:{'|'.join(map(re.escape, PROGRAMS))})\b{_WORD}{{0,3}}(?:{_ARGUMENT}{_WORD}{{0,3}})*"
COMMAND = re.compile(rf"`[^`]+`|(?<![\w./-]){_LINE}")
"""Text in backquotes, or a program with its arguments; three words in lower case end them."""
GLUE = "\0"
"""Replaces blanks that are not folded; output has no other control characters."""
LONGEST = 2000
"""Length in characters of a line in which commands are looked for; the pattern's time grows by its square."""
LABELS = 24
"""Columns within which two blanks end a label; further lines begin below the text after it."""
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
    if err:
        text = fitted(text, sys.stderr)
    if not (err and print_above(text)):
        click.echo(text, err=err, nl=not text.endswith("\n"))


def tell_lines(text: str) -> None:
    """Write the lines of a result to stdout, each as `tell` does."""
    for line in text.split("\n"):
        tell(line)


def tell(line: str) -> None:
    """Write a line of the result to stdout, on a terminal in colour and folded between words; control
    characters are escaped.
    """
    for part in fitted(on_one_line(line), sys.stdout).split("\n"):
        click.echo(coloured(part) if colourful(sys.stdout) else part)


def fitted(text: str, stream: TextIO) -> str:
    """Return lines for a stream: folded to the width of a terminal, otherwise unchanged.

    A job's log can be a terminal, too, where a line that begins in the middle of another could be a command.
    """
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return printable("\n".join(part for line in text.split("\n") for part in folded(line, width)))


def folded(line: str, width: int) -> list[str]:
    """Return a line as lines of at most `width` characters, except commands and words that are longer: the
    terminal wraps these, and they are copied as one line.

    The others are indented by at most half of the width: a node's text can begin with any number of blanks.
    """
    if len(line) <= width:
        return [line]
    label = re.match(r" *\S.*  (?=\S)", line[: LABELS + 1])
    begun = label.end() if label else len(line) - len(line.lstrip())
    indent = min(begun if label else begun + 4, width // 2)
    fold = textwrap.TextWrapper(
        width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    if begun <= indent:
        line = line[:begun].replace(" ", GLUE) + line[begun:]
    if len(line) <= LONGEST:
        line = COMMAND.sub(lambda found: found[0].replace(" ", GLUE), line)
    return [part.replace(GLUE, " ") for part in fold.wrap(line)]


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

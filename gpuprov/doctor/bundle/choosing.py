"""Choosers of values for a bundle: numbers, and texts that match the pattern of their field.

A chooser returns the value for the bundle, or `OUT`. A value without a chooser is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from gpuprov.doctor.builds import cause_of
from gpuprov.untrusted.secrecy import public


class Tally:
    """Count of the values left out."""

    def __init__(self) -> None:
        self.out = 0


OUT: Final = object()
Chooser = Callable[[Any, Tally], Any]
ITEMS_AT_MOST = 20_000
LINE_AT_MOST = 600
LOGS_AT_MOST = 8
_CODES = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")


def _left(tally: Tally) -> object:
    """Count one value that is left out and return `OUT`."""
    tally.out += 1
    return OUT


def number(value: Any, tally: Tally) -> Any:
    """Return a number below 1e18 or `null`; leave anything else out."""
    if value is None or (isinstance(value, int | float) and abs(value) < 1e18):
        return value
    return _left(tally)


def boolean(value: Any, tally: Tally) -> Any:
    """Return true, false or `null`; leave anything else out."""
    return value if value is None or isinstance(value, bool) else _left(tally)


def present(value: Any, _tally: Tally) -> bool:
    """Return whether the value is not empty; the value itself is left out."""
    return bool(value)


def matching(pattern: str, longest: int = 200) -> Chooser:
    """Return a chooser of texts up to `longest` characters that match as a whole, without blanks at the ends,
    and contain nothing that looks like a password.
    """
    wanted = re.compile(pattern, re.ASCII)

    def choose(value: Any, tally: Tally) -> Any:
        text = value.strip() if isinstance(value, str) and len(value) <= longest else ""
        if text and wanted.fullmatch(text) and public(text) == text:
            return text
        return _left(tally)

    return choose


def optional(choose: Chooser) -> Chooser:
    """Return a chooser with an empty text in place of a value that another chooser leaves out."""
    return lambda value, tally: "" if not value or (kept := choose(value, tally)) is OUT else kept


def found(pattern: str) -> Chooser:
    """Return a chooser of the groups that a pattern matches in a text, joined by blanks; the rest of the text
    is left out.
    """
    wanted = re.compile(pattern, re.ASCII | re.MULTILINE)

    def choose(value: Any, tally: Tally) -> Any:
        match = wanted.search(value) if isinstance(value, str) else None
        return " ".join(match.groups("")) if match else _left(tally)

    return choose


def each(choose: Chooser) -> Chooser:
    """Return a chooser for lists that keeps the items for which `choose` returns a value, of the first
    `ITEMS_AT_MOST`.
    """

    def choose_each(value: Any, tally: Tally) -> Any:
        if not isinstance(value, list | tuple):
            return _left(tally)
        return [kept for item in value[:ITEMS_AT_MOST] if (kept := choose(item, tally)) is not OUT]

    return choose_each


def row(*columns: Chooser) -> Chooser:
    """Return a chooser of rows with a chooser for each column; a row is kept as a whole or left out."""

    def choose(value: Any, tally: Tally) -> Any:
        if not isinstance(value, list | tuple) or len(value) < len(columns):
            return _left(tally)
        kept = [column(cell, tally) for column, cell in zip(columns, value, strict=False)]
        return OUT if OUT in kept else kept

    return choose


def fields(**choosers: Chooser) -> Chooser:
    """Return a chooser of named fields of an object; a field without a chooser is left out and counted."""

    def choose(value: Any, tally: Tally) -> Any:
        if not isinstance(value, dict):
            return _left(tally)
        kept = {name: one(value[name], tally) for name, one in choosers.items() if name in value}
        tally.out += sum(1 for name in value if name not in choosers)
        return {name: one for name, one in kept.items() if one is not OUT}

    return choose


def with_part(name: str, of: str, choose_part: Chooser, **choosers: Chooser) -> Chooser:
    """Return a chooser of named fields, and of one more that another chooser takes from a field's value.

    Args:
        name: of the further field.
        of: the field with its value.
    """
    plain = fields(**choosers)

    def choose(value: Any, tally: Tally) -> Any:
        kept = plain(value, tally)
        if kept is OUT or of not in kept or kept[of] is None:
            return kept
        return {**kept, name: choose_part(value[of], tally)}

    return choose


def causes(value: Any, tally: Tally) -> Any:
    """Return the names of the causes that the logs of builds state, of at most `LOGS_AT_MOST`; their lines
    are left out and counted.

    Args:
        value: log → lines, from the collector `dkms_log`.
    """
    if not isinstance(value, dict):
        return _left(tally)
    rows = [row for row in value.values() if isinstance(row, list)]
    tally.out += sum(map(len, rows))
    stated = [cause_of(line for line in row if isinstance(line, str)) for row in rows[:LOGS_AT_MOST]]
    return {"causes": [each[0].name for each in stated if each]}


def named(pattern: str, choose: Chooser) -> Chooser:
    """Return a chooser for an object with arbitrary names; each name must match the pattern."""
    name_of = matching(pattern)

    def choose_named(value: Any, tally: Tally) -> Any:
        if not isinstance(value, dict):
            return _left(tally)
        kept = {name_of(name, tally): choose(one, tally) for name, one in value.items()}
        return {name: one for name, one in kept.items() if name is not OUT and one is not OUT}

    return choose_named


def lines(*patterns: str) -> Chooser:
    """Return a chooser of lines: each as the groups (without groups the whole line) of the first pattern that
    matches it as a whole; other lines, and those with a secret, are left out and counted.

    It reads the first `ITEMS_AT_MOST` lines, and `LINE_AT_MOST` characters of each.
    """
    wanted = [re.compile(pattern, re.ASCII) for pattern in patterns]

    def choose(value: Any, tally: Tally) -> Any:
        if not isinstance(value, str):
            return _left(tally)
        kept = []
        for line in value.splitlines()[:ITEMS_AT_MOST]:
            short = line.strip()[:LINE_AT_MOST]
            match = next((m for each in wanted if (m := each.fullmatch(short))), None)
            if match and public(short) == short:
                kept.append(" ".join(filter(None, match.groups() or (match[0],))))
            elif line.strip():
                tally.out += 1
        return kept

    return choose


def words(pattern: str) -> Chooser:
    """Return a chooser of the words of a text that match, line by line, without the terminal's codes
    (nvidia-smi underlines headings); lines without any are left out.
    """
    wanted = re.compile(pattern, re.ASCII)

    def choose(value: Any, tally: Tally) -> Any:
        if not isinstance(value, str):
            return _left(tally)
        rows = [_CODES.sub(" ", line).split() for line in value.splitlines()[:ITEMS_AT_MOST]]
        kept = [[word for word in line if wanted.fullmatch(word)] for line in rows]
        tally.out += sum(map(len, rows)) - sum(map(len, kept))
        return [" ".join(line) for line in kept if line]

    return choose

"""Sets of node names: `gpu[001-064]`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise

LARGEST = 100_000
"""The most names that one set may have. They are counted before they are made, as each takes memory."""
ALTOGETHER = 4 * LARGEST
"""The most names of all sets of a document: those of groups, racks, domains and further groups."""
SEVERAL, NUMBERS = 128, 8
"""The most ranges of names with several numbers, and of numbers in a name, for ClusterShell: its time is the
square of the ranges or more.
"""
_LEFT: ContextVar[list[int]] = ContextVar("names that sets of a document may still have, and may have")
_NAME = re.compile(r"(?!@|.{254})[\w.:@-]+")
"""One host's name or address; other and longer text is a set with syntax, which ClusterShell would expand."""
_NUMBER = re.compile(r"\[[^\[\]]*\]|[0-9]+")
COMMAS, SIGNS = re.compile(r"\[[^\[\]]*\]|,"), re.compile(r"\[[^\[\]]*\]|[,!&^]")
_RANGE = re.compile(r"\s*(-?[0-9]{1,12})(?:\s*-\s*([0-9]{1,12})(?:/([0-9]{1,12}))?)?\s*")


def fold(names: Iterable[str]) -> str:
    """Return names as one set, `gpu[001-064]`, or joined by commas if one of them is no name of a host.

    In a set, names are sorted and repeated ones appear once.
    """
    listed = list(names)
    if not all(map(_NAME.fullmatch, listed)):
        return ",".join(listed)
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    ranges = _ranges(listed)
    if sum(len(own) > 1 for _, own in ranges) > SEVERAL or any(len(own) == NUMBERS for _, own in ranges):
        return ",".join(map(_spelled, ranges))
    try:
        return str(NodeSet.fromlist(listed, resolver=RESOLVER_NOGROUP))
    except NodeSetException:
        return ",".join(listed)


Ranges = tuple[tuple[str, ...], tuple[frozenset[str], ...]]
"""Texts of names, and their numbers between these texts: each combination of the numbers is a name."""


def _ranges(names: Iterable[str]) -> list[Ranges]:
    """Return names as ranges, folded by their last `NUMBERS` numbers, one after the other; sorted."""
    rows_of: dict[tuple[str, ...], set[tuple[frozenset[str], ...]]] = defaultdict(set)
    for name in names:
        parts = re.split("([0-9]+)", name)
        cut = max(0, len(parts) - 1 - 2 * NUMBERS)
        parts = ["".join(parts[: cut + 1]), *parts[cut + 1 :]]
        rows_of[tuple(parts[::2])].add(tuple(frozenset([number]) for number in parts[1::2]))
    found: list[Ranges] = []
    for texts, rows in rows_of.items():
        for at in reversed(range(len(texts) - 1)):
            alike: dict[tuple[tuple[frozenset[str], ...], ...], set[str]] = defaultdict(set)
            for row in rows:
                alike[row[:at], row[at + 1 :]] |= row[at]
            rows = {(*before, frozenset(numbers), *after) for (before, after), numbers in alike.items()}
        found += [(texts, row) for row in rows]
    return sorted(found, key=lambda each: (each[0], [min((int(n), n) for n in part) for part in each[1]]))


def _spelled(ranges: Ranges) -> str:
    """Return ranges as ClusterShell spells them: `r1c[1-4]`."""
    from ClusterShell.RangeSet import RangeSet

    texts, numbers = ranges
    shown = [f"[{RangeSet.fromlist(each)}]" if len(each) > 1 else min(each) for each in numbers]
    return "".join(part for pair in zip(texts, [*shown, ""], strict=True) for part in pair)


def fold_alike(result: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the folded names of nodes with the same text, and that text, in the order of the first nodes.

    Args:
        result: a node's name, and its text.
    """
    alike: dict[str, list[str]] = defaultdict(list)
    for name, text in result:
        alike[text].append(name)
    for text, names in alike.items():
        yield fold(names), text


@contextmanager
def of_one_document(names: int | None = None) -> Iterator[None]:
    """Limit the names of all sets that are expanded in the context, by default to `ALTOGETHER`."""
    token = _LEFT.set([names or ALTOGETHER] * 2)
    try:
        yield
    finally:
        _LEFT.reset(token)


def expand(stated: object) -> list[str]:
    """Expand `gpu[01-08]`, or a list of such, to single names, sorted and each once.

    Raises:
        ValueError: not a node set, more than `LARGEST` names, or too many for `of_one_document`.
    """
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    listed = stated if isinstance(stated, list) else [stated]
    texts = [text for text in listed if isinstance(text, str)]
    if len(texts) < len(listed):
        raise ValueError("host names such as gpu[01-08], a list of them, or a mapping of name to address")
    text = ",".join(texts)
    if re.search("[0-9]{254}", text):
        raise ValueError("host names of at most 253 characters, such as gpu[01-08]")
    if (count := _count(text)) > LARGEST:
        raise ValueError(f"at most {LARGEST} host names in one set, not {count}")
    left = _LEFT.get([ALTOGETHER] * 2)
    left[0] -= count
    if left[0] < 0:
        raise ValueError(f"at most {left[1]} host names in all sets of a document")
    parts = _split(text, COMMAS)
    together = sum(len(_NUMBER.findall(part)) > 1 for part in parts) <= SEVERAL
    if not together and re.search("[!&^]", text):
        raise ValueError(f"at most {SEVERAL} ranges of names with several numbers, with !, & or ^")
    try:
        if together:
            return list(NodeSet(text, resolver=RESOLVER_NOGROUP))
        found = {name for part in parts for name in NodeSet(part, resolver=RESOLVER_NOGROUP)}
    except NodeSetException as error:
        raise ValueError(f"host names such as gpu[01-08] ({str(error)[:200]})") from None
    return sorted(found, key=_in_order)


def _in_order(name: str) -> list[tuple[str, int, str]]:
    """Return the key by which names are sorted by their numbers, not by the digits of these."""
    parts = re.split("([0-9]+)", name)
    return [
        (text, int(number or 0), number) for text, number in zip(parts[::2], [*parts[1::2], ""], strict=True)
    ]


def _count(text: str) -> int:
    """Return how many names a set has at most, by its ranges.

    Raises:
        ValueError: not a range of numbers.
    """
    total = 0
    for pattern in _split(text, SIGNS):
        names = 1
        for ranges in re.findall(r"\[([^\[\]]*)\]", pattern):
            names = min(names * sum(map(_size, ranges.split(","))), LARGEST + 1)
        total += names
    return total


def _split(text: str, signs: re.Pattern[str]) -> list[str]:
    """Split a set at signs that are outside brackets, in time of its length.

    Args:
        signs: pattern of a pair of brackets or a sign.
    """
    ends = [found.span() for found in signs.finditer(text) if found[0][0] != "["]
    return [text[end:start] for (_, end), (start, _) in pairwise([(0, 0), *ends, (len(text), len(text))])]


def _size(stated: str) -> int:
    """Return how many numbers a range such as `01-08` or `0-8/2` has; raise ValueError if it is not one."""
    parsed = _RANGE.fullmatch(stated)
    if not parsed:
        raise ValueError(f"host names such as gpu[01-08] (bad range: {stated[:40]!r})")
    first, last = int(parsed[1]), int(parsed[2] or parsed[1])
    return len(range(first, last + 1, int(parsed[3] or 1) or 1))

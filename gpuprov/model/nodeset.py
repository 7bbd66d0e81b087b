"""Sets of node names: `gpu[001-064]`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

LARGEST = 100_000
"""The most names that one set may have. They are counted before they are made, as each takes memory."""
_NAME = re.compile(r"(?!@)[\w.:@-]+")
"""One host's name or address; other text is a set with syntax, which ClusterShell would expand."""
_RANGE = re.compile(r"\s*(-?[0-9]{1,12})(?:\s*-\s*([0-9]{1,12})(?:/([0-9]{1,12}))?)?\s*")


def fold(names: Iterable[str]) -> str:
    """Return names as one set, `gpu[001-064]`, or joined by commas if one of them is no name of a host.

    In a set, names are sorted and repeated ones appear once.
    """
    listed = list(names)
    if not all(map(_NAME.fullmatch, listed)):
        return ",".join(listed)
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    try:
        return str(NodeSet.fromlist(listed, resolver=RESOLVER_NOGROUP))
    except NodeSetException:
        return ",".join(listed)


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


def expand(stated: object) -> list[str]:
    """Expand `gpu[01-08]`, or a list of such, to single names, sorted and each once.

    Raises:
        ValueError: not a node set, or more than `LARGEST` names.
    """
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    listed = stated if isinstance(stated, list) else [stated]
    texts = [text for text in listed if isinstance(text, str)]
    if len(texts) < len(listed):
        raise ValueError("host names such as gpu[01-08], a list of them, or a mapping of name to address")
    text = ",".join(texts)
    if (count := _count(text)) > LARGEST:
        raise ValueError(f"at most {LARGEST} host names in one set, not {count}")
    try:
        return list(NodeSet(text, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        raise ValueError(f"host names such as gpu[01-08] ({error})") from None


def _count(text: str) -> int:
    """Return how many names a set has at most, by its ranges.

    Raises:
        ValueError: not a range of numbers.
    """
    total = 0
    for pattern in re.split(r"[,!&^](?![^\[\]]*\])", text):
        names = 1
        for ranges in re.findall(r"\[([^\[\]]*)\]", pattern):
            names *= sum(map(_size, ranges.split(",")))
        total += names
    return total


def _size(stated: str) -> int:
    """Return how many numbers a range such as `01-08` or `0-8/2` has; raise ValueError if it is not one."""
    parsed = _RANGE.fullmatch(stated)
    if not parsed:
        raise ValueError(f"host names such as gpu[01-08] (bad range: {stated[:40]!r})")
    first, last = int(parsed[1]), int(parsed[2] or parsed[1])
    return len(range(first, last + 1, int(parsed[3] or 1) or 1))

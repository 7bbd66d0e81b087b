"""Results of parsers that are kept for equal texts of many nodes, in limited memory.

The cache of functools counts results only: what one node sent, up to 1 MiB of text and ten times as much of
results, would stay for as long as gpuprov runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # nodes with Python 3.9 run parsers, too
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")

SHORT = 256
"""Longest value of a field, in characters, whose results are kept by thousands."""
LIST = 1 << 19
"""Longest list of packages, in characters: 5,000 packages take about 300,000."""


def kept(count: int, longest: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that keeps the last results of a function of hashable arguments.

    Args:
        count: number of results.
        longest: maximum number of characters in the arguments; the result for longer ones is not kept.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        cached = lru_cache(maxsize=count)(function)

        @wraps(function)
        def call(*arguments: P.args, **named: P.kwargs) -> R:
            # The first case is that of thousands of values; it takes a quarter of the time.
            is_text = len(arguments) == 1 and isinstance(arguments[0], str) and not named
            size = len(arguments[0]) if is_text else _size((*arguments, *named.values()))  # type: ignore[arg-type]
            if size > longest:
                return function(*arguments, **named)
            return cached(*arguments, **named)  # type: ignore[arg-type]

        return call

    return decorate


def _size(values: tuple[object, ...]) -> int:
    """Return the number of characters in texts, also in tuples of texts."""
    size = 0
    for each in values:
        if isinstance(each, str):
            size += len(each)
        elif isinstance(each, tuple):
            size += _size(each)
    return size

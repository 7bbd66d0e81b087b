"""Text of differences: expected and actual values on one line."""

from __future__ import annotations

from typing import Any

from gpuprov.drift.judge import Difference
from gpuprov.finding import shortened
from gpuprov.untrusted import on_one_line

MOST_ITEMS = 3


def value(thing: Any) -> str:
    """Return an expected or actual value, short enough for a line: `nothing` for None, `none` for [].

    Booleans are `on` and `off`. Of mappings and lists the first `MOST_ITEMS` items are listed, and of a text
    at most `finding.CHARACTERS`: nodes choose its length.
    """
    return shortened(_words(thing))


def _words(thing: Any) -> str:
    """Return a value as `value`, of any length."""
    if thing is None:
        return "nothing"
    if isinstance(thing, bool):
        return "on" if thing else "off"
    if isinstance(thing, dict):
        return _few([f"{on_one_line(str(name))} {_words(each)}" for name, each in thing.items()])
    if isinstance(thing, list):
        return _few([_words(each) for each in thing]) if thing else "none"
    return on_one_line(str(thing))


def _few(items: list[str]) -> str:
    """Return the first `MOST_ITEMS` items and the number of the others, joined by commas."""
    more = len(items) - MOST_ITEMS
    return ", ".join(items[:MOST_ITEMS]) + (f" and {more} more" if more > 0 else "")


def difference(each: Difference) -> str:
    """Return `driver.loaded expected 535.309.01, is nothing`, with the place that sets the value if known.

    The same for a mapping without any of the expected items, as on a fresh node.
    """
    by = f", by {on_one_line(', '.join(each.by))}" if each.by else ""
    is_ = value(each.actual)
    if isinstance(each.actual, dict) and each.actual and not any(x is not None for x in each.actual.values()):
        is_ = "nothing" if len(each.actual) == 1 else "none of them"
    return f"{each.check} expected {value(each.expected)}, is {is_}{by}"

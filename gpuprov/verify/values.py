"""Values in results of checks: of limited size, as JSON has them."""

from __future__ import annotations

from itertools import islice
from typing import Any

from gpuprov.untrusted.parsing import printable_value
from gpuprov.untrusted.urls import public_urls

SHOWN = 4096
"""Maximum length of a text from a node in a result, and `ITEMS` that of a list or a mapping: results of all
nodes are in memory and in the report together.
"""
ITEMS = 1000


def plain(value: Any) -> Any:
    """Convert a value for JSON: sets become sorted lists, unknown types text; longer values are cut.

    A list or mapping keeps `ITEMS` entries, a text `SHOWN` characters, and URLs no passwords. A value that
    cannot be printed becomes the reason.
    """
    return _plain(printable_value(value))


def _plain(value: Any) -> Any:
    """Convert a value whose depth is limited to values of JSON; of a container at most `ITEMS` items are
    kept, texts are cut, sets become sorted lists.
    """
    if isinstance(value, dict):
        return {_text(key): _plain(item) for key, item in islice(value.items(), ITEMS)}
    if isinstance(value, (set, frozenset)):
        return sorted(map(_plain, islice(value, ITEMS)))
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value[:ITEMS]]
    return value if isinstance(value, (int, float, bool, type(None))) else _text(value)


def _text(value: Any) -> str:
    """Return a value as a text that is cut, whose URLs have no passwords."""
    return public_urls(cut(str(value)))


def cut(text: str) -> str:
    """Return a text with at most `SHOWN` characters; `…` replaces the rest."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"

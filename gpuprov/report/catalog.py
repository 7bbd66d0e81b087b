"""Catalog records as text: a table of the main columns, or one complete record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpuprov.report.table import aligned

_WIDEST = 60


def describe_table(records: Sequence[dict[str, Any]], columns: Sequence[str]) -> Iterator[str]:
    """Yield aligned columns with a header; a long value is cut, and `-` is a missing one."""
    rows = [[column.replace("_", " ").upper() for column in columns]]
    rows += [[_cell(record.get(column)) for column in columns] for record in records]
    yield from aligned(rows)


def _cell(value: Any) -> str:
    """Return a value as text of at most `_WIDEST` characters."""
    text = _text(value)
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"


def _text(value: Any) -> str:
    """Return a value as text: `-` for None and an empty list, yes or no for a boolean, commas in lists
    and objects, of these without empty fields.
    """
    if value is None or value == []:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, dict):
        stated = {key: each for key, each in value.items() if each not in (None, [])}
        return ", ".join(f"{key} {_text(each)}" for key, each in stated.items())
    return str(value)


def describe_record(record: dict[str, Any]) -> Iterator[str]:
    """Yield one field a line, without empty ones, then the record's doubts and its sources."""
    width = max(map(len, record)) + 2
    for name, value in record.items():
        if name not in ("source", "doubts") and value not in (None, [], {}, ""):
            yield f"{name.replace('_', ' '):<{width}}{_text(value)}"
    if record.get("doubts"):
        yield ""
        yield "doubts"
        yield from (f"  - {doubt['text']} [{'; '.join(doubt['source'])}]" for doubt in record["doubts"])
    yield ""
    yield "sources"
    yield from (f"  - {line}" for line in record["source"])

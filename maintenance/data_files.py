"""Text format of the catalog's data files: stable, so that a diff shows only the changed lines."""

from __future__ import annotations

import json
from typing import Any

WIDTH = 119
"""Maximum length of a line in characters, if its values permit."""


def render(document: dict[str, Any]) -> str:
    """Return the text of a data file: sections below each other, a record on as few lines as it needs.

    It ends with a newline. Characters other than ASCII are kept.
    """
    sections = [f" {_flat(name)}: {_section(name, value)}" for name, value in document.items()]
    return "{\n" + ",\n".join(sections) + "\n}\n"


def _section(name: str, value: Any) -> str:
    """Return the value of a section on one line if it fits after its name, otherwise on several."""
    room = WIDTH - len(name) - len(' "": ,')
    return _flat(value) if not value or len(_flat(value)) <= room else _broken(value, 1)


def _flat(value: Any) -> str:
    """Return a value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False)


def _broken(value: Any, indent: int) -> str:
    """Return an object or a list on several lines, filled.

    Each object of a list of objects begins a new line.

    Args:
        indent: blanks before the last line; other lines have one more.
    """
    if isinstance(value, dict):
        edges, parts = "{}", [(f"{_flat(key)}: ", each) for key, each in value.items()]
    else:
        edges, parts = "[]", [("", each) for each in value]
    apart = isinstance(value, list) and all(isinstance(each, dict) for each in value)
    pad = " " * (indent + 1)
    lines: list[str] = []
    open_line = False
    for index, (key, each) in enumerate(parts):
        comma = "," if index < len(parts) - 1 else ""
        text = f"{key}{_flat(each)}{comma}"
        fits = len(pad) + len(text) <= WIDTH
        if fits and open_line and not apart and len(lines[-1]) + 1 + len(text) <= WIDTH:
            lines[-1] += f" {text}"
            continue
        nested = isinstance(each, dict | list) and each and not fits
        lines.append(f"{pad}{key}{_broken(each, indent + 1)}{comma}" if nested else pad + text)
        open_line = fits
    return f"{edges[0]}\n" + "\n".join(lines) + f"\n{' ' * indent}{edges[1]}"

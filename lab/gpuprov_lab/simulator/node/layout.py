"""Output of the layouts: the text and XML of `nvidia-smi -q`, the columns of `--query-gpu`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

LAYOUTS = Path(__file__).parent.parent / "layouts"

_RANGE = re.compile(r"(\d*):(\d*)")


class Line(NamedTuple):
    """One entry of `nvidia-smi -q`; depth counts from 0; None for a label or tag that the output omits."""

    label: str | None
    label_depth: int
    tag: str | None
    tag_depth: int
    value: str
    sections: frozenset[str]
    extra: bool
    hexadecimal: bool


class Field(NamedTuple):
    """One column of `--query-gpu`: its name in the header, its unit, and its value."""

    name: str
    unit: str
    value: str


def query_lines(branch: int, features: frozenset[str]) -> list[Line]:
    """Return the entries that a driver branch shows of a GPU with these features; entries below a hidden one
    are hidden.
    """
    lines: list[Line] = []
    hidden_below: int | None = None
    for label, tag, value, marks in _rows("query.txt", 4):
        depth = _depth(tag if label.strip() == "-" else label)
        if hidden_below is not None and depth > hidden_below:
            continue
        words = marks.split()
        hidden_below = None if all(_applies(word, branch, features) for word in words) else depth
        if hidden_below is None:
            lines.append(_line(label, tag, value, words, lines))
    return lines


def query_text(lines: list[Line], values: Mapping[str, str], sections: frozenset[str]) -> Iterator[str]:
    """Yield the text of one GPU; with sections, only those (as `-q -d` does), without, all but the extra
    ones.
    """
    for line in lines:
        chosen = bool(line.sections & sections) if sections else not line.extra
        if line.label is None or not chosen:
            continue
        label = "    " * (line.label_depth + 1) + line.label
        yield f"{label:<55}: {line.value.format_map(values)}" if line.value else label


def query_xml(lines: list[Line], values: Mapping[str, str], parts: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield the XML between <gpu> and </gpu>; `parts` has the lines of tags that the layout only names."""
    entries = [line for line in lines if line.tag is not None and not line.extra]
    open_tags: list[str] = []
    for position, line in enumerate(entries):
        while len(open_tags) > line.tag_depth:
            yield "\t" * (len(open_tags) + 1) + f"</{open_tags.pop()}>"
        indent = "\t" * (line.tag_depth + 2)
        value = _escaped(line.value.format_map(values))
        following = entries[position + 1].tag_depth if position + 1 < len(entries) else 0
        if line.tag is not None and line.tag in parts:
            yield from parts[line.tag]
        elif line.tag == "TEXT":
            yield indent + value
        elif following > line.tag_depth or not value:
            yield f"{indent}<{line.tag}>"
            open_tags.append(str(line.tag))
        else:
            bare = value.removeprefix("0x") if line.hexadecimal else value
            yield f"{indent}<{line.tag}>{bare}</{line.tag}>"
    while open_tags:
        yield "\t" * (len(open_tags) + 1) + f"</{open_tags.pop()}>"


def query_fields() -> dict[str, Field]:
    """Return the column of every name of `--query-gpu`, aliases included."""
    return {
        name: Field(names.split()[0], unit.strip(), value)
        for names, unit, value in _rows("fields.txt", 3)
        for name in names.split()
    }


def _rows(layout: str, columns: int) -> Iterator[list[str]]:
    """Yield the cells of each row of a layout; missing ones are empty. The first two keep
    their indentation.
    """
    for row in (LAYOUTS / layout).read_text().splitlines():
        if row.strip() and not row.startswith("#"):
            cells = row.split("|")
            yield [cell.rstrip() for cell in cells[:2]] + [
                cell.strip() for cell in (cells[2:] + [""] * columns)[: columns - 2]
            ]


def _applies(word: str, branch: int, features: frozenset[str]) -> bool:
    """Return whether a row's mark allows it: a range of branches, a feature, or `!` and a feature; section
    names always do.
    """
    match = _RANGE.fullmatch(word)
    if match:
        return int(match[1] or 0) <= branch <= int(match[2] or 9999)
    if word.startswith("!"):
        return word[1:] not in features
    return word.isupper() or word == "hex" or word.startswith("+") or word in features


def _line(label: str, tag: str, value: str, words: list[str], before: list[Line]) -> Line:
    """Return a row as a Line; a nested row belongs to the section of the row above it."""
    label_depth, tag_depth = _depth(label), _depth(tag)
    nested = max(label_depth, tag_depth) > 0
    sections = frozenset(word.lstrip("+") for word in words if word.lstrip("+").isupper())
    return Line(
        label=None if label.strip() == "-" else re.sub(r"_\Z", " ", label.strip()),
        label_depth=label_depth,
        tag=None if tag.strip() == "-" else tag.strip(),
        tag_depth=tag_depth,
        value=value,
        sections=before[-1].sections if nested and before else sections,
        extra=before[-1].extra if nested and before else any(word.startswith("+") for word in words),
        hexadecimal="hex" in words,
    )


def _depth(cell: str) -> int:
    """Return the depth: four spaces a level; every tag column starts with one space after its bar."""
    return (len(cell) - len(cell.lstrip())) // 4


def _escaped(text: str) -> str:
    """Escape text for XML; the library's own function is in modules that take long to load."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

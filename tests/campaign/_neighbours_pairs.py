"""Pairs of fleets that differ in one key, made from a full fleet."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.campaign._neighbours_keys import CHANGED, GONE, Other, Site, covers, parents, reason, schema_keys

Document = dict[str, Any]


@dataclass(frozen=True)
class Pair:
    """A fleet next to the full one.

    Attributes:
        key: key in which it differs, as in the file.
        change: the difference in words.
        document: the fleet.
    """

    key: str
    change: str
    document: Document

    def __str__(self) -> str:
        """Return key and change."""
        return f"{self.key}: {self.change}"


def pairs(full: Document, site: Site) -> Iterator[Pair]:
    """Yield every neighbour of a fleet: a key with another value, and each stated key left out."""
    keys = schema_keys()
    for key in keys:
        if reason(key):
            continue
        for stated in _stated(key):
            for other in CHANGED.get(stated, ()):
                yield from _changed(full, stated, other, site)
        if key in parents(keys) or any(stated in CHANGED for stated in _stated(key)):
            yield from _left_out(full, key)


def _stated(key: str) -> list[str]:
    """Return the keys of `CHANGED` that cover a key."""
    return [stated for stated in CHANGED if covers(stated, key)]


def _changed(full: Document, key: str, other: Other, site: Site) -> Iterator[Pair]:
    """Yield the pair of a full fleet and one with another value of a key; none if the key has no place."""
    document = copy.deepcopy(full)
    for each, value in {key: other.value, **other.also}.items():
        place = next(_places(document, each, add=True), None)
        if place is None:
            return  # an item of a list that the full fleet does not have
        made = value(site) if callable(value) else value
        if made is GONE:
            place.holder.pop(place.name, None)
        else:
            place.holder[place.name] = made
    if document != full:
        before, now = (next(_places(each, key), None) for each in (full, document))
        assert now is not None
        also = ", ".join(each.rpartition(".")[2] for each in other.also)
        change = f"{before.value if before else UNSTATED} → {now.value}{f', with {also}' if also else ''}"
        yield Pair(now.path, change, document)


def _left_out(full: Document, key: str) -> Iterator[Pair]:
    """Yield a pair for each place of a key in the full fleet, in which it is left out."""
    for number, place in enumerate(_places(full, key)):
        if place.name in place.holder:
            document = copy.deepcopy(full)
            same = list(_places(document, key))[number]
            del same.holder[same.name]
            yield Pair(place.path, LEFT_OUT, document)


def merged(full: Document, one: Document, other: Document) -> Document | None:
    """Return the full fleet with the differences of two others, or None if both change the same place."""
    result = {}
    for key in {**full, **one, **other}:
        before, first, second = (each.get(key, GONE) for each in (full, one, other))
        value = second if first == before else first
        if before not in (first, second):
            if not all(isinstance(each, dict) for each in (before, first, second)):
                return None
            value = merged(before, first, second)
            if value is None:
                return None
        if value is not GONE:
            result[key] = value
    return result


UNSTATED, LEFT_OUT = "not stated", "left out"


@dataclass(frozen=True)
class _Place:
    """A key in a fleet: the mapping that holds, or would hold it, and its name there."""

    holder: Document
    path: str

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def value(self) -> Any:
        return self.holder.get(self.name, UNSTATED)


def _places(document: Document, key: str, *, add: bool = False) -> Iterator[_Place]:
    """Yield the places of a key; `*` is every name or item.

    Args:
        add: add records that are not stated.
    """
    *parts, name = key.split(".")
    holders: list[tuple[Any, str]] = [(document, "")]
    for part in parts:
        holders = [below for holder, path in holders for below in _below(holder, path, part, add=add)]
    yield from (_Place(holder, f"{path}{name}") for holder, path in holders if isinstance(holder, dict))


def _below(holder: Any, path: str, part: str, *, add: bool) -> list[tuple[Any, str]]:
    """Return the holders of a part of a key, each with its path; none if it is missing, unless `add`."""
    if part == "*":
        named = holder.items() if isinstance(holder, dict) else enumerate(holder)
        return [(value, f"{path}{name}.") for name, value in named]
    if part not in holder and not add:
        return []
    return [(holder.setdefault(part, {}), f"{path}{part}.")]

"""Conversion of JSON objects to typed records: every field is checked against the record's annotations.

A record is a frozen dataclass of str, int, float, bool, `Version`, `Literal`, optional, `tuple[X, ...]`,
`dict[X, Y]` and records. The catalog needs no more, and 250 kB are read in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from gpuprov.catalog.version import Version, version

Record = TypeVar("Record")
_Reader = Callable[[Any], Any]


class BadField(Exception):
    """An invalid field: its path within the record, the value seen, and what was expected."""

    def __init__(self, seen: str, expected: str, path: str = "") -> None:
        self.seen, self.expected, self.path = seen, expected, path
        super().__init__(f"{path}: {seen}; expected {expected}")


def read(kind: type[Record], raw: object) -> Record:
    """Read one record of `kind` from a JSON object.

    Raises:
        BadField: a field that is unknown, missing or of the wrong type.
    """
    reader: Any = _record_reader
    record: Record = reader(kind)(raw)
    return record


@cache
def _record_reader(kind: Any) -> _Reader:
    """Return the function that reads a record of a class from a JSON object.

    It raises BadField with the path for an unknown, missing or invalid field.
    """
    hints = get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name]) for field in fields(kind)}
    required = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]

    def read_record(raw: object) -> object:
        if not isinstance(raw, dict):
            raise BadField(_show(raw), "an object")
        values = {}
        for name, value in raw.items():
            if name not in readers:
                raise BadField("unknown field", ", ".join(readers), name)
            try:
                values[name] = readers[name](value)
            except BadField as bad:
                raise BadField(
                    bad.seen, bad.expected, f"{name}{'.' if bad.path[:1].isalpha() else ''}{bad.path}"
                ) from None
        for name in required:
            if name not in values:
                raise BadField("missing", "a value", name)
        return kind(**values)

    return read_record


def _reader(hint: Any) -> _Reader:
    """Return the function that reads a value of the annotated type; `Any` accepts all values."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda raw: raw
    if hint is Version:
        return _read_version
    if isinstance(hint, type) and is_dataclass(hint):
        return _record_reader(hint)
    if origin in (Union, UnionType):
        return _optional(_reader(next(a for a in arguments if a is not NoneType)))
    if origin is tuple:
        return _list_of(_reader(arguments[0]))
    if origin is dict:
        return _mapping_of(*map(_reader, arguments))
    if origin is Literal:
        return _one_of(arguments)
    return _plain(hint)


def _read_version(raw: object) -> Version:
    """Return the version in a string; BadField if it is not a version."""
    try:
        return version(str(raw) if isinstance(raw, str) else "")
    except ValueError:
        raise BadField(_show(raw), 'a version in quotes, such as "580.65.06"') from None


def _optional(inner: _Reader) -> _Reader:
    """Return a reader that also accepts null, as None."""
    return lambda raw: None if raw is None else inner(raw)


def _list_of(inner: _Reader) -> _Reader:
    """Return a reader of a list, as a tuple; it raises BadField with the index of an invalid item."""

    def read_list(raw: object) -> tuple[object, ...]:
        if not isinstance(raw, list):
            raise BadField(_show(raw), "a list")
        items = []
        for index, item in enumerate(raw):
            try:
                items.append(inner(item))
            except BadField as bad:
                dot = "." if bad.path[:1].isalpha() else ""
                raise BadField(bad.seen, bad.expected, f"[{index}]{dot}{bad.path}") from None
        return tuple(items)

    return read_list


def _mapping_of(key: _Reader, inner: _Reader) -> _Reader:
    """Return a reader of an object with keys and values of one type each."""

    def read_mapping(raw: object) -> dict[object, object]:
        if not isinstance(raw, dict):
            raise BadField(_show(raw), "an object")
        return {key(name): inner(value) for name, value in raw.items()}

    return read_mapping


def _one_of(choices: tuple[object, ...]) -> _Reader:
    """Return a reader that accepts only these values."""

    def read_choice(raw: object) -> object:
        if raw not in choices:
            raise BadField(_show(raw), "one of " + ", ".join(map(str, choices)))
        return raw

    return read_choice


def _plain(kind: type[Any]) -> _Reader:
    """Return a reader of a string, number or boolean; a float may be a whole number, a number never a
    boolean.
    """
    accepted = (int, float) if kind is float else (kind,)
    words = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}

    def read_plain(raw: object) -> object:
        if not isinstance(raw, accepted) or (isinstance(raw, bool) and kind is not bool):
            raise BadField(_show(raw), words[kind])
        return raw

    return read_plain


def _show(raw: object) -> str:
    """Return a value for a message, with at most 60 characters."""
    text = repr(raw)
    return text if len(text) <= 60 else text[:57] + "..."

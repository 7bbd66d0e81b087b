"""Fields of objects in imported JSON, each checked for its type when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuprov.errors import InvalidInput
from gpuprov.untrusted import on_one_line, shown


@dataclass(frozen=True)
class Fields:
    """An object of an imported document.

    Every method raises InvalidInput if the field has another type. A field that is null counts as missing.

    Attributes:
        place: place in the document, for errors.
    """

    values: Mapping[str, Any]
    place: str = ""

    @classmethod
    def of(cls, document: Any, place: str = "") -> Fields:
        """Return a document or a part of one; raise InvalidInput if it is not an object."""
        if document is not None and not isinstance(document, dict):
            raise _wrong(place or "the document", document, "an object")
        return cls(document or {}, place)

    def text(self, *names: str) -> str:
        """Return the first of these fields that is not empty, or "". InvalidInput if one is not a text."""
        for name in names:
            value = self.values.get(name)
            if value is not None and not isinstance(value, str):
                raise _wrong(self._at(name), value, "text")
            if value:
                return value
        return ""

    def number(self, *names: str) -> int | None:
        """Return the first of these fields that is stated: a whole number below 10⁹, also as text; None
        without one. InvalidInput for other values.
        """
        for name in names:
            value = self.values.get(name)
            if value in (None, ""):
                continue
            digits = str(value) if isinstance(value, int) and abs(value) < 10**9 else value
            if isinstance(digits, str) and len(digits) < 10 and digits.isascii() and digits.isdecimal():
                return int(digits)
            raise _wrong(self._at(name), value, "a whole number")
        return None

    def label(self, *names: str) -> str:
        """Return the first of these fields that is stated, a text or a whole number, or "". InvalidInput for
        other values.
        """
        for name in names:
            value = self.values.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18:
                return str(value)
            if found := self.text(name):
                return found
        return ""

    def part(self, *names: str) -> Fields:
        """Return the object at a path of fields; an empty one if a part is missing."""
        found = self
        for name in names:
            found = Fields.of(found.values.get(name), found._at(name))
        return found

    def parts(self, name: str) -> list[Fields]:
        """Return the objects of a list; [] if it is missing. InvalidInput if it is not a list of objects."""
        listed = self.values.get(name)
        if listed is not None and not isinstance(listed, list):
            raise _wrong(self._at(name), listed, "a list")
        return [Fields.of(each, f"{self._at(name)}[{at}]") for at, each in enumerate(listed or ())]

    def first(self, name: str) -> Fields:
        """Return the first object of a list, or an empty one."""
        return next(iter(self.parts(name)), Fields({}, self._at(name)))

    def _at(self, name: str) -> str:
        """Return the place of a field."""
        return f"{self.place}.{name}" if self.place else name


def _wrong(place: str, value: Any, expected: str) -> InvalidInput:
    """Return the error for a value of another type."""
    return InvalidInput(f"{on_one_line(place)[-200:]} is {shown(value)}", expected=expected)

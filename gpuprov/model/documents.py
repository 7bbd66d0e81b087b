"""YAML documents with a typed shape: reading with line numbers in every complaint, writing reproducibly.

A complaint reads `fleet.yml:7: unknown key 'profle' in groups.train; expected one of …; did you mean …?`
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from gpuprov.errors import InFile, InvalidInput, did_you_mean
from gpuprov.model.marked import Marked, Path_, dotted

MAX_BYTES = 32 * 1024 * 1024


class Strict(BaseModel):
    """A frozen record that knows no keys but its own."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Places(dict[str, str]):
    """What → `FILE:LINE`. Where a record was read is no part of what it says: all are equal."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Places)

    __hash__ = None


D = TypeVar("D", bound=Strict)


def read_text(path: Path, missing: str = "") -> str:
    """The text of a file of a person's.

    Raises:
        InvalidInput: it cannot be read, is too large, or is not UTF-8.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InvalidInput(f"{path} is larger than {MAX_BYTES >> 20} MiB")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidInput(f"{path} does not exist", do=missing) from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not UTF-8 text") from None


def read_document(path: Path, shape: type[D], *, missing: str = "") -> D:
    """Read a YAML file into `shape`.

    Raises:
        InvalidInput: with file, line, what was seen, what was expected.
    """
    return parse_document(read_text(path, missing), shape, name=str(path))


def parse_document(text: str, shape: type[D], *, name: str) -> D:
    """The same for a text; `name` stands for the file in complaints."""
    return shaped(Marked(text, name), shape)


def shaped(document: Marked, shape: type[D]) -> D:
    """A whole document in its shape.

    Raises:
        InvalidInput: with file, line, what was seen, what was expected.
    """
    if not isinstance(document.data, dict):
        raise not_a_mapping(document, shape)
    return validate(document, document.data, shape)


def validate(document: Marked, data: Any, shape: type[D], at: Path_ = ()) -> D:
    """Give plain data its shape; complaints name the line below `at` in `document`.

    Raises:
        InvalidInput: the first complaint, and how many more there are.
    """
    try:
        return shape.model_validate(data)
    except ValidationError as error:
        found = _causes(error)
        # A misspelt key is seen twice: as unknown, and as missing. The first says more.
        first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
        raise _complaint(document, shape, at, first, more=len(found) - 1) from None


def complaints(document: Marked, shape: type[BaseModel]) -> list[InFile]:
    """Everything that is wrong with a document's shape, in the order of its lines."""
    if not isinstance(document.data, dict):
        return [not_a_mapping(document, shape)]
    try:
        shape.model_validate(document.data)
    except ValidationError as error:
        found = _causes(error)
        unknown = {each["loc"][:-1] for each in found if each["type"] == "extra_forbidden"}
        told: dict[tuple[int, str], InFile] = {}
        for each in found:
            if each["type"] == "missing" and each["loc"][:-1] in unknown:
                continue  # the key is there, misspelt
            complaint = _complaint(document, shape, (), each, more=0)
            told.setdefault((complaint.line, _short(each["input"])), complaint)
        return sorted(told.values(), key=lambda each: each.line)
    return []


def _causes(error: ValidationError) -> list[Any]:
    """The complaints, without those about a list that is only short because its items are wrong."""
    found = error.errors(include_url=False)
    above = {each["loc"][:depth] for each in found for depth in range(len(each["loc"]))}
    return [each for each in found if each["type"] != "too_short" or each["loc"] not in above]


def not_a_mapping(document: Marked, shape: type[BaseModel]) -> InFile:
    """The complaint about a document that holds something else."""
    seen = "the file is empty" if document.data is None else "not a mapping"
    return document.wrong("wrong-value", (), seen, expected=f"the keys {_names(shape)}")


def _complaint(document: Marked, shape: type[BaseModel], at: Path_, error: Any, more: int) -> InFile:
    path = at + tuple(step for step in error["loc"] if step != "[key]")  # pydantic's word for a key itself
    others = f"and {more} more below" if more else ""
    if error["type"] == "extra_forbidden":
        *parents, key = error["loc"]
        known = sorted(_keys_at(shape, tuple(parents)))
        return document.wrong(
            "unknown-key",
            path,
            f"unknown key {key!r} in {dotted(at + tuple(parents))}",
            expected="one of " + ", ".join(known),
            do=did_you_mean(str(key), known) or others,
        )
    if error["type"] == "missing":
        expected = MISSING.get(str(path[-1]), "")
        return document.wrong("missing-key", path, f"{dotted(path)} is missing", expected=expected, do=others)
    while path and path not in document.lines:  # what stands alone where a list may stand is its first item
        path = path[:-1]
    written = document.written.get(path, "")
    seen = f"{dotted(path)} is {written or _short(error['input'])}"
    expected = _expectation(error).replace(DECIMAL, written) if written else _expectation(error)
    return document.wrong("wrong-value", path, seen, expected=expected, do=others)


MISSING = {
    "profile": "a profile by name, of those that `gpuprov inventory profiles` lists",
    "hosts": "host names such as gpu[01-08]",
    "os": "a system such as ubuntu24.04, of those that `gpuprov catalog os` lists",
}
"""Keys that people leave out → what stands there."""
DECIMAL = "{written}"
"""Stands in the message of a validator for the number as the file has it."""
EXPECTED = {
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
"""Pydantic's kind of error → what people call the thing that it expects."""


def _expectation(error: Any) -> str:
    if error["type"] in EXPECTED:
        return EXPECTED[error["type"]]
    text = str(error["msg"])
    for start in ("Value error, ", "Input should be ", "Input should "):
        text = text.removeprefix(start)
    return text[:1].lower() + text[1:]


def _short(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"


def _names(shape: type[BaseModel]) -> str:
    return ", ".join(field.alias or name for name, field in shape.model_fields.items())


def _keys_at(shape: type[BaseModel], path: Path_) -> set[str]:
    """The keys that the record at `path` inside `shape` knows."""
    for step in path:
        field = shape.model_fields.get(str(step))
        if field is None:
            continue  # a key of a mapping or an index: the record is the mapping's value type
        inner = _record_in(field.annotation)
        if inner is not None:
            shape = inner
    return {field.alias or name for name, field in shape.model_fields.items()}


def _record_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _record_in(part))), None)


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Text of several lines, such as a key, line by line."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def render_document(record: Strict, *, header: str = "") -> str:
    """The record as YAML: keys in the model's order, nothing that is None, no line folding."""
    return header + render_plain(record.model_dump(mode="json", by_alias=True, exclude_none=True))


def render_plain(plain: Any) -> str:
    """Plain data as YAML in the same manner, None included."""
    text: str = yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    return text


def write_document(path: Path, record: Strict, *, header: str = "") -> None:
    """Write the record's YAML, atomically: a reader sees the old file or the new one.

    Raises:
        InvalidInput: the folder cannot be written.
    """
    write_text(path, render_document(record, header=header))


def write_text(path: Path, text: str) -> None:
    """Write a file atomically, keeping nothing half-written behind.

    Raises:
        InvalidInput: the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InvalidInput(f"{path} cannot be written: {error.strerror}") from None

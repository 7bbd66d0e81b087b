"""YAML documents with a typed shape: reading with line numbers in every complaint, writing reproducibly.

A complaint reads `fleet.yml:7: unknown key 'profle' in groups.train; expected one of …; did you mean …?`
"""

from __future__ import annotations

import difflib
import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from gpuprov.errors import InFile, InvalidInput

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
Path_ = tuple[str | int, ...]


class Marked:
    """A YAML document: plain data, and the line of each key and item."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.lines: dict[Path_, int] = {}
        try:
            node = _compose(text)
            self.data = self._plain(node, ()) if node is not None else None
        except RecursionError:
            raise InvalidInput(f"{name}: nested deeper than any document of ours is") from None
        except ValueError as error:  # a number of thousands of digits, a date that is none
            raise InvalidInput(f"{name}: not a value: {error}") from None
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            problem = getattr(error, "problem", None) or str(error)
            if mark is None:
                raise InvalidInput(f"{name}: not YAML: {problem}") from None
            raise InFile("not-yaml", name, mark.line + 1, f"not YAML: {problem}") from None

    def _plain(self, node: yaml.Node, path: Path_) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(item, (*path, index)) for index, item in enumerate(node.value)]
        return _constructor.construct_object(node)

    def _mapping(self, node: yaml.MappingNode, path: Path_) -> dict[Any, Any]:
        plain: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = _constructor.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if key in plain:
                raise InFile("key-twice", self.name, line, f"key {key!r} stands twice in {dotted(path)}")
            self.lines[(*path, key)] = line
            plain[key] = self._plain(value_node, (*path, key))
        return plain

    def line(self, path: Path_) -> int:
        """The line of the nearest thing on `path` that stands in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def wrong(self, kind: str, path: Path_, seen: str, *, expected: str = "", do: str = "") -> InFile:
        """What is wrong with the thing at `path`, with its place."""
        return InFile(kind, self.name, self.line(path), seen, expected=expected, do=do)


class Loader(yaml.SafeLoader):
    """YAML without aliases: no document of ours needs them, and nested ones are a bomb."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose one node, refusing aliases."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(
                None,
                None,
                "aliases (*name) are not allowed here",
                self.peek_event().start_mark,  # type: ignore[no-untyped-call]
            )
        return super().compose_node(parent, index)


def _compose(text: str) -> yaml.Node | None:
    """The node tree of a document, by libyaml where there is one: ten times as fast on 10,000 lines.

    What it cannot read, and what might hold an alias, is Python's to complain about.
    """
    fast = getattr(yaml, "CSafeLoader", None)
    if fast is not None and not POSSIBLE_ALIAS.search(text):
        with suppress(yaml.YAMLError):
            return yaml.compose(text, Loader=fast)
    return yaml.compose(text, Loader=Loader)


POSSIBLE_ALIAS = re.compile(r"(?:^|[\s,\[{:?-])[&*]\w", re.MULTILINE)

_constructor = yaml.constructor.SafeConstructor()


def dotted(path: Path_) -> str:
    """`groups.train.hosts` for a person; `the document` for the top."""
    return ".".join(map(str, path)) or "the document"


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
        found = error.errors(include_url=False)
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
        found = error.errors(include_url=False)
        unknown = {each["loc"][:-1] for each in found if each["type"] == "extra_forbidden"}
        told: dict[tuple[int, str], InFile] = {}
        for each in found:
            if each["type"] == "missing" and each["loc"][:-1] in unknown:
                continue  # the key is there, misspelt
            complaint = _complaint(document, shape, (), each, more=0)
            told.setdefault((complaint.line, _short(each["input"])), complaint)
        return sorted(told.values(), key=lambda each: each.line)
    return []


def not_a_mapping(document: Marked, shape: type[BaseModel]) -> InFile:
    """The complaint about a document that holds something else."""
    return document.wrong("wrong-value", (), "not a mapping", expected=f"the keys {_names(shape)}")


def _complaint(document: Marked, shape: type[BaseModel], at: Path_, error: Any, more: int) -> InFile:
    path = at + tuple(step for step in error["loc"] if step != "[key]")  # pydantic's word for a key itself
    others = f"and {more} more below" if more else ""
    if error["type"] == "extra_forbidden":
        *parents, key = error["loc"]
        known = sorted(_keys_at(shape, tuple(parents)))
        near = difflib.get_close_matches(str(key), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else others
        return document.wrong(
            "unknown-key",
            path,
            f"unknown key {key!r} in {dotted(at + tuple(parents))}",
            expected="one of " + ", ".join(known),
            do=hint,
        )
    if error["type"] == "missing":
        return document.wrong("missing-key", path, f"{dotted(path)} is missing", do=others)
    seen = f"{dotted(path)} is {_short(error['input'])}"
    return document.wrong("wrong-value", path, seen, expected=_expectation(error), do=others)


def _expectation(error: Any) -> str:
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

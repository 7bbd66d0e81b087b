"""YAML documents with a typed structure: parsed with line numbers in every error, written reproducibly.

An error reads `fleet.yml:7: unknown key 'profle' in groups.train; expected one of …; did you mean …?`
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from gpuprov.errors import InFile, InvalidInput, did_you_mean
from gpuprov.files.writing import replace_file
from gpuprov.model.marked import Marked, Path_, dotted
from gpuprov.model.nodeset import of_one_document
from gpuprov.untrusted.stated import read_bounded
from gpuprov.untrusted.urls import public_urls

MAX_BYTES = 32 * 1024 * 1024
ERRORS = 10_000
"""Maximum number of structural errors of a document that are listed: each takes 2 KB of memory."""


class Strict(BaseModel):
    """A frozen record that rejects unknown keys."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, defer_build=True, allow_inf_nan=False
    )


class Places(dict[str, str]):
    """Subject → `FILE:LINE`. The place is no part of a record's value: all instances are equal."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Places)

    __hash__ = None


D = TypeVar("D", bound=Strict)


def read_text(path: Path, missing: str = "") -> str:
    """Read a text file written by a user.

    Args:
        missing: what to do about a missing file, for the error.

    Raises:
        InvalidInput: it does not exist, cannot be read, is larger than `MAX_BYTES`, or is not UTF-8.
    """
    try:
        text = read_bounded(path, MAX_BYTES).decode("utf-8")
    except FileNotFoundError:
        raise InvalidInput(f"{path} does not exist", do=missing) from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not UTF-8 text") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_document(path: Path, shape: type[D], *, missing: str = "") -> D:
    """Read a YAML file into `shape`; `missing` is what to do about a missing file, for its error.

    Raises:
        InvalidInput: with file, line, what was seen, what was expected.
    """
    return parse_document(read_text(path, missing), shape, name=str(path))


def parse_document(text: str, shape: type[D], *, name: str) -> D:
    """Parse YAML text into `shape`, or raise InvalidInput; `name` is the file's name in errors."""
    return shaped(Marked(text, name), shape)


def shaped(document: Marked, shape: type[D]) -> D:
    """Validate a whole document, and return its record.

    Raises:
        InvalidInput: with file, line, what was seen, what was expected.
    """
    if not isinstance(document.data, dict):
        raise not_a_mapping(document, shape)
    return validate(document, document.data, shape)


def validate(document: Marked, data: Any, shape: type[D], at: Path_ = ()) -> D:
    """Validate plain data, a part of a document, and return the record.

    Args:
        document: source of the lines in errors.
        at: path of the data in the document.

    Raises:
        InvalidInput: the first error, and how many more there are; an unknown key precedes other errors.
    """
    try:
        with of_one_document():
            return shape.model_validate(data)
    except ValidationError as error:
        found = _causes(error, document)
        # A misspelt key appears twice: as unknown, and as missing. The first error is more helpful.
        first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
        raise _complaint(document, shape, at, first, more=len(found) - 1) from None


def complaints(document: Marked, shape: type[BaseModel]) -> list[InFile]:
    """Return all structural errors of a document, in the order of its lines, one for each value of a line; []
    for a valid one.

    A key that is missing next to an unknown key is not reported: it is probably misspelt.
    """
    if not isinstance(document.data, dict):
        return [not_a_mapping(document, shape)]
    try:
        with of_one_document():
            shape.model_validate(document.data)
    except ValidationError as error:
        try:
            found = _causes(error, document)
        except InFile as too_many:
            return [too_many]
        unknown = {each["loc"][:-1] for each in found if each["type"] == "extra_forbidden"}
        result: dict[tuple[int, str], InFile] = {}
        for each in found:
            if each["type"] == "missing" and each["loc"][:-1] in unknown:
                continue  # the key is present, misspelt
            complaint = _complaint(document, shape, (), each, more=0)
            result.setdefault((complaint.line, _short(each["input"])), complaint)
        return sorted(result.values(), key=lambda each: each.line)
    return []


def _causes(error: ValidationError, document: Marked) -> list[Any]:
    """Return pydantic's errors, without those about a list too short only because its items are invalid.

    Raises:
        InFile: there are more than `ERRORS`.
    """
    if (count := error.error_count()) > ERRORS:
        raise document.wrong("wrong-value", (), f"{count} errors", expected="the form of such a file")
    found = error.errors(include_url=False)
    above = {each["loc"][:depth] for each in found for depth in range(len(each["loc"]))}
    return [each for each in found if each["type"] != "too_short" or each["loc"] not in above]


def first_error(error: ValidationError) -> tuple[str, str]:
    """Return place, `clocks.graphics`, and message of the first of pydantic's errors."""
    first = error.errors(include_url=False)[0]
    return ".".join(map(str, first["loc"])), first["msg"]


def not_a_mapping(document: Marked, shape: type[BaseModel]) -> InFile:
    """Return the error for a document that is empty or no mapping."""
    seen = "the file is empty" if document.data is None else "not a mapping"
    return document.wrong("wrong-value", (), seen, expected=f"the keys {_names(shape)}")


def _complaint(document: Marked, shape: type[BaseModel], at: Path_, error: Any, more: int) -> InFile:
    """Convert an error of pydantic to one with file and line, what was seen, and what was expected.

    Args:
        shape: model of the record at `at`.
        at: path of that record in the document.
        more: number of further errors, which the text mentions unless a similar key is suggested.
    """
    path = at + tuple(step for step in error["loc"] if step != "[key]")  # pydantic's marker of a key
    others = f"{more} more; `gpuprov validate` lists all" if more else ""
    if error["type"] == "extra_forbidden":
        *parents, key = error["loc"]
        known = sorted(_keys_at(shape, tuple(parents)))
        return document.wrong(
            "unknown-key",
            path,
            f"unknown key {key!r} in {dotted(at + tuple(parents))}",
            expected="one of " + ", ".join(known),
            do=did_you_mean(str(key), known) or _deeper(shape, tuple(parents), key, known) or others,
        )
    if error["type"] == "missing":
        expected = MISSING.get(str(path[-1]), "")
        return document.wrong("missing-key", path, f"{dotted(path)} is missing", expected=expected, do=others)
    while path and path not in document.lines:  # a single value in place of a list is its first item
        path = path[:-1]
    written = document.written.get(path, "")
    seen = f"{dotted(path)} is {written or _short(error['input'])}"
    expected = _expectation(error).replace(DECIMAL, written) if written else _expectation(error)
    choices = re.findall("'([^']*)'", expected) if error["type"] == "literal_error" else []
    do = did_you_mean(str(error["input"]), choices) or others
    return document.wrong("wrong-value", path, seen, expected=expected, do=do)


MISSING = {
    "profile": "a profile by name, of those that `gpuprov inventory profiles` lists",
    "hosts": "host names such as gpu[01-08]",
    "os": "a system such as ubuntu24.04, of those that `gpuprov catalog os` lists",
    "groups": "groups with a profile, hosts and os; `gpuprov init` writes one",
    "url": "a URL such as https://mirror.example.org/cuda/; without a mirror leave out the repository",
    "graphics": "a clock in MHz such as 1410; without locked clocks leave out clocks",
    "memory": "a clock in MHz such as 1593; without locked clocks leave out clocks",
    "command": "a command such as ssh signer@hsm.example.org sign-digest",
    "kind": "ethernet, infiniband, roce, rdma or efa",
    "speed_gbits": "a number such as 400",
    "ports": "port numbers such as [443, 8443]",
    "device": "a drive such as /dev/disk/by-id/nvme-MODEL_SERIAL",
    "mount": "a folder such as /scratch",
    "certificate": "a file such as keys/modules.pem",
    "key": "a file such as keys/modules.key",
    "start": "a time such as 22:30",
    "end": "a time such as 05:00",
}
"""Keys that users omit → what to write."""
HOW_TO_BEGIN = "change to the fleet's folder, or begin with `gpuprov up HOST` or `gpuprov init`"
"""The step after a fleet.yml that does not exist."""
DECIMAL = "{written}"
"""Placeholder in a validator's message for the number as written in the file."""
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
"""Pydantic's type of error → plain name of the expected type."""


def _expectation(error: Any) -> str:
    """Return the expected value of pydantic's error as text, such as `a whole number`."""
    if error["type"] in EXPECTED:
        return EXPECTED[error["type"]]
    if error["type"] == "too_long":
        return f"at most {error['ctx']['max_length']} items"
    text = str(error["msg"])
    for start in ("Value error, ", "Input should be ", "Input should "):
        text = text.removeprefix(start)
    return text[:1].lower() + text[1:]


def _short(value: Any) -> str:
    """Return a value as JSON of at most 60 characters, with URLs without logins and tokens."""
    text = public_urls(json.dumps(value, default=str, ensure_ascii=False))
    return text if len(text) <= 60 else text[:57] + "…"


def _names(shape: type[BaseModel]) -> str:
    """Return the keys of a record, joined by commas."""
    return ", ".join(field.alias or name for name, field in shape.model_fields.items())


def _keys_at(shape: type[BaseModel], path: Path_) -> set[str]:
    """Return the keys of the record at `path` inside `shape`; steps into mappings and lists are skipped."""
    for step in path:
        field = shape.model_fields.get(str(step))
        if field is None:
            continue  # a key of a mapping or an index: the record is the mapping's value type
        inner = _record_in(field.annotation)
        if inner is not None:
            shape = inner
    return {field.alias or name for name, field in shape.model_fields.items()}


def _deeper(shape: type[BaseModel], path: Path_, key: str | int, known: Iterable[str]) -> str:
    """Suggest the place of a key in a record below `path`: `did you mean 'tuning.sysctl'?`; or empty."""
    here = _keys_at(shape, path)
    for each in known:
        below = _keys_at(shape, (*path, each))
        if key in below and below != here:
            return f"did you mean {f'{each}.{key}'!r}?"
    return ""


def _record_in(annotation: Any) -> type[BaseModel] | None:
    """Return the first record type in a type annotation, or None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _record_in(part))), None)


class _Dumper(yaml.SafeDumper):
    """YAML writer that indents the items of lists."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent lists also below a key, where PyYAML does not."""
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Represent text of several lines, such as a key, line by line."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def render_document(record: Strict, *, header: str = "") -> str:
    """Return the record as YAML: keys in the model's order, without None, without line folding."""
    return header + render_plain(record.model_dump(mode="json", by_alias=True, exclude_none=True))


def render_plain(plain: Any) -> str:
    """Return plain data as YAML in the same format, including None."""
    text: str = yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    return text


def write_document(path: Path, record: Strict, *, header: str = "") -> None:
    """Write the record's YAML in one step: a reader sees the old file or the new one.

    The folder may be another person's: a link there does not lead to a file of another folder, such as the
    lock of another fleet.

    Raises:
        InvalidInput: the file cannot be written, is a link to a file of another folder, or would be larger
            than `MAX_BYTES`.
    """
    if path.is_symlink() and path.exists() and path.resolve().parent != path.parent.resolve():
        raise InvalidInput(
            f"{path} is a link to {path.resolve()}",
            expected="a file of its own folder",
            do="remove the link, or name the file that is to be written",
        )
    text = render_document(record, header=header)
    if len(text.encode()) > MAX_BYTES:
        raise InvalidInput(
            f"{path} would have {len(text.encode())} bytes",
            expected=f"at most {MAX_BYTES}, as for reading it",
            do="divide the fleet into several files",
        )
    write_text(path, text)


def write_text(path: Path, text: str, *, follow: bool = True) -> None:
    """Replace a file in one step.

    Args:
        follow: as for `replace_file`; False for a file whose name the user did not state.

    Raises:
        InvalidInput: it cannot be written; the old file is unchanged.
    """
    try:
        replace_file(path, text, follow=follow)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}") from None

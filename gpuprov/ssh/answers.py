"""JSON encoding of results of work on nodes, validated against the type that the caller states.

A worker can answer with nothing else.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, TypeAdapter
from pydantic_core import PydanticSerializationError, ValidationError, from_json

from gpuprov.errors import TEXT, GpuprovError, InvalidInput, NodeFailed, Refused, Silent, Unreachable
from gpuprov.untrusted import printable, shown
from gpuprov.untrusted.parsing import DEPTH, count_values, require_printable

ERRORS: Mapping[str, type[GpuprovError]] = {
    kind.__name__: kind for kind in (GpuprovError, NodeFailed, InvalidInput, Unreachable, Silent, Refused)
}
OWN_DEPTH = 16
"""Depth that results themselves have, in which documents of nodes are."""


def error_document(error: GpuprovError) -> dict[str, str]:
    """Return an error as plain data, each part cut at `TEXT` characters.

    A class outside `ERRORS` is replaced by its nearest base class in it.
    """
    kind = next(each for each in type(error).__mro__ if each.__name__ in ERRORS)
    parts = {"seen": error.seen, "expected": error.expected, "do": error.do}
    return {"kind": kind.__name__, **{name: str(text)[:TEXT] for name, text in parts.items()}}


def read_error(document: object) -> GpuprovError:
    """Return the error in plain data, its texts cut to `TEXT` characters.

    Raises:
        ValueError: the document is not an error, or of an unknown kind.
    """
    if not isinstance(document, Mapping):
        raise ValueError("an error is not an object")  # noqa: TRY004 - as pydantic expects it
    parts = [document.get(name, "") for name in ("kind", "seen", "expected", "do")]
    if not all(isinstance(part, str) for part in parts) or parts[0] not in ERRORS:
        raise ValueError("an error needs a known kind, and seen, expected and do as text")
    kind, seen, expected, do = (printable(part[:TEXT]) for part in parts)
    return ERRORS[kind](seen, expected=expected, do=do)


Failure = Annotated[GpuprovError, PlainValidator(read_error), PlainSerializer(error_document)]
"""An error as a part of an answer."""


def require_stated(checks: Iterable[str], stated: Container[str]) -> None:
    """Check that all checks in a worker's result are checks of the lock, and no check is there twice.

    Checks of the lock may be missing: results name only what differs, or what was done before an error.

    Raises:
        NodeFailed: a check is not one of the lock, or is there twice.
    """
    known: set[str] = set()
    for check in checks:
        if check not in stated or check in known:
            seen = "twice" if check in known else "which the lock does not have for this node"
            raise NodeFailed(f"a worker answered with the check {shown(check)}, {seen}")
        known.add(check)


@lru_cache(maxsize=64)
def _adapter(answer: Any) -> TypeAdapter[Any]:
    """Return pydantic's converter of a type from and to JSON."""
    return TypeAdapter(answer)


def write_answer(found: Any, answer: Any, most: int) -> str:
    """Return a result as JSON.

    Args:
        answer: type of the result.
        most: maximum length of the JSON in characters.

    Raises:
        NodeFailed: the JSON is longer or has too many values, or the result is not of the type.
    """
    try:
        packed = _adapter(answer).dump_json(found, warnings="error")
        count_values(packed)
        text = packed.decode()
    except (PydanticSerializationError, ValueError) as error:
        raise NodeFailed(f"the result is not JSON: {error}"[:TEXT]) from None
    if len(text) > most:
        raise NodeFailed(f"answered {len(text)} characters", expected=f"at most {most}")
    return text


def read_answer(text: str, answer: Any) -> Any:
    """Return the result in a JSON text.

    Raises:
        NodeFailed: the result has too many values, `require_printable` refuses it, or it is not of the type.
    """
    try:
        count_values(text.encode("utf-8", "surrogatepass"))
        require_printable(from_json(text, allow_inf_nan=False), DEPTH + OWN_DEPTH)
        return _adapter(answer).validate_json(text, strict=True)
    except ValidationError as error:
        [first, *_] = error.errors(include_url=False, include_input=False)
        place = ".".join(map(str, first["loc"]))
        raise NodeFailed(
            printable(f"the answer has an unexpected form: {place} {first['msg']}"[:TEXT])
        ) from None
    except ValueError as error:
        raise NodeFailed(f"the answer cannot be read: {error}") from None

"""JSON Schemas of the files that people write, for editors."""

from __future__ import annotations

from typing import Any

from gpuprov.documents import Strict
from gpuprov.fleet import Fleet
from gpuprov.lock import Lock
from gpuprov.profile import Profile

SHAPES: dict[str, type[Strict]] = {"profile": Profile, "fleet": Fleet, "lock": Lock}


def json_schema(what: str) -> dict[str, Any]:
    """The schema (draft 2020-12) of `profile`, `fleet` or `lock`."""
    schema = SHAPES[what].model_json_schema(by_alias=True, mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}

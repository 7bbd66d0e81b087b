"""JSON Schemas of the files that people write, for editors."""

from __future__ import annotations

from typing import Any

from gpuprov.model.documents import Strict
from gpuprov.model.fleet import Fleet
from gpuprov.model.lock import Lock
from gpuprov.model.profile import Profile

SHAPES: dict[str, type[Strict]] = {"profile": Profile, "fleet": Fleet, "lock": Lock}
TEXT = {"type": "string"}
NAMES: list[dict[str, Any]] = [TEXT, {"type": "array", "items": TEXT}]
HOST = {"anyOf": [TEXT, {"type": "null"}, {"$ref": "#/$defs/Host"}]}
HOSTS = {
    "Group": {
        "description": "gpu[01-08], a list of such, or a mapping of name to address or {address, ssh}",
        "anyOf": [*NAMES, {"type": "object", "additionalProperties": HOST}],
    },
    "FurtherGroup": {"description": "gpu[01-08], or a list of such", "anyOf": NAMES},
}


def json_schema(what: str) -> dict[str, Any]:
    """The schema (draft 2020-12) of `profile`, `fleet` or `lock`."""
    schema = SHAPES[what].model_json_schema(by_alias=True, mode="validation")
    if what != "lock":
        _allow_short_forms(schema["$defs"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _allow_short_forms(records: dict[str, Any]) -> None:
    """What people may write shorter than the record that it becomes."""
    for name, hosts in HOSTS.items():
        if name in records:
            records[name]["properties"]["hosts"] = hosts
    records.get("Host", {}).pop("required", None)  # an address that is not stated is the name
    if "Mirror" in records:
        whole = records["Mirror"]
        records["Mirror"] = {"anyOf": [whole["properties"]["url"], whole]}
    for stated in records["StackPolicy"]["properties"].values():
        forms = stated.get("anyOf", [])
        several = [form["items"] for form in forms if form.get("type") == "array"]
        versions = any(form.get("type") == "string" and "enum" not in form for form in [*forms, *several])
        stated["anyOf"] = [*forms, *several, *([{"type": "number"}] if versions else [])]

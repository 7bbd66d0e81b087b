"""JSON Schemas of profile, fleet and lock, for editors."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gpuprov.model.documents import Strict
from gpuprov.model.fleet import Fleet
from gpuprov.model.lock import Lock
from gpuprov.model.profile import Profile

SHAPES: dict[str, type[Strict]] = {"profile": Profile, "fleet": Fleet, "lock": Lock}
TITLES = {"profile": "A profile of gpuprov", "fleet": "gpuprov's fleet.yml", "lock": "gpuprov's lock"}
IDENTITY = "urn:gpuprov:{}:1"
KEYS = Path(__file__).with_name("keys.yml")
PARENTS = {"Driver": "Component", "Cuda": "Component"}
TEXT = {"type": "string"}
NAMES: list[dict[str, Any]] = [TEXT, {"type": "array", "items": TEXT}]
HOST = {"anyOf": [TEXT, {"type": "null"}, {"$ref": "#/$defs/Host"}]}
HOSTS = {
    "Group": {
        "description": "a range such as gpu[01-08], a list of ranges, or a mapping of name to address or"
        " {address, ssh}",
        "anyOf": [*NAMES, {"type": "object", "additionalProperties": HOST}],
    },
    "FurtherGroup": {"description": "a range such as gpu[01-08], or a list of ranges", "anyOf": NAMES},
}


def json_schema(what: str) -> dict[str, Any]:
    """Return the schema (draft 2020-12) of `profile`, `fleet` or `lock`.

    Every property has a description; in `profile` and `fleet` also an example.
    """
    shape = SHAPES[what]
    schema = shape.model_json_schema(by_alias=True, mode="validation")
    records = schema["$defs"]
    for name, record in {shape.__name__: schema, **records}.items():
        _describe(name, record, examples=what != "lock")
    if what != "lock":  # a lock is generated
        _allow_short_forms(records)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": IDENTITY.format(what)}
    return {**head, **schema, "title": TITLES[what]}


@cache
def keys() -> dict[str, dict[str, dict[str, Any]]]:
    """Return record → key → the `description` and `example` that its model does not have."""
    said: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(KEYS.read_text(encoding="utf-8"))
    return said


def _describe(name: str, record: dict[str, Any], *, examples: bool) -> None:
    """Add missing descriptions, and if requested examples, to the properties of a record, in place."""
    said = {**keys().get(PARENTS.get(name, ""), {}), **keys().get(name, {})}
    for key, stated in record.get("properties", {}).items():
        more = said.get(key, {})
        if "description" in more:
            stated.setdefault("description", more["description"])
        if examples and "example" in more:
            stated["examples"] = [more["example"]]


def _allow_short_forms(records: dict[str, Any]) -> None:
    """Allow in the schemas, in place, the short forms that a file may have instead of a record.

    For example a URL instead of a mirror, and one value instead of a list in `StackPolicy`.
    """
    for name, hosts in HOSTS.items():
        if name in records:
            said = records[name]["properties"]["hosts"].get("examples", [])
            records[name]["properties"]["hosts"] = {**hosts, "examples": said}
    if "Rollout" in records:
        serial = records["Rollout"]["properties"]["serial"]
        records["Rollout"]["properties"]["serial"] = {
            **{key: said for key, said in serial.items() if key not in ("type", "items", "minItems")},
            "anyOf": [serial["items"], {"type": "array", "items": serial["items"], "minItems": 1}],
        }
        records["Hook"] = {"anyOf": [TEXT, records["Hook"]], "description": records["Hook"]["description"]}
    records.get("Host", {}).pop("required", None)  # the address defaults to the name
    if "Mirror" in records:
        whole = records["Mirror"]
        records["Mirror"] = {"anyOf": [whole["properties"]["url"], whole]}
    for stated in records["StackPolicy"]["properties"].values():
        forms = stated.get("anyOf", [])
        several = [form["items"] for form in forms if form.get("type") == "array"]
        texts = [form for form in [*forms, *several] if form.get("type") == "string"]
        versions = any(not {"enum", "const", "pattern"} & set(form) for form in texts)
        stated["anyOf"] = [*forms, *several, *([{"type": "number"}] if versions else [])]

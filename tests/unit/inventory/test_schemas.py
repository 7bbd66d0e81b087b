"""JSON Schemas of files, compared with the code that reads these files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov.cli.common.group import run
from gpuprov.inventory.schemas import SHAPES, json_schema, keys
from gpuprov.model.lock import render_lock
from gpuprov.model.profile import profile_paths
from tests.unit.inventory.conftest import MakeLock
from tests.unit.inventory.test_ansible import AWKWARD, FLEET
from tests.unit.inventory.test_ways import FLEET as WAYS


def require_fit(document: Any, schema: dict[str, Any]) -> None:
    """Validate a document, but not the schema itself as `jsonschema.validate` does each time."""
    import jsonschema  # takes two seconds, which other test processes need not spend

    jsonschema.Draft202012Validator(schema).validate(document)


@pytest.mark.parametrize("what", SHAPES)
def test_a_schema_is_one(what: str) -> None:
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(json_schema(what))


@pytest.mark.parametrize("path", profile_paths([]).values(), ids=lambda path: path.stem)
def test_shipped_profiles_fit(path: Path) -> None:
    """Check that each shipped profile fits the JSON Schema."""
    require_fit(yaml.safe_load(path.read_text()), json_schema("profile"))


@pytest.mark.parametrize("text", [FLEET, AWKWARD, WAYS], ids=["full", "awkward", "ways"])
def test_fleets_fit(text: str) -> None:
    """Check that a fleet.yml fits the JSON Schema, with a mirror, too."""
    mirror = {"repositories": {"nvidia": "https://mirror.example.org/cuda"}}
    require_fit({**yaml.safe_load(text), **mirror}, json_schema("fleet"))


def test_a_lock_fits(locked: MakeLock) -> None:
    """Check that a written lock fits the JSON Schema."""
    require_fit(yaml.safe_load(render_lock(locked(AWKWARD))), json_schema("lock"))


@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        ("profile", {"hardware": {"gpu": {"cuont": 8}}}),
        ("profile", {"hardware": {"nics": [{"kind": "wifi", "speed_gbits": 1}]}}),
        ("fleet", {"groups": {"a": {"profile": "x", "os": "debian12"}}}),
        ("fleet", {"groups": {"a": {"profile": "x", "os": "debian12", "hosts": 7}}}),
        ("fleet", {"groups": {"a": {"profile": "x", "os": "debian12", "hosts": {"b": {"prt": 1}}}}}),
    ],
)
def test_what_is_wrong_does_not_fit(what: str, wrong: Any) -> None:
    """Check that a wrong document does not fit its JSON Schema."""
    import jsonschema

    with pytest.raises(jsonschema.ValidationError):
        require_fit(wrong, json_schema(what))


def properties(what: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return (record, key) → its schema."""
    schema = json_schema(what)
    records = {SHAPES[what].__name__: schema, **schema["$defs"]}
    alike = {name: record.get("anyOf", [record])[-1] for name, record in records.items()}
    return {(name, key): each for name in alike for key, each in alike[name].get("properties", {}).items()}


@pytest.mark.parametrize("what", SHAPES)
def test_every_property_is_described(what: str) -> None:
    assert [place for place, each in properties(what).items() if not each.get("description")] == []


@pytest.mark.parametrize("what", ["fleet", "profile"])
def test_every_key_that_people_write_has_an_example_that_fits(what: str) -> None:
    records = json_schema(what)["$defs"]
    for place, each in properties(what).items():
        if "$ref" not in json.dumps(each):
            assert each.get("examples"), place
        for example in each.get("examples", []):
            require_fit(example, {**each, "$defs": records})


def test_what_is_said_beside_the_models_is_of_keys_that_are_there_and_said_once() -> None:
    there = {place: each for what in SHAPES for place, each in properties(what).items()}
    of_models = {
        (name, key): field
        for shape in SHAPES.values()
        for name, record in {"": {}, **shape.model_json_schema()["$defs"]}.items()
        for key, field in record.get("properties", {}).items()
    }
    for record, said in keys().items():
        for key, more in said.items():
            assert (record, key) in there, (record, key)
            assert set(more) <= {"description", "example"}, (record, key)
            if "description" in more:
                assert "description" not in of_models.get((record, key), {}), (record, key)


@pytest.mark.parametrize("what", SHAPES)
def test_a_schema_has_a_name_of_its_own(what: str) -> None:
    assert json_schema(what)["$id"] == f"urn:gpuprov:{what}:1"


def test_an_editor_gets_it_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inventory", "schema", "profile"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "A profile of gpuprov"

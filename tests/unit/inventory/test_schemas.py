"""The JSON Schemas say of files what reading them says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gpuprov.cli.common.group import run
from gpuprov.inventory.schemas import json_schema
from gpuprov.model.lock import render_lock
from gpuprov.model.profile import profile_paths
from tests.unit.inventory.conftest import MakeLock
from tests.unit.inventory.test_ansible import AWKWARD, FLEET
from tests.unit.inventory.test_ways import FLEET as WAYS


@pytest.mark.parametrize("path", profile_paths([]).values(), ids=lambda path: path.stem)
def test_shipped_profiles_fit(path: Path) -> None:
    jsonschema.validate(yaml.safe_load(path.read_text()), json_schema("profile"))


@pytest.mark.parametrize("text", [FLEET, AWKWARD, WAYS], ids=["full", "awkward", "ways"])
def test_fleets_fit(text: str) -> None:
    mirror = {"repositories": {"nvidia": "https://mirror.example.org/cuda"}}
    jsonschema.validate({**yaml.safe_load(text), **mirror}, json_schema("fleet"))


def test_a_lock_fits(locked: MakeLock) -> None:
    jsonschema.validate(yaml.safe_load(render_lock(locked(AWKWARD))), json_schema("lock"))


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
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, json_schema(what))


def test_an_editor_gets_it_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inventory", "schema", "profile"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Profile"

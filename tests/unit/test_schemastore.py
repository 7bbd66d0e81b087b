"""Files for SchemaStore: the examples fit the schemas, and an unknown key does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from maintenance.__main__ import main
from maintenance.schemastore import MATCHES, NAMES, entries, write_pull_request


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files for a pull request."""
    path = tmp_path_factory.mktemp("schemastore") / "new"
    write_pull_request(path)
    return path


@pytest.mark.thorough
@pytest.mark.parametrize("kind", NAMES)
def test_examples_fit_and_an_unknown_key_does_not(folder: Path, kind: str) -> None:
    import jsonschema  # takes two seconds, which other test processes need not spend

    name = NAMES[kind]
    schema = json.loads((folder / f"src/schemas/json/{name}.json").read_text())
    assert schema["$id"] == f"https://json.schemastore.org/{name}.json"
    good = list((folder / f"src/test/{name}").iterdir())
    assert good
    for path in good:
        # In editors a day is text.
        document = json.loads(json.dumps(yaml.safe_load(path.read_text()), default=str))
        jsonschema.validate(document, schema)
    [bad] = (folder / f"src/negative_test/{name}").iterdir()
    with pytest.raises(jsonschema.ValidationError, match="Additional properties"):
        jsonschema.validate(yaml.safe_load(bad.read_text()), schema)


def test_the_entries_name_each_schema() -> None:
    found = entries()
    assert [each["url"].rpartition("/")[2] for each in found] == [f"{name}.json" for name in NAMES.values()]
    assert not any("fleet.yml" in names for names in MATCHES.values())
    assert all(set(each) == {"name", "description", "fileMatch", "url"} for each in found)


def test_a_folder_with_files_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schemastore", str(folder)]) == 2
    assert "is not empty; name a new folder" in capsys.readouterr().err

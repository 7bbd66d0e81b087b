"""Collection: generated files agree with their sources, and all files state the same version."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov import __version__
from gpuprov.errors import InvalidInput
from tests import ROOT
from tests.collection.build import build, reproducible
from tests.collection.check import ignored, not_run
from tests.collection.pages import pages, plain

PAGES = pages()


def read(name: str) -> Any:
    """Return the content of a YAML file of the repository."""
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_is_as_the_argument_specs_make_it(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == PAGES[path], "run: scripts/collection pages"


def test_every_role_has_its_pages() -> None:
    roles = {path.name for path in (ROOT / "roles").iterdir()}
    assert {path.relative_to(ROOT / "roles").parts[0] for path in PAGES} == roles
    assert len(PAGES) == 2 * len(roles)


def test_a_page_shows_every_variable_and_what_must_be_stated() -> None:
    text = PAGES[ROOT / "roles/nvidia_driver/README.md"]
    assert "| `nvidia_driver_version` | str | required | The driver's version" in text
    assert "| `repositories_sources[].url` | str | `null` |" in PAGES[ROOT / "roles/repositories/README.md"]


@pytest.mark.parametrize(
    ("marked", "shown"),
    [
        ("the table C(inet gpuprov), now", "the table `inet gpuprov`, now"),
        ("files (C(a) and O(b.c))", "files (`a` and `b.c`)"),
        ("nothing (of that)", "nothing (of that)"),
    ],
)
def test_marks_of_ansible_become_code(marked: str, shown: str) -> None:
    assert plain(marked) == shown


def test_one_version_of_the_collection_stands_everywhere() -> None:
    [image] = read("execution-environment.yml")["dependencies"]["galaxy"]["collections"]
    assert image["name"] == f"gpuprov-gpuprov-{__version__}.tar.gz"
    assert f"\n## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_one_range_of_ansible_core_stands_everywhere() -> None:
    runtime = read("meta/runtime.yml")["requires_ansible"]
    project = re.search(r'"ansible-core(.+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project
    assert runtime.replace(".0", "") == project[1]


def test_what_a_role_needs_of_the_controller_is_a_dependency_of_the_program() -> None:
    stated = (ROOT / "meta/requirements.txt").read_text(encoding="utf-8").splitlines()
    needed = [line for line in stated if not line.startswith("#")]
    assert needed
    assert all(f'"{line}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8") for line in needed)


def test_nothing_is_built_without_the_address_of_its_sources(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="has no repository"):
        build(tmp_path)


def test_an_archive_depends_on_no_clock_and_no_order_of_files() -> None:
    first, later = packed(["b", "a"], 1700000000.5), packed(["a", "b"], 1800000000.25)
    assert first != later
    made = reproducible(first, 1795000000)
    assert made == reproducible(later, 1795000000)
    with tarfile.open(fileobj=io.BytesIO(made)) as whole:
        assert {each.mtime for each in whole} == {1795000000}
        manifest, files = (whole.extractfile(name) for name in ("MANIFEST.json", "FILES.json"))
        assert manifest is not None
        assert files is not None
        stated = json.load(manifest)["file_manifest_file"]["chksum_sha256"]
        assert stated == hashlib.sha256(files.read()).hexdigest()


def packed(names: list[str], when: float) -> bytes:
    """Return an archive as ansible-galaxy writes it."""
    files = json.dumps({"files": [{"name": name} for name in names]}, indent=1).encode()
    manifest = {"file_manifest_file": {"chksum_sha256": hashlib.sha256(files).hexdigest()}}
    contents = {"MANIFEST.json": json.dumps(manifest).encode(), "FILES.json": files}
    contents |= {name: name.encode() for name in names}
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(content), when
            archive.addfile(entry, io.BytesIO(content))
    return whole.getvalue()


def test_a_sanity_check_without_its_program_is_named() -> None:
    missing = 'WARNING: Required program "shellcheck" not found.'
    said = f'Running sanity test "pylint"\nRunning sanity test "shellcheck"\n{missing}\nWARNING: Reviewing:\n'
    named, modules = not_run(said)
    assert named == "NOT RUN: shellcheck: no program `shellcheck` on the PATH"
    assert "gpuprov_devices" in modules


def test_sanity_ignores_what_this_ansible_core_knows() -> None:
    assert not [line for line in ignored("2.20", "3.12") if "ansible-bad-function" in line]
    assert "plugins/module_utils/gpuprov_apt.py pylint:ansible-bad-function" in ignored("2.21", "3.12")


def test_module_utilities_that_lie_beside_others_on_a_node_are_not_imported() -> None:
    lines = [*ignored("2.19", "3.11")]
    assert "plugins/module_utils/gpuprov_files.py import-3.11!skip" in lines
    assert "plugins/module_utils/gpuprov_place.py import-3.11!skip" not in lines

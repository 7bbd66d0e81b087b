"""Files of the wheels of gpuprov and gpuprov-lab, as their builder lists them; the lab's requirement."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from gpuprov import __version__
from tests import ROOT

COLLECTION = "ansible_collections/gpuprov/gpuprov"
TESTS = re.compile(r"(^|/)(tests?|molecule|conftest\.py)(/|$)|(^|/)test_\w+\.py$")
SUITE = "gpuprov/verify/suite/"
"""Checks of nodes, which pytest runs: no tests of gpuprov."""
EQUIPMENT = re.compile(r"(^|/)(\w*lab|simulator)(\.py|/|$)")
"""Names of the lab's files."""
OF_EQUIPMENT = re.compile(r"nspawn|gpuprov[-_](sim|lab)|simulator|simulated (GPU|machine|node|server)")
"""Words that only the lab's files have."""
HINT = "gpuprov/cli/common/verbs.py"
"""The one file of gpuprov that names the lab's distribution."""
REFRESH = ("gpuprov/cli/catalog_refresh.py", "gpuprov/locking/catalogs/refresh/")
"""Readers of published lists: `gpuprov catalog check --indexes` needs them in an installation too."""
OF_MAINTAINERS = re.compile(
    r"(^|/)(scripts|docs|changelogs|examples|\.\w+|hatch_build\.py|pyproject\.toml)(/|$)"
)


def wheel(folder: Path) -> dict[str, Path]:
    """Return path in the wheel → file of the checkout."""
    builder = WheelBuilder(str(folder))
    return {file.distribution_path: Path(file.path) for file in builder.recurse_included_files()}


@pytest.fixture(scope="module")
def of_gpuprov() -> dict[str, Path]:
    """Return path in the wheel → file, for gpuprov."""
    return wheel(ROOT)


@pytest.fixture(scope="module")
def of_lab() -> dict[str, Path]:
    """Return path in the wheel → file, for gpuprov-lab."""
    return wheel(ROOT / "lab")


def tops(paths: dict[str, Path], below: str = "") -> set[str]:
    """Return the names directly below a folder of a wheel."""
    return {path.removeprefix(below).partition("/")[0] for path in paths if path.startswith(below)}


def on_disk(folder: Path) -> Iterator[str]:
    """Yield the files of a package, relative to the folder that contains it."""
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield str(path.relative_to(folder.parent))


def test_gpuprovs_wheel_is_the_package_and_the_collection(of_gpuprov: dict[str, Path]) -> None:
    assert tops(of_gpuprov) == {"gpuprov", "ansible_collections"}
    assert tops(of_gpuprov, "gpuprov/share/") == {"inventory", "requirements.lock"}
    assert tops(of_gpuprov, "ansible_collections/") == {"gpuprov"}
    assert tops(of_gpuprov, f"{COLLECTION}/") == {"roles", "plugins", "playbooks", "meta", "galaxy.yml"}
    own = {path for path in of_gpuprov if path.startswith("gpuprov/") and "/share/" not in path}
    assert own == set(on_disk(ROOT / "gpuprov"))


def test_gpuprovs_wheel_has_no_tests_and_no_tools_of_maintainers(of_gpuprov: dict[str, Path]) -> None:
    tests = {path for path in of_gpuprov if TESTS.search(path)}
    assert {path for path in tests if not path.startswith(SUITE)} == set()
    assert {path for path in of_gpuprov if OF_MAINTAINERS.search(path)} == set()
    refresh = {path for path in of_gpuprov if "refresh" in path}
    assert {path for path in refresh if not path.startswith(REFRESH)} == set()


def test_gpuprovs_wheel_has_nothing_of_the_lab(of_gpuprov: dict[str, Path]) -> None:
    assert {path for path in of_gpuprov if EQUIPMENT.search(path)} == set()
    texts = {path: file.read_text("utf-8", "replace") for path, file in of_gpuprov.items()}
    assert {path for path, text in texts.items() if OF_EQUIPMENT.search(text)} == {HINT}


def test_the_labs_wheel_is_its_package_with_all_data(of_lab: dict[str, Path]) -> None:
    assert tops(of_lab) == {"gpuprov_lab"}
    assert set(of_lab) == set(on_disk(ROOT / "lab/gpuprov_lab"))
    for data in ("mirror/releases.json", "mirror/sets/cuda.control", "simulator/arrange"):
        assert f"gpuprov_lab/{data}" in of_lab
    assert {path for path in of_lab if TESTS.search(path) or OF_MAINTAINERS.search(path)} == set()


def test_the_lint_sees_the_labs_files(of_lab: dict[str, Path]) -> None:
    assert all(EQUIPMENT.search(path) for path in of_lab)
    assert any(OF_EQUIPMENT.search(file.read_text("utf-8", "replace")) for file in of_lab.values())
    for path in ("tests/unit/x.py", "gpuprov/drift/test_judge.py", "gpuprov/conftest.py"):
        assert TESTS.search(path), path
    for path in ("scripts/release", "gpuprov/.hidden/x", "hatch_build.py"):
        assert OF_MAINTAINERS.search(path), path


def test_the_lab_requires_gpuprov_of_its_version() -> None:
    lab = WheelBuilder(str(ROOT / "lab")).metadata
    assert lab.version == __version__
    assert lab.core.dependencies == [f"gpuprov=={__version__}"]
    assert lab.core.entry_points == {"gpuprov.verbs": {"lab": "gpuprov_lab.cli:command"}}

"""Selection of the tests that `scripts/test` runs without --all."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT, selection

THOROUGH = "import pytest\n@pytest.mark.thorough\ndef test_all(): pass\ndef test_one(): pass\n"


@pytest.mark.parametrize("name", [each for promised in selection.PROMISES.values() for each in promised])
def test_the_tests_of_a_promise_exist(name: str) -> None:
    file, _, test = name.partition("::")
    text = (selection.NODE_TESTS / f"{file}.py").read_text()
    assert re.search(rf"(?m)^def {test or 'test_'}", text)


def test_the_file_of_each_role_exists() -> None:
    roles = {path.name for path in (ROOT / "roles").iterdir()}
    files = {selection.TESTED_IN.get(role, f"test_{role}") for role in roles}
    assert [name for name in files if not (selection.NODE_TESTS / f"{name}.py").is_file()] == []
    assert sorted(set(selection.TESTED_IN) - roles) == []


def test_each_duration_is_of_a_file() -> None:
    names = json.loads(selection.DURATIONS.read_text())
    assert [name for name in names if not (selection.TESTS / f"{name}.py").is_file()] == []


def test_thorough_tests_are_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "tests/unit").mkdir(parents=True)
    (tmp_path / "tests/unit/test_much.py").write_text(THOROUGH)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = thorough\n")
    (tmp_path / "plugin.py").write_text(
        "from pathlib import Path\nfrom tests import selection\nfrom tests.selection import *\n"
        f"selection.ROOT, selection.TESTS = Path({str(tmp_path)!r}), Path({str(tmp_path / 'tests')!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "plugin", "-p", "no:cacheprovider", "--promises"],
        cwd=tmp_path, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-2:-1] == ["left out, in `scripts/test --all`: 1 tests: much 1"], done

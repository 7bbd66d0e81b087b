"""Second try of a failed node test: counted separately and always reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

TESTS = {
    "test_flaky.py": """
        import pathlib, pytest

        def first_time():
            try:
                pathlib.Path(__file__).with_suffix(".seen").touch(exist_ok=False)
            except FileExistsError:
                return False
            return True

        @pytest.fixture(scope="module")
        def node():
            assert not first_time(), "the first node does not boot"

        def test_good(node): pass
        def test_second(node): pass
        """,
    "test_broken.py": "def test_fine(): pass\ndef test_never(): raise RuntimeError('as always')\n",
    "test_well.py": "def test_well(): pass\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with small test files, and an own pytest.ini."""
    (tmp_path / "pytest.ini").touch()
    for name, text in TESTS.items():
        (tmp_path / name).write_text("\n".join(line.removeprefix(" " * 8) for line in text.splitlines()))
    return tmp_path


def lines(folder: Path, *words: str) -> tuple[int, list[str]]:
    """Run pytest with the plugin in the folder; return its exit code and the lines of its report."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.second_try", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-m", "not slow", *words], cwd=folder, env={"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines()


def test_what_passes_then_is_named_beside_the_last_line(folder: Path) -> None:
    code, said = lines(folder, "test_flaky.py", "test_well.py")
    assert code == 0, said
    assert [line.partition(" in ")[0] for line in said[-3:]] == [
        "passed at the second try: test_flaky.py::test_good",
        "passed at the second try: test_flaky.py::test_second",
        "1 passed, 2 at the second try",
    ]
    assert any("the first node does not boot" in line for line in said)


def test_what_fails_again_has_failed(folder: Path) -> None:
    """Check that a test that fails at its second try, too, is reported as failed."""
    code, said = lines(folder)
    assert code == 1
    assert "FAILED test_broken.py::test_never - RuntimeError: as always" in said
    assert said[-1].startswith("1 failed, 2 passed, 2 at the second try in ")


def test_many_failures_are_no_bad_luck(folder: Path) -> None:
    for number in range(3):
        (folder / f"test_{number}.py").write_text("def test_never(): raise RuntimeError\n")
    code, said = lines(folder)
    assert code == 1
    assert not any("second try" in line for line in said)

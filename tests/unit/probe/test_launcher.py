"""The program of one file: it unpacks itself once, and runs with the standard library only."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpuprov.files.packing import node_program, one_file
from tests import ROOT

MODULES = ("gpuprov.health.memory",)
START = "\n\ndef start(path):\n    print(path, fault.__file__, sorted(fault.RULES))\n"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program of one small module and what it imports."""
    root = tmp_path / "root"
    for path in node_program.tree(("gpuprov.doctor.fault",), ROOT):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text((ROOT / path).read_text())
    (root / "gpuprov/small.py").write_text(f"from gpuprov.doctor import fault{START}")
    files = node_program.tree(("gpuprov.small",), root)
    text = one_file(MODULES, ())
    import base64
    import json
    import zlib

    blob = base64.b64encode(zlib.compress(json.dumps(files).encode())).decode()
    text = re.sub(r'PACKED = """[^"]*"""', f'PACKED = "{blob}"', text)
    text = text.replace('MODULE = "gpuprov.health.memory"', 'MODULE = "gpuprov.small"')
    path = tmp_path / "program"
    path.write_text(text.replace("/run/gpuprov/program", str(tmp_path / "run/program")))
    return path


def run(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program without site packages and without the user's modules."""
    return subprocess.run(
        [sys.executable, "-IBS", str(path), *words], capture_output=True, text=True, check=False
    )


def test_it_unpacks_itself_and_starts(program: Path, tmp_path: Path) -> None:
    done = run(program)
    assert done.returncode == 0, done.stderr
    path, module, rules = done.stdout.split(" ", 2)
    assert (path, rules.strip()) == (str(program), "[]")
    assert module.startswith(str(tmp_path / "run/program"))
    assert list((tmp_path / "run/program").glob("*/gpuprov/__pycache__/small.*.pyc"))


def test_a_second_start_unpacks_nothing(program: Path, tmp_path: Path) -> None:
    run(program)
    [folder] = (tmp_path / "run/program").iterdir()
    (folder / "gpuprov/small.py").write_text("def start(path):\n    print('kept')\n")
    assert run(program).stdout == "kept\n"


def test_a_folder_that_others_can_write_is_refused(program: Path, tmp_path: Path) -> None:
    (tmp_path / "run/program").mkdir(parents=True)
    (tmp_path / "run/program").chmod(0o777)
    done = run(program)
    assert done.returncode == 1
    assert "can be written by others" in done.stderr


def test_modules_that_cannot_be_written_leave_nothing(program: Path, tmp_path: Path) -> None:
    """Do not leave one more folder on a full disk at each start."""
    limit = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (9, 9))"
    words = [
        sys.executable,
        "-c",
        f"{limit}; os.execv(sys.argv[1], sys.argv[1:])",
        sys.executable,
        "-IBS",
        str(program),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.rpartition(": ")[2]) == (1, "File too large\n")
    assert list((tmp_path / "run/program").iterdir()) == []


def test_the_modules_can_be_read(program: Path, tmp_path: Path) -> None:
    run(program, "--unpack", str(tmp_path / "out"))
    assert "def start" in (tmp_path / "out/gpuprov/small.py").read_text()
    assert not (tmp_path / "run").exists()


def test_what_is_unpacked_is_readable_by_all_and_writable_by_none_other(
    program: Path, tmp_path: Path
) -> None:
    run(program)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "run").rglob("*.py")}
    assert modes == {0o644}


def test_a_package_is_packed_only_if_its_own_names_are_imported() -> None:
    files = node_program.tree(("gpuprov.doctor.packaging",), ROOT)
    assert files["gpuprov/doctor/__init__.py"] == ""
    assert files["gpuprov/catalog/__init__.py"] == ""
    assert "on_one_line" in files["gpuprov/untrusted/__init__.py"]


def test_data_are_packed_unchanged() -> None:
    path = "gpuprov/doctor/data/xids.json"
    assert node_program.tree((), ROOT, [path]) == {path: (ROOT / path).read_text()}


def test_the_program_is_the_same_bytes_each_time() -> None:
    first = one_file(MODULES, ())
    one_file.cache_clear()
    assert one_file(MODULES, ()) == first

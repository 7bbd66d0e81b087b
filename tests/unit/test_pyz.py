"""`gpuprov.pyz`: the same bytes for the same content, and the environment of its first start."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuprov import __version__
from maintenance.release import onefile
from maintenance.release.locked import ROOT, environments, pythons, read_pins
from maintenance.release.pyz import FROM_WHEEL, NAME, digest, pack

WHEN = 1795000000
LOCK = """\
# written by uv
click==8.5.1 \\
    --hash=sha256:00 \\
    --hash=sha256:01
PyYAML==6.0.3 \\
    --hash=sha256:02
colorama==0.4.6 ; sys_platform == 'win32' \\
    --hash=sha256:03
pip==26.3 \\
    --hash=sha256:04
"""
CLICK, YAML, _, PIP = read_pins(LOCK)
INSTALLS = """\
import os, pathlib, sys
home = pathlib.Path(sys.prefix)
open(os.environ["LOG"], "a").write(" ".join(sys.argv[1:]) + os.linesep)
(home / "bin/gpuprov").write_text('#!/bin/sh\\necho "$0 $@"\\n')
(home / "bin/gpuprov").chmod(0o755)
"""
FAILS = r"""
import sys
sys.exit("Looking in indexes\nERROR: No matching distribution found for pyyaml\x1b[2J\nhint: none")
"""


@dataclass
class File:
    """A `gpuprov.pyz` with another pip, and the folders that it uses."""

    path: Path
    cache: Path
    log: Path

    def start(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Start it; the exit code must be `code`."""
        done = subprocess.run(
            [sys.executable, self.path, *words],
            env={**os.environ, "XDG_CACHE_HOME": str(self.cache), "LOG": str(self.log)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done

    @property
    def environments(self) -> list[Path]:
        """Folders of the environments."""
        return sorted((self.cache / "gpuprov/pyz").iterdir())


def made(folder: Path, pip: str = INSTALLS, when: int = WHEN) -> File:
    """Pack a file of gpuprov's first modules, an empty click and a pip with a program of the test."""
    folder.mkdir()
    own = {name: (ROOT / name).read_text() for name in FROM_WHEEL}
    contents = {f"gpuprov-{__version__}": own, "click-8.5.1": {}, "pip-26.3": {"pip/__main__.py": pip}}
    wheels = {}
    for name, files in contents.items():
        wheels[name] = folder / f"{name}-py3-none-any.whl"
        with zipfile.ZipFile(wheels[name], "w") as wheel:
            for path, text in files.items():
                wheel.writestr(zipfile.ZipInfo(path), text)
    gpuprov, click, pip_wheel = wheels.values()
    pack(folder / NAME, gpuprov, {CLICK: click, PIP: pip_wheel}, [YAML], when)
    return File(folder / NAME, folder / "cache", folder / "log")


@pytest.fixture
def file(tmp_path: Path) -> File:
    """Return a new gpuprov.pyz."""
    return made(tmp_path / "one")


def test_the_same_content_has_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = made(tmp_path / "first")
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    former = os.umask(0o077)
    second = made(tmp_path / "second")
    os.umask(former)
    monkeypatch.undo()
    time.tzset()
    assert digest(first.path) == digest(second.path)
    assert digest(first.path) != digest(made(tmp_path / "later", when=WHEN + 60).path)
    assert digest(first.path) != digest(made(tmp_path / "other", pip=FAILS).path)


def test_the_first_start_installs_and_the_second_does_not(file: File) -> None:
    first = file.start("--version", "a b")
    [folder] = file.environments
    assert first.stdout == f"{folder}/bin/gpuprov --version a b\n"
    assert f"first start of gpuprov {__version__}" in first.stderr
    assert "pyyaml" in first.stderr
    assert folder.name == f"{digest(file.path)[:32]}-{onefile.SYSTEM}"
    again = file.start("facts")
    assert (again.stdout, again.stderr) == (f"{folder}/bin/gpuprov facts\n", "")
    [installed] = file.log.read_text().splitlines()
    for word in ("--require-hashes", "--only-binary :all:", "--no-deps", f"--requirement {onefile.INSTALL}"):
        assert word in installed


def test_all_wheels_have_hashes_and_compiled_ones_no_path(file: File) -> None:
    with zipfile.ZipFile(file.path) as whole:
        lines = whole.read(onefile.INSTALL).decode().splitlines()
    assert "pyyaml==6.0.3 --hash=sha256:02" in lines
    assert "./wheels/click-8.5.1-py3-none-any.whl --hash=sha256:00 --hash=sha256:01" in lines
    assert all("--hash=sha256:" in line for line in lines)
    assert len(lines) == 4


def test_a_changed_byte_is_another_environment(file: File) -> None:
    file.start()
    content = bytearray(file.path.read_bytes())
    content[content.index(b"pip fetches by hash")] ^= 1
    file.path.write_bytes(content)
    file.start()
    assert len(file.environments) == 2


@pytest.mark.parametrize("place", ["gpuprov", "gpuprov/pyz", "environment"])
def test_a_folder_that_others_can_write_is_refused(file: File, place: str) -> None:
    file.start()
    folder = file.environments[0] if place == "environment" else file.cache / place
    folder.chmod(0o777)
    said = file.start(code=5)
    assert said.stdout == ""
    assert f"gpuprov.pyz: {folder}: other users may write it, its mode is 777" in said.stderr


def test_the_umask_decides_who_can_read_and_nobody_else_can_write(file: File) -> None:
    for umask, mode in ((0o077, 0o700), (0o002, 0o755)):
        former = os.umask(umask)
        file.start()
        os.umask(former)
        [folder] = file.environments
        assert [path.stat().st_mode & 0o777 for path in (folder, folder / "lib")] == [mode, mode]
        subprocess.run(["rm", "-r", folder], check=True)


def test_an_interrupted_installation_is_repeated(file: File) -> None:
    file.start()
    (file.environments[0] / onefile.READY).unlink()
    file.start()
    assert len(file.log.read_text().splitlines()) == 2


def test_what_cannot_be_fetched_is_named_in_one_line(tmp_path: Path) -> None:
    said = made(tmp_path / "failing", pip=FAILS).start(code=1).stderr.splitlines()[1:]
    assert len(said) == 1
    assert said[0].startswith(
        "gpuprov.pyz: pyyaml cannot be installed: No matching distribution found for pyyaml?[2J; expected"
    )
    assert "type PIP_INDEX_URL=https://MIRROR/simple " in said[0]


def installing(folder: Path, script: str) -> str:
    """Return what an installation with this script in place of pip says."""
    python = folder / "bin/python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return onefile.install(folder, folder / "pip.whl")


def test_pip_ends_also_at_an_index_that_drips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onefile, "PIP_S", 1.0)
    begun = time.monotonic()
    assert installing(tmp_path, "sleep 30 & sleep 30") == "pip did not end within 1 s"
    assert time.monotonic() - begun < 20
    assert onefile.PIP_S < onefile.WAIT_S


def test_pip_has_limits_of_memory_and_of_a_file(tmp_path: Path) -> None:
    assert installing(tmp_path, 'echo "ERROR: $(ulimit -v) $(ulimit -f)" >&2; exit 1') == "4194304 524288"


def test_another_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(onefile.STARTED, "1")
    with pytest.raises(
        onefile.Stop, match=r"this is Python 3\.\d+ .*; expected Python 3\.6 to 3\.7; install"
    ):
        onefile.check_python([[3, 6], [3, 7]])
    onefile.check_python([list(each) for each in pythons()])
    ast.parse(Path(onefile.__file__).read_text(), feature_version=(3, 6))


def test_another_python_in_path_is_started_once(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setenv(onefile.STARTED, "")
    monkeypatch.delenv(onefile.STARTED)
    monkeypatch.setattr(onefile.os, "execv", lambda path, words: started.append((path, words)))
    monkeypatch.setattr(onefile.shutil, "which", {"python3.6": "/opt/python3.6"}.get)
    for _ in range(2):
        with pytest.raises(onefile.Stop):
            onefile.check_python([[3, 6], [3, 7]])
    assert started == [("/opt/python3.6", ["/opt/python3.6", *sys.argv])]
    onefile.check_python([list(each) for each in pythons()])
    assert onefile.STARTED not in os.environ


def test_the_lock_of_the_release_is_read_whole() -> None:
    text = (ROOT / "requirements.lock").read_text()
    pins = read_pins(text)
    assert sum(len(pin.hashes) for pin in pins) == text.count("--hash=")
    needed = {pin.name for pin in pins if any(map(pin.needed, environments(pythons())))}
    assert "colorama" not in needed  # on Windows only
    assert {"ansible-core", "backports-zstd", "cryptography"} <= needed
    versions = {
        pin.version
        for each in environments(pythons())
        for pin in pins
        if pin.name == "ansible-core" and pin.needed(each)
    }
    assert len(versions) == 2


def test_a_cache_below_a_folder_that_others_can_write_is_refused(file: File, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    file.cache = tmp_path / "shared/cache"
    assert f"other users may write {tmp_path}/shared, its mode is 777" in file.start(code=5).stderr
    assert list(file.cache.glob("gpuprov/pyz/*")) == []

"""Scripts of packages that use debconf, while a user keeps locks of its database."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import gpuprov_debconf as debconf
import pytest

SCRIPT = (
    "set -e; . /usr/share/debconf/confmodule; db_version 2.0; db_x_loadtemplatefile $0 gpuprov; db_get x/y"
)
TEMPLATES = "Template: x/y\nType: string\nDefault: z\nDescription: x\n"
SETTINGS = (
    "Config: config\nTemplates: templates\n\n"
    "Name: config\nDriver: File\nMode: 644\nFilename: {0}/config.dat\n\n"
    "Name: templates\nDriver: File\nMode: 644\nFilename: {0}/templates.dat\n"
)


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a database and its settings, which scripts use."""
    (tmp_path / "debconf.conf").write_text(SETTINGS.format(tmp_path))
    for name in ("config.dat", "templates.dat"):
        (tmp_path / name).touch(0o644)
    monkeypatch.setenv(debconf.VARIABLE, str(tmp_path / "debconf.conf"))
    return tmp_path


def configure(folder: Path) -> int:
    """Run a package's script that loads a template, as dpkg does; return its exit status."""
    script = folder / "config"
    script.write_text(f"#!/bin/sh\n{SCRIPT.replace('$0', str(folder / 'templates'))}\n")
    script.chmod(0o755)
    (folder / "templates").write_text(TEMPLATES)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(
        [str(script)], env=environment, capture_output=True, umask=0o022, check=False
    ).returncode


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep a shared lock of a file, as a user's process can."""
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("name", ["config.dat", "templates.dat", "config.dat-new"])
def test_a_lock_of_a_user_has_no_effect_in_the_block(database: Path, name: str) -> None:
    path = database / name
    path.touch(0o644)
    with locked(path):
        assert configure(database) != 0
        with debconf.closed():
            assert configure(database) == 0
    assert "x/y" in (database / "config.dat").read_text()


def test_no_user_can_open_what_debconf_writes_in_the_block(database: Path) -> None:
    files = [database / "config.dat", database / "templates.dat"]
    with debconf.closed():
        assert [mode(path) for path in files] == [0o600, 0o600]
        before = [path.stat().st_ino for path in files]
        assert configure(database) == 0
        assert [path.stat().st_ino for path in files] != before
        assert [mode(path) for path in files] == [0o600, 0o600]
        with debconf.closed():
            pass
        assert [mode(path) for path in files] == [0o600, 0o600]
    assert [mode(path) for path in files] == [0o644, 0o644]
    assert os.environ[debconf.VARIABLE] == str(database / "debconf.conf")


class Folders:
    """Temporary files of the library, without space in some folders."""

    def __init__(self, full: set[str | None], monkeypatch: pytest.MonkeyPatch) -> None:
        self.full, self.create = full, debconf.tempfile.NamedTemporaryFile
        monkeypatch.setattr(debconf.tempfile, "NamedTemporaryFile", self.open)

    def open(self, *, dir: str | None) -> IO[bytes]:  # noqa: A002 - as the library's function
        """Return a temporary file in a folder, or one without space."""
        return Path("/dev/full").open("wb") if dir in self.full else self.create(dir=dir)


def test_without_room_for_the_settings_the_files_stay_as_they_are(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Folders({debconf.TEMPORARY, str(database)}, monkeypatch)
    with pytest.raises(OSError, match="No space left"), debconf.closed():
        pass
    assert mode(database / "config.dat") == 0o644


def test_a_full_run_leaves_no_database_open(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the settings into the folder of the database."""
    Folders({debconf.TEMPORARY}, monkeypatch)
    before = sorted(database.iterdir())
    with debconf.closed():
        assert Path(os.environ[debconf.VARIABLE]).parent == database
        assert mode(database / "config.dat") == 0o600
    assert sorted(database.iterdir()) == before


def test_without_debconf_the_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(debconf.VARIABLE, raising=False)
    monkeypatch.setattr(debconf, "SETTINGS", str(tmp_path / "none"))
    with debconf.closed():
        assert debconf.VARIABLE not in os.environ

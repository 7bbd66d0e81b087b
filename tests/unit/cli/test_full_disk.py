"""Full disk or missing write permission on the controller: always one line and an exit code."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuprov.cli.common.group import run
from gpuprov.errors import Exit
from gpuprov.model.lock import read_lock, render_lock
from tests import RECORDED_LOCK, is_defect
from tests.unit.samples import sample

FLEET = "groups: {g: {profile: hgx-h200-8, hosts: gpu01, os: debian12}}\n"
VERBS = (
    ("drift",),
    ("drift", "--junit", "drift.xml"),
    ("apply", "--yes"),
    ("facts", "gpu01"),
    ("history",),
    ("init", "--profile", "hgx-h200-8", "--hosts", "gpu01", "--os", "debian12", "-o", "new.yml"),
    ("upgrade", "--to", "fleet.lock.yml", "--yes"),
)
LEVELS = (0, 600, 40_000)
"""Largest file size in bytes that may be written; see setrlimit(2), RLIMIT_FSIZE."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a lock whose node cannot be reached."""
    recorded = read_lock(RECORDED_LOCK)
    [(name, group)] = recorded.groups.items()
    way = group.connection.model_copy(update={"port": 1})
    mine = group.model_copy(update={"hosts": {"gpu01": "127.0.0.1"}, "connection": way})
    (tmp_path / "fleet.lock.yml").write_text(
        render_lock(recorded.model_copy(update={"groups": {name: mine}}))
    )
    (tmp_path / "fleet.yml").write_text(FLEET)
    return tmp_path


def called(
    folder: Path, *words: str, limit: int | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run gpuprov in the folder, in a new process; `limit` is the largest file in bytes that it can write."""

    def limited() -> None:
        """Limit the size of files that the process may write."""
        if limit is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    # Python would keep a cached module that the limit has cut off, and fail to load it ever after.
    own = {"PYTHONDONTWRITEBYTECODE": "1", "XDG_STATE_HOME": str(folder / "state"), "HOME": str(folder)}
    environment = {**os.environ, **own, **more}
    return subprocess.run(
        [sys.executable, "-m", "gpuprov", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limited,
        timeout=120,
    )


def in_words(done: subprocess.CompletedProcess[str]) -> None:
    """Check that a process ended with one of gpuprov's exit codes and a message, without a traceback."""
    result = done.stdout + done.stderr
    assert not is_defect(result), result
    assert "Exception ignored" not in result, result
    assert done.returncode in set(Exit), result
    assert done.returncode == 0 or done.stderr.strip() or done.stdout.strip()
    assert len(done.stderr.splitlines()) < 8, done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_no_room_is_reported_in_a_line(folder: Path, words: tuple[str, ...]) -> None:
    before = (folder / "fleet.lock.yml").read_bytes()
    for limit in sample(LEVELS, 3, " ".join(words)):
        in_words(called(folder, *words, limit=limit))
        assert (folder / "fleet.lock.yml").read_bytes() == before


@pytest.mark.thorough
@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_a_state_that_cannot_be_made_is_reported_in_a_line(folder: Path, words: tuple[str, ...]) -> None:
    in_words(called(folder, *words, XDG_STATE_HOME="/proc/self", XDG_CACHE_HOME="/proc/self"))


def test_a_full_standard_output_is_reported_in_a_line(folder: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gpuprov", "inventory", "profiles"],
            cwd=folder,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.stderr.startswith("gpuprov: standard output or a file: No space left on device; make room")
    assert len(done.stderr.splitlines()) == 1
    assert done.returncode == Exit.FAILED


def test_what_no_verb_has_words_for_is_reported_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "/x/y")

    monkeypatch.setattr("gpuprov.cli.common.group.gpuprov.main", full)
    mask = os.umask(0o022)
    try:
        assert run(["inventory", "profiles"]) == Exit.FAILED
    finally:
        os.umask(mask)
    assert capfd.readouterr().err.startswith(
        "gpuprov: /x/y: No space left on device; make room, or name writable folders"
    )

"""Locks of package managers, and those with which other users could prevent changes."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gpuprov_dnf
import gpuprov_locks
import gpuprov_node
import gpuprov_rpm_files
import pytest
from gpuprov_failures import Failed
from gpuprov_node import TIMED_OUT

from gpuprov.files import mutex
from gpuprov.probe.node import system
from tests.unit.roles.scripts import script

preflight = script("preflight")
HOLD = """
import fcntl, sys
path, mode, length, start = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with open(path, mode) as file:
    fcntl.lockf(file, fcntl.LOCK_SH if mode == "rb" else fcntl.LOCK_EX, length, start)
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held(path: Path, mode: str, length: int = 0, start: int = 0) -> Iterator[int]:
    """Yield the id of a process with a lock: a read lock if the mode is `rb`, otherwise a write lock."""
    path.touch()
    words = [sys.executable, "-IS", "-c", HOLD, str(path), mode, str(length), str(start)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        assert child.stdin
        assert child.stdout.readline() == b"held\n"
        try:
            yield child.pid
        finally:
            child.stdin.close()


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package manager's lock; the only one."""
    path = tmp_path / "rpm.lock"
    monkeypatch.setattr(gpuprov_locks, "MANAGERS", (str(tmp_path / "none"), str(path)))
    monkeypatch.setattr(gpuprov_dnf, "RPM", str(path))
    return path


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The locks of rpm's database."""
    path = tmp_path / "rpmdb.sqlite-shm"
    monkeypatch.setattr(gpuprov_locks, "DATABASES", (str(tmp_path / "none"), str(path)))
    return path


def test_a_write_lock_is_a_package_manager(lock: Path) -> None:
    assert preflight.wait_for_packages(0) is None
    with held(lock, "r+b") as pid:
        assert gpuprov_locks.running() == pid
        assert preflight.wait_for_packages(0) == system.lock_holder()
        assert str(system.lock_holder()).endswith(f" ({pid})")
    assert system.lock_holder() is None


def test_a_read_lock_of_a_user_is_none(lock: Path) -> None:
    with held(lock, "rb"):
        assert preflight.wait_for_packages(0) is None
        assert system.lock_holder() is None


def test_a_file_of_that_number_elsewhere_is_not_the_lock(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock.touch()
    row = f"1: FLOCK  ADVISORY  WRITE {os.getpid()} ff:ff:{lock.stat().st_ino} 0 EOF\n"
    monkeypatch.setattr(system, "read_or_none", lambda path, *_: row if path == "/proc/locks" else "me")
    assert system.lock_holder() is None


def test_the_holder_of_our_own_lock_has_its_device_and_number(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        about = os.fstat(file.fileno())
        assert mutex._holder(about) == os.getpid()
        other = list(about)
        other[2] += 1  # the device
        assert mutex._holder(os.stat_result(other)) is None


def test_rpms_lock_is_replaced_by_one_that_no_user_can_open(lock: Path) -> None:
    lock.touch(0o644)
    with held(lock, "rb"):
        before = lock.stat()
        gpuprov_dnf.close_lock()
        after = lock.stat()
        assert stat.S_IMODE(after.st_mode) == 0o600
        assert after.st_ino != before.st_ino
        with lock.open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    gpuprov_dnf.close_lock()
    assert lock.stat().st_ino == after.st_ino


def test_rpms_lock_stays_while_rpm_holds_it(lock: Path) -> None:
    lock.touch(0o644)
    with held(lock, "r+b"):
        before = lock.stat().st_ino
        gpuprov_dnf.close_lock()
        assert lock.stat().st_ino == before


def test_a_missing_lock_is_created_closed(lock: Path) -> None:
    gpuprov_dnf.close_lock()
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600


def test_without_its_folder_nothing_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpuprov_dnf, "RPM", str(tmp_path / "none/rpm.lock"))
    gpuprov_dnf.close_lock()
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("byte", [120, 121, 122])
def test_a_user_who_locks_the_writers_bytes_is_named(database: Path, lock: Path, byte: int) -> None:
    with held(database, "rb", 1, byte) as pid:
        assert gpuprov_locks.blocker() == pid
        assert str(preflight.blocked()).endswith(f" ({pid})")
        with pytest.raises(Failed, match=rf"\({pid}\) is no package manager") as caught:
            gpuprov_dnf.transact(gpuprov_dnf.installation(["tool"], 1, False), [])
    said = gpuprov_dnf.failure("install", caught.value)
    assert "a user's process prevents all changes of packages" in str(said["says"])
    assert str(said["do"]).startswith("`lslocks` on the node shows it, with /var/lib/rpm/rpmdb.sqlite-shm")
    assert not lock.exists()


@pytest.mark.parametrize(("mode", "start"), [("rb", 123), ("rb", 128), ("r+b", 120)])
def test_a_reader_of_the_database_and_rpm_itself_do_not_block(database: Path, mode: str, start: int) -> None:
    with held(database, mode, 1, start):
        assert gpuprov_locks.blocker() is None
        assert preflight.blocked() is None


def test_both_databases_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / name for name in ("rpmdb.sqlite-shm", "history.sqlite-shm")]
    assert [Path(each).name for each in gpuprov_locks.DATABASES] == [path.name for path in paths]
    monkeypatch.setattr(gpuprov_locks, "DATABASES", tuple(map(str, paths)))
    for path in paths:
        with held(path, "rb", 1, 121) as pid:
            assert gpuprov_locks.blocker() == pid


def rpms(root: Path, *words: str) -> int:
    """Return the exit status of rpm with its own database; TIMED_OUT after 3 s."""
    command = ["timeout", "3", "rpm", f"--dbpath={root}", *words]
    return subprocess.run(command, capture_output=True, check=False).returncode


@pytest.mark.parametrize("byte", range(120, 129))
def test_rpm_waits_for_the_bytes_whose_holder_is_named(
    byte: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lock each byte of SQLite's (120 to 127) and the next one, as a user can, while rpm reads."""
    assert rpms(tmp_path, "--initdb") == rpms(tmp_path, "-qa") == 0
    path = tmp_path / "rpmdb.sqlite-shm"
    monkeypatch.setattr(gpuprov_locks, "DATABASES", (str(path),))
    with held(path, "rb", 1, byte) as pid:
        named = gpuprov_locks.blocker() == pid
        assert (rpms(tmp_path, "-qa") == TIMED_OUT) == named == (byte < 123)
    assert rpms(tmp_path, "-qa") == 0


@pytest.mark.parametrize("status", [1, TIMED_OUT])
def test_an_unreadable_database_is_no_empty_one(
    status: int, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpuprov_node, "has_dpkg", lambda: False)
    monkeypatch.setattr(gpuprov_node, "run", lambda *_, **__: (status, ""))
    for read in (gpuprov_node.packages, lambda: list(gpuprov_rpm_files.installed(["libcuda"]))):
        with (
            held(database, "rb", 1, 122) as pid,
            pytest.raises(Failed, match=rf"\({pid}\) is no package"),
        ):
            read()
        with pytest.raises(Failed, match=f"^`rpm -qa` ended with status {status}$"):
            read()
    with pytest.raises(Failed, match=r"^`rpm -qa` ended"):
        preflight.unavailable(["dkms"])
    monkeypatch.setattr(gpuprov_node, "has_dpkg", lambda: True)
    with pytest.raises(Failed, match=r"^`dpkg --print-architecture` ended"):
        gpuprov_node.packages()


def test_without_a_package_manager_no_package_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpuprov_node, "has_dpkg", lambda: False)
    monkeypatch.setattr(gpuprov_node, "run", lambda *_, **__: (gpuprov_node.MISSING, ""))
    assert gpuprov_node.packages() == []


def test_a_process_without_a_name_has_a_text() -> None:
    assert gpuprov_locks.name_of(-1) == gpuprov_locks.name_of(0) == "a process that is not visible here"
    assert gpuprov_locks.name_of(1 << 30) == "a process that has ended meanwhile"


@pytest.fixture
def dnf_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The lock of dnf's metadata in a separate root; the only one."""
    path = tmp_path / "cache/metadata_lock.pid"
    path.parent.mkdir()
    monkeypatch.setattr(gpuprov_locks, "DNF", (str(tmp_path / "none"), str(path)))
    return path


def ask_dnf(begin: tuple[str, ...], root: Path) -> int:
    """Run dnf with an empty separate root, which takes its locks; return its exit status."""
    folders = {
        "cachedir": root / "cache",
        "persistdir": root / "state",
        "logdir": root,
        "reposdir": root / "no",
    }
    options = [f"--setopt={name}={folder}" for name, folder in folders.items()]
    words = ["--quiet", f"--installroot={root}", "--releasever=9", "--setopt=plugins=0", *options]
    command = [*begin, *words, "repoquery", "--installed", "x"]
    return subprocess.run(command, capture_output=True, check=False).returncode


@contextmanager
def flocked(path: Path) -> Iterator[None]:
    """Keep a shared lock on a file, as a user's process can."""
    path.touch(0o644)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def test_all_locks_of_dnf_are_known() -> None:
    """Ask dnf itself: the log's lock is in /var/log for any root."""
    asked = (
        "from dnf import lock; print(*(each.target for each in ("
        "lock.build_metadata_lock('/var/cache/dnf', 1),"
        " lock.build_download_lock('/var/cache/dnf', 1), lock.build_rpmdb_lock('/var/lib/dnf', 1),"
        " lock.build_log_lock('/var/log/', 1))))"
    )
    done = subprocess.run(["/usr/bin/python3", "-c", asked], capture_output=True, text=True, check=True)
    mine = [each for each in done.stdout.split() if each.startswith("/var/")]
    assert mine == list(gpuprov_locks.DNF) or os.geteuid(), "without root the folders are others"


def test_dnf_waits_for_a_lock_that_a_user_keeps_until_its_file_is_removed(
    dnf_lock: Path, tmp_path: Path
) -> None:
    with flocked(dnf_lock):
        assert ask_dnf(("timeout", "5", "dnf"), tmp_path) == TIMED_OUT
        gpuprov_locks.remove_kept_locks()
        assert ask_dnf(("timeout", "60", *gpuprov_locks.RUN_DNF), tmp_path) == 0


@pytest.mark.parametrize("text", ["", str(1 << 30), "no number", "9" * 40])
def test_a_lock_of_a_dnf_that_has_ended_is_removed(dnf_lock: Path, text: str) -> None:
    dnf_lock.write_text(text)
    gpuprov_locks.remove_kept_locks()
    assert not dnf_lock.exists()


def test_a_lock_of_a_running_dnf_stays(dnf_lock: Path) -> None:
    dnf_lock.write_text("1")
    gpuprov_locks.remove_kept_locks()
    assert dnf_lock.exists()


def test_a_lock_that_no_user_can_open_stays(dnf_lock: Path) -> None:
    dnf_lock.touch(0o600)
    gpuprov_locks.remove_kept_locks()
    assert dnf_lock.exists()


def test_no_user_can_open_a_lock_that_our_dnf_creates(tmp_path: Path) -> None:
    """Let dnf's command create a file: the umask of its process counts."""
    program = tmp_path / "dnf"
    program.write_text(f"#!/bin/sh\n: >{tmp_path}/lock.pid\n")
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(gpuprov_locks.RUN_DNF, env=environment, check=True)
    assert stat.S_IMODE((tmp_path / "lock.pid").stat().st_mode) == 0o600

"""Locks of the operator and of nodes: private, exclusive, with a limited waiting time."""

from __future__ import annotations

import ast
import fcntl
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpuprov.cli.common.group import run
from gpuprov.errors import Exit, Refused
from gpuprov.files import mutex
from gpuprov.files.runs import cache_dir, make_folder, new_run, state_dir
from gpuprov.files.ways import ways
from gpuprov.model.exclusive import exclusive
from gpuprov.ssh.workers.certificates import make_certificates


def test_it_is_sent_to_nodes() -> None:
    ast.parse(Path(mutex.__file__).read_text(), feature_version=(3, 6))


def test_whoever_can_read_a_file_does_not_keep_others_from_changing_it(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.touch(0o644)
    with file.open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)

        def change() -> None:
            with exclusive(file, 5):
                done.append(True)

        done: list[bool] = []
        changing = threading.Thread(target=change, daemon=True)
        changing.start()
        changing.join(4)
    assert done
    locks = state_dir() / "locks"
    assert {stat.S_IMODE(path.stat().st_mode) for path in (locks, state_dir())} == {0o700}


def test_one_at_a_time(tmp_path: Path) -> None:
    inside: list[int] = []

    def work() -> None:
        """Enter 20 times, and check that no other thread is inside."""
        for _ in range(20):
            with exclusive(tmp_path / "x"):
                inside.append(1)
                assert len(inside) == 1
                time.sleep(0.0005)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert inside == []


def test_waiting_has_an_end_and_says_for_whom(tmp_path: Path) -> None:
    with exclusive(tmp_path / "x"), pytest.raises(Refused) as refused, exclusive(tmp_path / "x", 0.1):
        pass
    assert str(refused.value).startswith(f"{tmp_path}/x is locked by ")
    assert f"(pid {os.getpid()}) for more than 0 s; `ps -fp {os.getpid()}`" in str(refused.value)


def test_any_name_of_the_process_is_named(tmp_path: Path) -> None:
    """Check a name of bytes that are no text: the error is the same for each."""
    program = "import fcntl,sys,time; fcntl.flock(0, fcntl.LOCK_EX)\nprint(flush=True); time.sleep(60)"
    naming = f"open('/proc/self/comm', 'wb').write(b'\\xff'); {program}"
    with tmp_path.joinpath("x").open("w") as file:
        words = [sys.executable, "-c", naming]
        with subprocess.Popen(words, stdin=file, stdout=subprocess.PIPE) as process:
            assert process.stdout
            process.stdout.readline()
            with tmp_path.joinpath("x").open() as ours, pytest.raises(mutex.Locked) as locked:
                mutex.wait_for(ours.fileno(), "x", 0)
            process.kill()
    assert f"(pid {process.pid})" in str(locked.value)


def test_what_is_done_under_a_lock_may_ask_for_another_in_vain(tmp_path: Path) -> None:
    with exclusive(tmp_path / "x"), pytest.raises(Refused, match="/x is locked"):  # noqa: SIM117
        with exclusive(tmp_path / "y"), exclusive(tmp_path / "x", 0.1):
            pass


def test_a_folder_of_others_is_refused_with_what_to_type(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(OSError, match=rf"mode is 777; look at what is in it, then `chmod go-w {folder}`"):
        mutex.own_folder(str(folder), 0o700)
    folder.chmod(0o755)
    mutex.own_folder(str(folder), 0o700)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        mutex.own_folder(str(tmp_path / "link"), 0o700)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's folder")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    with pytest.raises(OSError, match=rf"belongs to user 65534, expected 0; .* `chown 0 {folder}`"):
        mutex.own_folder(str(folder), 0o700)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's folder")
@pytest.mark.parametrize(("owner", "mode"), [(65534, 0o755), (0, 0o777)])
def test_state_in_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, mode: int
) -> None:
    """They could put a link to another folder of the operator in its place."""
    above = tmp_path / "theirs"
    (above / "state").mkdir(parents=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(above / "state"))
    state_dir()
    os.chown(above, owner, owner)
    above.chmod(mode)
    with pytest.raises(Refused, match=f"{above / 'state/gpuprov'} is not safe: .*{above}") as refused:
        state_dir()
    assert refused.value.do.startswith("set XDG_STATE_HOME")
    above.chmod(mode | stat.S_ISVTX)
    monkeypatch.setenv("HOME", str(above if owner else tmp_path))
    assert state_dir() == above / "state/gpuprov"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's link")
@pytest.mark.parametrize("shared", [False, True])
def test_state_behind_a_link_that_another_user_can_replace_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """They could make it lead to another folder of the operator."""
    between, theirs = tmp_path / "between", tmp_path / "between/link"
    between.mkdir()
    (tmp_path / "own").mkdir()
    theirs.symlink_to("../own")
    (tmp_path / "state").symlink_to(theirs)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert state_dir() == tmp_path / "state/gpuprov"
    if shared:
        between.chmod(0o1777)
        os.chown(theirs, 65534, 65534, follow_symlinks=False)
    else:
        os.chown(between, 65534, 65534)
    with pytest.raises(Refused, match=f"is not safe: {theirs if shared else between} belongs to user 65534"):
        state_dir()


def test_links_that_lead_to_each_other_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b/x")
    (tmp_path / "b").symlink_to("a/y")
    with pytest.raises(OSError, match="symbolic links"):
        list(ways(tmp_path / "a/z"))


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks/x").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"), mutex.held(str(tmp_path / "locks/x"), 1):
        pass
    assert not target.exists()


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_the_state_is_the_operators_alone_whatever_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "a/state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a/cache"))
    before = os.umask(umask)
    try:
        with exclusive(tmp_path / "x"):
            cache_dir()
    finally:
        os.umask(before)
    made = (tmp_path / "a").rglob("*")
    modes = {str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode) for path in made}
    lock = modes.popitem()
    assert lock[1] == 0o600
    private = dict.fromkeys(("a/state/gpuprov", "a/state/gpuprov/locks", "a/cache/gpuprov"), 448)
    assert modes == {"a/state": 0o755, "a/cache": 0o755, **private}


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_run_and_certificates_are_the_operators_alone_whatever_the_umask(
    own_state: Path, tmp_path: Path, umask: int
) -> None:
    before = os.umask(umask)
    try:
        run_folder = new_run("apply")
        make_certificates(tmp_path / "config/gpuprov/workers", ["fra1"])
    finally:
        os.umask(before)
    made = [run_folder, *run_folder.parents[:1], *(tmp_path / "config").rglob("*")]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in [tmp_path / "config", *made] if path.is_dir()}
    assert modes == {0o700}
    with pytest.raises(FileExistsError):
        make_folder(run_folder)


def test_a_state_that_others_may_write_is_refused_by_every_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "gpuprov"
    folder.mkdir()
    folder.chmod(0o777)
    before = os.umask(0)
    try:
        assert run(["inventory", "profiles"]) == Exit.REFUSED
        assert os.umask(before) == 0o022
    finally:
        os.umask(before)
    said = f"gpuprov: {folder} is not safe: other users may write it, its mode is 777; "
    assert capfd.readouterr().err == f"{said}look at what is in it, then `chmod go-w {folder}`\n"
    folder.chmod(0o755)
    assert run(["inventory", "profiles"]) == Exit.OK
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_may_be_named_relative_to_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mutex.own_folder("locks", 0o700)
    assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o700

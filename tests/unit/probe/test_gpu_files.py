"""Processes with a device of a GPU open: neither names, namespaces, threads nor many files hide one."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpuprov_gpu_files as gpu_files
import pytest
from gpuprov_gpu_files import TooManyFiles

from gpuprov.probe.node import gpu as collectors
from gpuprov.probe.node.base import Failed
from tests.unit.roles.scripts import script

preflight = script("preflight")

DEVICE = "/dev/full"
"""A device that no other process has open, in place of a GPU."""
OPEN = "import os, sys; os.open({path!r}, os.{flags}); print(flush=True); sys.stdin.read()"
THREAD = """
import ctypes, os, sys, threading
def work():
    assert ctypes.CDLL(None).unshare(0x400) == 0  # CLONE_FILES
    os.open({path!r}, os.O_RDWR)
    os.write(1, b"\\n")
    os.read(0, 1)
    os._exit(0)
thread = threading.Thread(target=work)
thread.start()
{after}
"""
ENDS = "ctypes.CDLL(None).syscall({}, 0)".format({"x86_64": 60, "aarch64": 93}.get(os.uname().machine, 60))
"""End of only the first thread, exit(2)."""
MAP = """
import ctypes, os, threading
def wait():
    while open(f"/proc/{{os.getpid()}}/stat").read().split()[2] not in expected:
        pass
    os.write(1, b"\\n")
    os.read(0, 1)
    os._exit(0)
handle = os.open("/dev/zero", os.O_RDWR)
ctypes.CDLL(None).mmap(None, 4096, 3, 2, handle, 0)
os.close(handle)
expected = "RSD"
{then}
wait()
"""
ENDING = f"expected = 'Z'; threading.Thread(target=wait).start(); {ENDS}"
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its root folder")


@contextlib.contextmanager
def child(code: str, *before: str) -> Iterator[str]:
    """Yield the number of a process that runs a program, when it has printed a line."""
    argv = [*before, sys.executable, "-IS", "-c", code]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        try:
            yield str(process.pid)
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of /dev, whose `nvidia0` has the number of `DEVICE`."""
    folder = tmp_path / "dev"
    folder.mkdir()
    monkeypatch.setattr(gpu_files, "FOLDER", str(folder))
    (folder / "nvidia0").symlink_to(DEVICE)
    (folder / "nvidia1").touch()
    return folder


def opened(path: str | Path = DEVICE, flags: str = "O_RDWR") -> str:
    """Return a Python program that holds a device open."""
    return OPEN.format(path=str(path), flags=flags)


def test_a_device_that_is_open_has_its_name(gpu: Path) -> None:
    with child(opened()) as pid:
        assert gpu_files.devices_of(pid) == {"nvidia0"}
        assert gpu_files.devices_in_use()[pid] == {"nvidia0"}
        assert collectors.users_of(r"nvidia\d+")[pid] == ["nvidia0"]
        assert pid not in collectors.users_of("nvidia")
        assert [each for each in preflight.users_of_gpus([]) if each.endswith(f"({pid})")]


@pytest.mark.parametrize("path", ["nvidia1", "/dev/zero"])
def test_a_file_that_only_has_a_devices_name_is_none(gpu: Path, path: str) -> None:
    with child(opened(gpu / path)) as pid:
        assert gpu_files.devices_of(pid) == set()


def test_a_device_that_cannot_be_used_is_not_in_use(gpu: Path) -> None:
    with child(opened(flags="O_PATH")) as pid:
        assert gpu_files.devices_of(pid) == set()


def test_a_file_that_is_closed_meanwhile_hides_no_other(gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Close the first of two between the look at its number and at its mode."""
    real, closed = os.lstat, []

    def close(path: str) -> os.stat_result:
        if not closed:
            closed.append(path)
            raise FileNotFoundError
        return real(path)

    monkeypatch.setattr("gpuprov_gpu_files.os.lstat", close)
    with child(opened().replace("print", "os.dup(3); print")) as pid:
        assert gpu_files.devices_in_use([pid], mapped=False) == {pid: {"nvidia0"}}
    assert closed == [f"/proc/{pid}/task/{pid}/fd/3"]


@ROOT
@pytest.mark.parametrize("then", ["", ENDING])
def test_a_device_that_is_mapped_is_in_use_after_it_was_closed(gpu: Path, then: str) -> None:
    """Map a device that can be mapped, also by a process whose first thread has ended."""
    (gpu / "nvidia0").unlink()
    (gpu / "nvidia0").symlink_to("/dev/zero")
    with child(MAP.format(then=then)) as pid:
        assert gpu_files.devices_of(pid) == {"nvidia0"}
        assert gpu_files.devices_in_use([pid]) == {pid: {"nvidia0"}}


def test_a_process_whose_mappings_are_not_told_is_named(gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait as the kernel does while a process keeps its memory locked, as by a file system of its own."""
    ended = threading.Event()

    def wait(path: str, mode: str = "r", **how: Any) -> Any:
        """Answer after the test about mapped files."""
        if path.endswith("maps"):
            ended.wait(20)
        return Path(path).open(mode, **how)

    monkeypatch.setattr(gpu_files, "open", wait, raising=False)
    with child(opened()) as pid:
        with pytest.raises(TooManyFiles, match=rf"process {pid} \(.+\) of user {os.getuid()} has mapped"):
            gpu_files.devices_in_use([pid], 0.1)
        assert gpu_files.devices_in_use([pid], 0.1, mapped=False) == {pid: {"nvidia0"}}
        assert collectors.users_of("nvidia0")[pid] == ["nvidia0"]
        ended.set()


@ROOT
def test_a_file_that_many_have_mapped_is_looked_at_once(gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Find each process with the device, without a look at it; the time for all is some thousand
    mappings a millisecond.
    """
    (gpu / "nvidia0").unlink()
    (gpu / "nvidia0").symlink_to("/dev/zero")
    device, looked = gpu_files._device, []

    def count(handle: int, folder: str, name: str) -> Any:
        looked.append(folder)
        return device(handle, folder, name)

    monkeypatch.setattr(gpu_files, "_device", count)
    with child(MAP.format(then="")) as pid, child(MAP.format(then="")) as other:
        assert gpu_files.devices_in_use([pid, other]) == {pid: {"nvidia0"}, other: {"nvidia0"}}
        files = set(map(os.readlink, Path(f"/proc/{pid}/map_files").iterdir()))
    assert len([folder for folder in looked if folder.endswith("map_files")]) == len(files - {"/dev/zero"})


@ROOT
@pytest.mark.parametrize("seen", [(1, 2, 3), ()], ids=["replaced", "moved"])
def test_a_mapping_that_changes_meanwhile_hides_no_device(
    gpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: tuple[int, ...]
) -> None:
    """Have a container's device replaced by another file, or moved, between its line and the look at it."""
    (gpu / "nvidia0").unlink()
    (gpu / "nvidia0").symlink_to("/dev/zero")
    own = tmp_path / "own"
    os.mknod(own, 0o20666, Path("/dev/zero").stat().st_rdev)
    device = gpu_files._device
    moved: list[str] = []

    def move(handle: int, folder: str, name: str) -> Any:
        """Answer once for the first process as if its device had gone."""
        if moved or not folder.endswith("map_files") or Path(folder, name).readlink() != own:
            return device(handle, folder, name)
        moved.append(folder)
        return None, seen

    monkeypatch.setattr(gpu_files, "_device", move)
    code = MAP.format(then="").replace("/dev/zero", str(own))
    with child(code) as pid, child(code) as other:
        found = gpu_files.devices_in_use([pid, other])
    assert moved == [f"/proc/{pid}/map_files"]
    assert found == {pid: {"nvidia0"}, other: {"nvidia0"}}


@ROOT
@pytest.mark.parametrize("other", [(0, 1, 0), (0, 0, 1)], ids=["btrfs", "overlay"])
def test_files_with_other_numbers_than_their_mappings_have_not_changed(
    gpu: Path, monkeypatch: pytest.MonkeyPatch, other: tuple[int, ...]
) -> None:
    """Read the mappings once, or a second time to know that they have not."""
    device = gpu_files._device
    lines: list[str] = []

    def differ(handle: int, folder: str, name: str) -> Any:
        number, seen = device(handle, folder, name)
        return number, seen and tuple(map(sum, zip(seen, other, strict=True)))

    def count(path: str, mode: str = "r", **how: Any) -> Any:
        lines.append(path)
        return Path(path).open(mode, **how)

    monkeypatch.setattr(gpu_files, "_device", differ)
    monkeypatch.setattr(gpu_files, "open", count, raising=False)
    with child(opened()) as pid:
        assert gpu_files.devices_of(pid) == {"nvidia0"}
        assert lines.count(f"/proc/{pid}/maps") == 1 + other[2]


@ROOT
def test_a_chroot_hides_no_device(gpu: Path, tmp_path: Path) -> None:
    """Open the device by a path that is not that of the node."""
    node = tmp_path / "another"
    device = Path(DEVICE).stat().st_rdev
    os.mknod(node, 0o20666, device)
    with child(opened(node)) as pid:
        assert str(Path(f"/proc/{pid}/fd/3").readlink()) == str(node)
        assert gpu_files.devices_of(pid) == {"nvidia0"}


@pytest.mark.parametrize("after", ["thread.join()", ENDS])
def test_a_thread_with_files_of_its_own_hides_no_device(gpu: Path, after: str) -> None:
    with child(THREAD.format(path=DEVICE, after=after)) as pid:
        assert gpu_files.devices_of(pid) == {"nvidia0"}


def test_a_device_without_a_name_in_dev_is_known_by_its_driver(
    gpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open a device of a container: nvidia-modprobe creates those of the node at first use."""
    (gpu / "nvidia0").unlink()
    about = Path(DEVICE).stat().st_rdev
    major = f"{os.major(about):3}"
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "devices").write_text(
        f"Character devices:\n  4 tty\n{major} nvidia\n\nBlock devices:\n{major} nvidia-b\n"
    )
    with child(opened()) as pid:
        (proc / pid).symlink_to(f"/proc/{pid}")
        monkeypatch.setattr(gpu_files, "PROC", str(proc))
        assert gpu_files.devices_of(pid) == {f"nvidia{os.minor(about)}"}


@pytest.mark.parametrize("number", [38, 1])
def test_without_the_newer_calls_the_answer_is_the_same(
    gpu: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Answer as a filter of system calls: it does not exist (38), or it is not permitted (1)."""

    def refuse(*_: object) -> int:
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(gpu_files._LIBRARY, "syscall", refuse, raising=False)
    with child(opened()) as pid:
        assert gpu_files.devices_of(pid) == {"nvidia0"}


def test_many_files_are_refused_with_the_user_and_the_process(
    gpu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name the process with the most files, not the one at which the time ends."""
    monkeypatch.setattr(gpu_files, "FEW", 50)
    many = "import os, sys; [os.dup(0) for _ in range(900)]; print(flush=True); sys.stdin.read()"
    with child(many) as pid, child(opened()) as other:
        assert gpu_files.devices_in_use([pid, other]) == {other: {"nvidia0"}}
        seconds = itertools.count()
        monkeypatch.setattr("gpuprov_gpu_files.time.monotonic", lambda: next(seconds))
        with pytest.raises(TooManyFiles) as error:
            gpu_files.devices_in_use([pid, other])
        assert re.match(rf"user {os.getuid()} has \d{{3,4}} files open in 2 processes", str(error.value))
        assert re.search(rf"processes, (9\d\d|1\d{{3}}) of them in {pid} ", str(error.value))
        assert str(error.value).endswith(f"with most: sudo kill {pid} {other}")
        with pytest.raises(Failed, match="one of them may be a GPU"):
            collectors.users_of("nvidia0")
        assert "one of them may be a GPU" in preflight.users_of_gpus([])[0]


def test_a_process_that_has_ended_has_nothing_open(gpu: Path) -> None:
    with child(opened()) as pid:
        pass
    assert gpu_files.devices_of(pid) == set()

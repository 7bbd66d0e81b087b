"""Stated files: every error of their contents names the file, what was seen, and what is expected."""

from __future__ import annotations

import io
import os
from contextlib import nullcontext
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest

from gpuprov.errors import InvalidInput, NodeFailed
from gpuprov.untrusted import stated


def test_standard_input_has_the_limit_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stated, "STATED_BYTES", 10)
    for size in (10, 11):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(bytes(size))))
        with pytest.raises(OSError, match="larger than 10 bytes") if size > 10 else nullcontext():
            assert stated.read_argument("-") == bytes(10)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("link", [False, True])
def test_a_named_pipe_is_not_waited_for(tmp_path: Path, link: bool) -> None:
    pipe, name = tmp_path / "pipe", tmp_path / "fleet.yml"
    os.mkfifo(pipe)
    if link:
        name.symlink_to(pipe)
    with pytest.raises(OSError, match="is a named pipe"):
        stated.read_bounded(name if link else pipe)


@pytest.mark.skipif(not hasattr(os, "O_PATH"), reason="only Linux finds a file without opening it")
@pytest.mark.parametrize("link", [False, True])
def test_a_device_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: bool) -> None:
    """Refuse a device that a file states, or a link there leads to, before it is opened."""
    name, modes = tmp_path / "profile.yml", []
    name.symlink_to("/dev/zero")
    really = os.open

    def record(path: str, flags: int, *others: int) -> int:
        modes.append(flags & os.O_PATH)
        return really(path, flags, *others)

    monkeypatch.setattr(os, "open", record)
    with pytest.raises(OSError, match="is a device"):
        stated.read_bounded(name if link else Path("/dev/zero"), 10)
    assert modes == [os.O_PATH]


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="only Linux has such files")
@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("file", ["/proc/version", "/sys/kernel/uevent_seqnum", "/proc/self/mounts"])
def test_a_file_of_the_kernel_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: bool, file: str
) -> None:
    """Refuse those of sysfs, which have a size, and others before they are opened, by any name."""
    name, modes = tmp_path / "profile.yml", []
    name.symlink_to(file)
    really = os.open

    def record(path: str, flags: int, *others: int) -> int:
        modes.append(flags & os.O_PATH)
        return really(path, flags, *others)

    monkeypatch.setattr(os, "open", record)
    for place in (os.path.realpath, str):  # as seen, and mounted elsewhere
        monkeypatch.setattr("os.path.realpath", place)
        with pytest.raises(OSError, match="is a file of the kernel"):
            stated.read_bounded(name if link else Path(file), 10)
    assert modes == [os.O_PATH] * 2


@pytest.mark.skipif(not Path("/dev/shm").is_mount(), reason="needs a file system on another one")
def test_a_file_below_those_of_the_kernel_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refuse a file of what is mounted there, as configfs is, and no other one where nothing is mounted."""
    monkeypatch.setattr(stated, "KERNELS", ("/dev", str(tmp_path / "sys")))
    (tmp_path / "sys").mkdir()
    (tmp_path / "own").write_text("groups: {}")
    assert stated.read_bounded(tmp_path / "own") == b"groups: {}"
    with NamedTemporaryFile(dir="/dev/shm") as file:
        (tmp_path / "link").symlink_to(file.name)
        with pytest.raises(OSError, match="is a file of the kernel"):
            stated.read_bounded(tmp_path / "link")


def test_files_without_content_are_empty(tmp_path: Path) -> None:
    """Read an empty file, and /dev/null, which is stated for no known hosts."""
    (tmp_path / "empty").touch()
    for path in (tmp_path / "empty", Path(os.devnull)):
        assert stated.read_bounded(path) == b""


@pytest.mark.timeout(20)
@pytest.mark.parametrize("form", ["{}", "--facts={}", "-f{}"])
def test_the_output_of_a_command_is_read(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """Read what a shell offers for `<(COMMAND)`, if an argument names it and not only a file."""
    reading, writing = os.pipe()
    os.write(writing, b"groups: {}")
    os.close(writing)
    path = Path(f"/dev/fd/{reading}")
    monkeypatch.setattr("sys.argv", ["gpuprov", "validate"])
    with pytest.raises(OSError, match="is a named pipe"):
        stated.read_bounded(path)
    monkeypatch.setattr("sys.argv", ["gpuprov", "validate", form.format(path)])
    assert stated.read_bounded(path) == b"groups: {}"
    os.close(reading)


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (KeyError("nodes"), "x.json: KeyError: 'nodes'"),
        (ValueError("two\nlines\x1b"), "x.json: two\\nlines\\x1b"),
        (RecursionError("maximum"), "x.json: nested too deeply"),
        (OverflowError("too large"), "x.json: OverflowError: too large"),
        (PermissionError(13, "Permission denied"), "x.json cannot be read: Permission denied"),
        (ValueError("a" * 1000), f"x.json: {'a' * 200}"),
    ],
)
def test_any_error_names_the_file(error: Exception, seen: str) -> None:
    with (
        pytest.raises(InvalidInput) as raised,
        stated.stated_file("x.json", expected="a list", do="write one"),
    ):
        raise error
    assert str(raised.value) == f"{seen}; expected a list; write one"


def test_files_of_a_folder_are_small_together(tmp_path: Path) -> None:
    """Count a file for each of its links, and a small one as `LEAST`; one that is missing does not count."""
    big, small, link, missing = (tmp_path / name for name in ("big", "small", "link", "missing"))
    big.write_bytes(bytes(3 * stated.LEAST))
    small.touch()
    link.symlink_to(big)
    files = [big, link, small, missing]
    stated.require_small(files, 7 * stated.LEAST, "they")
    with pytest.raises(InvalidInput, match="they have 28672 bytes; expected at most 28671"):
        stated.require_small(files, 7 * stated.LEAST - 1, "they")


def test_errors_of_gpuprov_are_kept() -> None:
    with pytest.raises(NodeFailed, match="other"), stated.stated_file("x", expected="a list"):
        raise NodeFailed("other")


def test_a_file_is_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a": "\\udcff"}')
    assert stated.read_stated_json(path, expected="a list") == {"a": "\N{REPLACEMENT CHARACTER}"}
    monkeypatch.setattr(stated, "STATED_BYTES", 10)
    monkeypatch.setattr("sys.argv", ["gpuprov", "doctor", "/dev/zero"])
    for long in (path, Path("/dev/zero")):
        with pytest.raises(InvalidInput, match="larger than 10 bytes; expected a list"):
            stated.read_stated_json(long, expected="a list")

"""Stated files: every error of their contents names the file, what was seen, and what is expected."""

from __future__ import annotations

import io
import os
from contextlib import nullcontext
from pathlib import Path

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


def test_the_output_of_a_command_is_read() -> None:
    """Read what a shell offers for `<(COMMAND)`."""
    reading, writing = os.pipe()
    os.write(writing, b"groups: {}")
    os.close(writing)
    assert stated.read_bounded(Path(f"/dev/fd/{reading}")) == b"groups: {}"
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


def test_errors_of_gpuprov_are_kept() -> None:
    with pytest.raises(NodeFailed, match="other"), stated.stated_file("x", expected="a list"):
        raise NodeFailed("other")


def test_a_file_is_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a": "\\udcff"}')
    assert stated.read_stated_json(path, expected="a list") == {"a": "\N{REPLACEMENT CHARACTER}"}
    monkeypatch.setattr(stated, "STATED_BYTES", 10)
    for long in (path, Path("/dev/zero")):
        with pytest.raises(InvalidInput, match="larger than 10 bytes; expected a list"):
            stated.read_stated_json(long, expected="a list")

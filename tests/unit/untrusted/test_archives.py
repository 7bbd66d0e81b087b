"""Files in zip archives: what the archive states about their sizes is not believed."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuprov.apply.kernel_modules.archive_file import _builds
from gpuprov.errors import InvalidInput
from gpuprov.locking.catalogs.sources import INSIDE, read_wheel
from gpuprov.untrusted.archives import member_names, open_zip, read_member

METHODS = {
    "stored": zipfile.ZIP_STORED,
    "deflated": zipfile.ZIP_DEFLATED,
    "bzip2": zipfile.ZIP_BZIP2,
    "lzma": zipfile.ZIP_LZMA,
}


def packed(method: str, content: bytes, name: str = "file", stated: int | None = None) -> bytes:
    """Return an archive with one file, whose stated size can be false."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", METHODS[method]) as archive:
        archive.writestr(name, content)
    text = buffer.getvalue()
    if stated is None:
        return text
    size = len(content).to_bytes(4, "little")
    return text.replace(size, stated.to_bytes(4, "little"))


@pytest.mark.parametrize("method", ["stored", "deflated"])
def test_a_file_up_to_the_limit(method: str) -> None:
    with zipfile.ZipFile(io.BytesIO(packed(method, b"x" * 1000))) as archive:
        assert read_member(archive, "file", 1000) == b"x" * 1000
        with pytest.raises(ValueError, match="file is larger than"):
            read_member(archive, "file", 999)
        with pytest.raises(KeyError):
            read_member(archive, "other", 999)


def many(count: int) -> bytes:
    """Return an archive with a list of files only, of 56 bytes for each file, without their contents."""
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\x01\x02", 20, 0, 20, *[0] * 8, 10, *[0] * 6)
    listed = b"".join(entry + b"%010d" % number for number in range(count))
    return listed + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, len(listed), 0, 0)


@pytest.mark.parametrize(
    "read", [lambda file: read_wheel(file.read_bytes(), file.name), lambda file: list(_builds(file))]
)
def test_the_list_of_files_takes_little_memory(read: Callable[[Path], Any], tmp_path: Path) -> None:
    """Refuse a list of files that is too long before zipfile makes an object of each."""
    file = tmp_path / "modules.zip"
    file.write_bytes(many(40_000))
    tracemalloc.start()
    try:
        with pytest.raises((InvalidInput, ValueError), match="list of files"):
            read(file)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_list_of_files_up_to_the_limit() -> None:
    with open_zip(io.BytesIO(many(18_000))) as archive:
        assert len(archive.namelist()) == 18_000


@pytest.mark.parametrize("method", ["bzip2", "lzma"])
def test_a_file_that_zipfile_unpacks_at_once_is_refused(method: str) -> None:
    with (
        zipfile.ZipFile(io.BytesIO(packed(method, b"x" * 100))) as archive,
        pytest.raises(ValueError, match="expected stored or deflated"),
    ):
        read_member(archive, "file", 1000)


@pytest.mark.parametrize("method", ["deflated", "bzip2", "lzma"])
def test_a_wheel_that_states_small_sizes_takes_little_memory(method: str) -> None:
    wheel = packed(method, bytes(60_000_000), f"{INSIDE}/manifest.json", stated=1000)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match=r"^catalog\.whl: "):
            read_wheel(wheel, "catalog.whl")
        assert tracemalloc.get_traced_memory()[1] < 25_000_000
    finally:
        tracemalloc.stop()


def repeated(name: str, times: int) -> bytes:
    """Return an archive whose directory lists its only file several times."""
    plain = packed("deflated", b" " * 1000, name)
    start = plain.index(b"PK\1\2")
    end = plain.index(b"PK\5\6")
    directory = plain[start:end] * times
    counts = struct.pack("<HHL", times, times, len(directory))
    return plain[:start] + directory + plain[end : end + 8] + counts + plain[end + 16 :]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (repeated(f"{INSIDE}/gpus.json", 2), "several files of the same name"),
        (repeated(f"{INSIDE}/gpus.json", 10_000), "10000 files; expected at most 100"),
    ],
    ids=["twice", "many"],
)
def test_a_file_of_a_wheel_is_unpacked_once(
    content: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuprov.locking.catalogs.sources.read_member", lambda *_: pytest.fail("unpacked"))
    with pytest.raises(InvalidInput, match=said):
        read_wheel(content, "catalog.whl")


def test_all_files_of_a_wheel_have_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuprov.locking.catalogs.sources.LARGEST", 2500)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in "abc":
            archive.writestr(f"{INSIDE}/{name}.json", b" " * 1000)
    with pytest.raises(InvalidInput, match=r"c\.json is larger than"):
        read_wheel(buffer.getvalue(), "catalog.whl")


def test_names_of_an_archive_up_to_the_limit() -> None:
    with zipfile.ZipFile(io.BytesIO(packed("stored", b"x"))) as archive:
        assert member_names(archive, 1) == ["file"]
        with pytest.raises(ValueError, match="1 files; expected at most 0"):
            member_names(archive, 0)

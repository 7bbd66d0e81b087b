"""The list of paths in an initramfs image."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import gpuprov_cpio as cpio
import pytest
from gpuprov_failures import Failed

EARLY, LATER = ["kernel/x86/microcode/GenuineIntel.bin"], ["lib/modules/nouveau.ko.xz", "init"]


def archive(names: Iterable[str], size: int = 5) -> bytes:
    """Return an archive as the kernel's documentation describes it, of files with content; empty if none."""
    whole = b"".join(map(_member, names, [size] * 100))
    return whole and whole + _member(cpio.LAST.decode(), 0)


def _member(name: str, size: int) -> bytes:
    """Return one file of an archive; its content is that of another archive."""
    numbers = [1, 0o100644, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name) + 1, 0]
    head = b"070701" + b"".join(b"%08x" % each for each in numbers) + name.encode() + b"\0"
    content = (b"070701" * size)[:size]
    return head + b"\0" * (-len(head) % 4) + content + b"\0" * (-size % 4)


def packed(command: tuple[str, ...], content: bytes) -> bytes:
    """Return a content as the program of an unpacker compresses it; skip the test without the program."""
    if not shutil.which(command[0]):
        pytest.skip(f"no {command[0]} here")
    options = [each for each in command[1:] if each != "-dc"]
    options += ["-l"] if command[0] == "lz4" else []  # the only format that the kernel knows
    return subprocess.run([command[0], *options, "-c"], input=content, capture_output=True, check=True).stdout


@pytest.mark.parametrize("zeros", [0, 3, 508, 70_000])
@pytest.mark.parametrize("command", [None, *cpio.UNPACKERS.values()], ids=str)
def test_all_archives_of_an_image_are_listed(
    tmp_path: Path, command: tuple[str, ...] | None, zeros: int
) -> None:
    later = archive(LATER, 100_001)
    image = archive(EARLY) + b"\0" * zeros + (packed(command, later) if command else later)
    (tmp_path / "image").write_bytes(image)
    assert cpio.paths_in(str(tmp_path / "image")) == [*EARLY, *LATER]


def test_names_are_written_in_one_form(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(archive(["./usr/a", "/usr/b", ".hidden", "."]))
    assert cpio.paths_in(str(tmp_path / "image")) == ["usr/a", "usr/b", ".hidden", "."]


@pytest.mark.parametrize(
    ("content", "failed"),
    [
        (b"", "has no archive of files"),
        (b"\0" * 1000, "has no archive of files"),
        (b"MZ an image for EFI", "cannot be read: an archive that begins with 4d5a20616e20"),
        (archive(LATER)[:-130], "cannot be read: its end is missing"),
        (archive(LATER)[:120], "cannot be read: its end is missing"),
        (archive(LATER).replace(b"0000001a", b"ffffffff"), "cannot be read: a name of 4294967295 bytes"),
        (archive(LATER).replace(b"0000001a", b"0000zzzz"), "cannot be read: a header whose numbers"),
        (archive(EARLY) + b"\x1f\x8b and no more", "cannot be read: gzip -dc exited with 1"),
    ],
)
def test_an_image_that_is_not_whole_is_no_list(tmp_path: Path, content: bytes, failed: str) -> None:
    (tmp_path / "image").write_bytes(content)
    with pytest.raises(Failed, match=f"^{re.escape(failed)}"):
        cpio.paths_in(str(tmp_path / "image"))


def test_a_compressed_archive_whose_end_is_missing_is_no_list(tmp_path: Path) -> None:
    whole = packed(("gzip", "-dc"), archive(LATER, 100_001))
    (tmp_path / "image").write_bytes(archive(EARLY) + whole[:-40])
    with pytest.raises(Failed, match=r"^cannot be read: "):
        cpio.paths_in(str(tmp_path / "image"))


def test_a_missing_unpacker_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpio, "UNPACKERS", {b"\x1f\x8b": ("no-such-program", "-dc")})
    (tmp_path / "image").write_bytes(archive(EARLY) + b"\x1f\x8b\x08\x00\x00\x00")
    with pytest.raises(Failed, match="no-such-program"):
        cpio.paths_in(str(tmp_path / "image"))


@pytest.mark.parametrize("size", [b"      05", b"+0000005", b"0_000005", b"0x000005", b"0000005\n"])
def test_a_number_that_the_kernel_reads_differently_is_refused(tmp_path: Path, size: bytes) -> None:
    """Check that no member is hidden by a size that Python reads, and the kernel as another one."""
    whole = bytearray(archive(["init"]))
    whole[cpio.SIZE : cpio.SIZE + 8] = size
    (tmp_path / "image").write_bytes(whole)
    with pytest.raises(Failed, match="a header whose numbers are not hexadecimal"):
        cpio.paths_in(str(tmp_path / "image"))

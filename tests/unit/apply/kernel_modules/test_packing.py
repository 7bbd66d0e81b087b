"""Limits when an archive of a node is unpacked: a few kB never become gigabytes."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import subprocess
import tarfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuprov.apply.kernel_modules import packing
from gpuprov.apply.kernel_modules.build import bare
from gpuprov.apply.kernel_modules.packing import compressed, decompressed, pack, unpack
from gpuprov.apply.node import built
from gpuprov.errors import GpuprovError, NodeFailed

ZEROS = bytes(1 << 20)
BOMB = 64 << 20
"""Unpacked size in bytes of the archives in these tests; the limit there is a sixteenth of it."""


def gz(size: int) -> bytes:
    return gzip.compress(bytes(size))


def xz(size: int) -> bytes:
    return lzma.compress(bytes(size), preset=0)


def zst(size: int) -> bytes:
    return subprocess.run(["zstd", "-qc"], input=bytes(size), capture_output=True, check=True).stdout


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits for unpacked archives below the size of the bombs."""
    monkeypatch.setattr(packing, "LIMIT", BOMB // 16)
    monkeypatch.setattr("gpuprov.apply.kernel_modules.build.LIMIT", BOMB // 16)


@pytest.mark.parametrize(("suffix", "make"), [(".gz", gz), (".xz", xz), (".zst", zst)])
def test_no_more_is_unpacked_than_may_be(suffix: str, make: Callable[[int], bytes]) -> None:
    bomb = make(BOMB)
    tracemalloc.start()
    with pytest.raises(NodeFailed, match=r"unpacks to more than 4 MB"):
        decompressed("nvidia.ko", suffix, bomb, BOMB // 16)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < BOMB // 4
    assert decompressed("nvidia.ko", suffix, make(BOMB), BOMB) == bytes(BOMB)


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_what_was_compressed_is_found_again_and_half_of_it_is_refused(suffix: str) -> None:
    whole = compressed(suffix, b"module" * 999)
    assert whole == compressed(suffix, b"module" * 999)
    assert decompressed("nvidia.ko", suffix, whole, 9999) == b"module" * 999
    for broken in (whole[: len(whole) // 2], b"nothing"):
        with pytest.raises(NodeFailed, match="cannot be unpacked"):
            decompressed("nvidia.ko", suffix, broken, 9999)


@pytest.mark.usefixtures("limited")
def test_an_archive_that_unpacks_to_too_much_is_refused() -> None:
    with pytest.raises(NodeFailed, match="an archive of modules unpacks to more"):
        unpack(pack({"nvidia.ko": bytes(BOMB)}))
    with pytest.raises(NodeFailed, match=r"nvidia-uvm\.ko\.gz unpacks to more"):
        bare(pack({"nvidia-drm.ko.gz": gz(BOMB // 17), "nvidia-uvm.ko.gz": gz(BOMB // 17)}))


@pytest.mark.usefixtures("limited")
def test_a_header_of_tar_takes_no_more_memory_than_modules_may() -> None:
    """Limit the size of an extended header, which tarfile reads completely into memory."""
    member = tarfile.TarInfo("././@PaxHeader")
    member.type, member.size = tarfile.XHDTYPE, BOMB
    with pytest.raises(NodeFailed, match="unpacks to more"):
        unpack(gzip.compress(member.tobuf() + bytes(BOMB)))


def members(*infos: tarfile.TarInfo) -> bytes:
    """Return a compressed tar archive with these members, without content."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for info in infos:
            archive.addfile(info)
    return gzip.compress(whole.getvalue())


def test_only_plain_files_and_only_so_many_are_read() -> None:
    link, folder = tarfile.TarInfo("nvidia.ko"), tarfile.TarInfo("nvidia")
    link.type, link.linkname, folder.type = tarfile.SYMTYPE, "/etc/shadow", tarfile.DIRTYPE
    for info in (link, folder):
        with pytest.raises(NodeFailed, match="expected at most 32 plain files"):
            unpack(members(info))
    with pytest.raises(NodeFailed, match="expected at most 32 plain files"):
        unpack(members(*(tarfile.TarInfo(f"nvidia{number}.ko") for number in range(33))))


def test_a_window_of_more_memory_than_there_is_is_refused() -> None:
    huge = lzma.compress(ZEROS, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}])
    with pytest.raises(NodeFailed, match="cannot be unpacked"):
        decompressed("nvidia.ko", ".xz", huge, 4 << 20)


@pytest.mark.parametrize(
    "kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.SYMTYPE]
)
def test_headers_that_cost_time_are_refused_before_they_are_read(kind: bytes) -> None:
    header = tarfile.TarInfo("nvidia.ko")
    header.type, header.size = kind, 1 << 20
    plain = header.tobuf(tarfile.USTAR_FORMAT) + b"1" * (1 << 20)
    begun = time.monotonic()
    with pytest.raises(NodeFailed, match=r"'nvidia\.ko' in it"):
        unpack(gzip.compress(plain))
    assert time.monotonic() - begun < 2


SIZES = {
    "NUL in front": lambda size: b"\0%010o\0" % size,
    "blank in front": lambda size: b" %010o\0" % size,
    "blanks in place of zeros": lambda size: b"%11o\0" % size,
    "blank behind": lambda size: b"%011o " % size,
    "NUL inside": lambda size: b"%05o\0%05o\0" % (0, size),
    "twelve digits": lambda size: b"%012o" % size,
    "sign": lambda size: b"+%010o\0" % size,
    "underscore": lambda size: b"0_%09o\0" % size,
    "base 256": lambda size: b"\x80" + size.to_bytes(11, "big"),
    "negative": lambda size: b"\xff" * 12,
    "none": lambda size: bytes(12),
}


def headed(size: bytes, name: str = "nvidia.ko") -> bytes:
    """Return the header of a plain file with a size field, and with the sum that fits."""
    header = bytearray(tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT))
    header[124:136], header[148:156] = size, b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


@pytest.mark.parametrize("how", SIZES)
def test_a_size_that_two_programs_read_differently_is_refused(how: str) -> None:
    """Hide a header that costs time in a file whose size tarfile reads as 0, or in another way."""
    pax = tarfile.TarInfo("x")
    pax.type, pax.size = tarfile.XHDTYPE, 40_960
    hidden = pax.tobuf(tarfile.USTAR_FORMAT) + b"4 a\n" * 10_240
    plain = headed(SIZES[how](len(hidden))) + hidden + bytes(1024)
    begun = time.monotonic()
    with pytest.raises(NodeFailed, match=r"'nvidia\.ko' in it; expected at most 32 plain files"):
        unpack(gzip.compress(plain))
    assert time.monotonic() - begun < 0.5


def test_an_archive_is_whole_and_names_each_file_once() -> None:
    plain = headed(b"%011o\0" % 3) + b"one".ljust(512, b"\0")
    assert unpack(gzip.compress(plain + bytes(1024))) == {"nvidia.ko": b"one"}
    for damaged in (b"", plain, plain[:-1], plain + bytes(511), plain[:514]):
        with pytest.raises(NodeFailed, match="ends before its end mark"):
            unpack(gzip.compress(damaged))
    with pytest.raises(NodeFailed, match="plain files of different names"):
        unpack(gzip.compress(plain + plain + bytes(1024)))


def test_archives_of_nodes_are_read_as_tarfile_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Include names of the maximum length, and contents of a block and of one byte more."""
    files = {"n" * 100: b"", "nvidia-uvm.ko": b"u" * 512, "nvidia.ko": b"m" * 513}
    (tmp_path / "module").mkdir()
    for name, content in files.items():
        (tmp_path / "module" / name).write_bytes(content)
    monkeypatch.setattr(built, "PACKED", str(tmp_path / "packed"))
    by_node = Path(built.packed(str(tmp_path / "module"), "x")["path"]).read_bytes()
    for archive in (by_node, pack(files)):
        with tarfile.open(fileobj=io.BytesIO(archive)) as whole:
            names = whole.getnames()
        assert unpack(archive) == files
        assert names == sorted(files)


def test_a_zstd_that_fails_is_one_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "zstd").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "zstd").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(GpuprovError, match="cannot be compressed: zstd ended with 3"):
        compressed(".zst", b"module")

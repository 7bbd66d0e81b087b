"""Files in untrusted archives of zip and tar, within limits."""

from __future__ import annotations

import re
import zipfile
import zlib
from typing import BinaryIO

from gpuprov.untrusted.gates import shown

UNPACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Compression methods that zipfile unpacks piece by piece; of the others it unpacks a whole file at once."""
LIST_BYTES = 1 << 20
"""Maximum size of a zip archive's list of files; one of a thousand files has about 100 kB."""
_BLOCK = 512
"""Size of a tar archive's headers in bytes; contents are filled up to a multiple of it."""
_HEADER = re.compile(
    rb".{124}(?P<size>[0-7]{11})\x00.{20}0.{100}ustar\x0000.{80}\x00{155}.{12}", re.DOTALL
)  # name, mode and owners; size; time and sum; type 0: a plain file; link; magic; owners; no further name
"""Header of a plain file as tarfile writes it: all archives that gpuprov reads are written by it."""
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)
"""Exceptions of zipfile for damaged archives, and of this module's functions."""


class _Reader:
    """Open file from which at most `most` bytes are read at a time; without a limit if it is None."""

    def __init__(self, file: BinaryIO, most: int | None) -> None:
        self._file, self.most = file, most
        self.seek, self.tell, self.seekable, self.close = file.seek, file.tell, file.seekable, file.close

    def read(self, size: int = -1, /) -> bytes:
        """Return bytes from the file; raise ValueError if more than `most` are there and wanted."""
        if self.most is None:
            return self._file.read(size)
        content = self._file.read(self.most + 1 if size < 0 else min(size, self.most + 1))
        if len(content) > self.most:
            raise ValueError(f"a list of files of more than {self.most >> 10} KiB")
        return content


def open_zip(file: BinaryIO) -> zipfile.ZipFile:
    """Return the zip archive in an open file, which is not closed with it.

    zipfile reads the whole list of files first, and needs nine times its size in memory.

    Raises:
        ValueError: the list is larger than `LIST_BYTES`.
        BadZipFile: it is not a zip archive.
    """
    reader = _Reader(file, LIST_BYTES)
    archive = zipfile.ZipFile(reader)
    reader.most = None
    return archive


def member_names(archive: zipfile.ZipFile, limit: int) -> list[str]:
    """Return the names of the files in an archive.

    Args:
        limit: maximum number of files.

    Raises:
        ValueError: there are more files, or two of the same name, and both would be unpacked.
    """
    names = archive.namelist()
    if len(names) > limit:
        raise ValueError(f"{len(names)} files; expected at most {limit}")
    if len(set(names)) < len(names):
        raise ValueError("several files of the same name")
    return names


def read_member(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """Return the content of a file in an archive.

    Args:
        limit: maximum size in bytes after unpacking, also if the archive states a smaller size.

    Raises:
        ValueError: the file is larger, or packed with a method other than those of `UNPACKED`.
        KeyError: there is no such file.
        Exception: one of `DAMAGED`; the archive is damaged or encrypted.
    """
    entry = archive.getinfo(name)
    if entry.compress_type not in UNPACKED:
        raise ValueError(f"{name} is packed with method {entry.compress_type}; expected stored or deflated")
    with archive.open(entry) as member:
        content = member.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"{name} is larger than {limit >> 10} KiB")
    return content


def tar_files(plain: bytes, limit: int) -> dict[str, bytes]:
    """Return name → content of the files of a tar archive that is not compressed.

    tarfile is not used: it needs quadratic time for the records of a pax header and blocks other threads
    meanwhile, recurses once for each header that extends the next, and fails with any error for a sparse
    file.

    Args:
        limit: maximum number of files.

    Raises:
        ValueError: it has a header of another form than `_HEADER`, two files of the same name or too many, or
            it is cut off.
    """
    files: dict[str, bytes] = {}
    at = 0
    while (header := plain[at : at + _BLOCK]) != bytes(_BLOCK):
        if len(header) < _BLOCK:
            raise ValueError("it ends before its end mark")
        name = header[:100].rstrip(b"\0").decode("utf-8", "replace")
        found = _HEADER.fullmatch(header)
        if found is None or name in files or len(files) == limit:
            raise ValueError(f"{shown(name)} in it; expected at most {limit} plain files of different names")
        begin, size = at + _BLOCK, int(found["size"], 8)
        files[name] = plain[begin : begin + size]
        at = begin + -(-size // _BLOCK) * _BLOCK
    return files

"""Files in untrusted archives: those of zip, unpacked within limits, and a check of those of tar."""

from __future__ import annotations

import re
import tarfile
import zipfile
import zlib
from typing import BinaryIO

from gpuprov.untrusted.gates import shown

UNPACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Compression methods that zipfile unpacks piece by piece; of the others it unpacks a whole file at once."""
LIST_BYTES = 1 << 20
"""Maximum size of a zip archive's list of files; one of a thousand files has about 100 kB."""
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


def check_tar(plain: bytes, limit: int) -> None:
    """Check that a tar archive, which is not compressed, has only plain files, before tarfile reads it.

    tarfile needs quadratic time for the records of a pax header and blocks other threads meanwhile, recurses
    once for each header that extends the next, and fails with any error for a sparse file.

    Args:
        limit: maximum number of files.

    Raises:
        ValueError: it has members of another type, or too many.
    """
    at, count = 0, 0
    while (header := plain[at : at + tarfile.BLOCKSIZE]).strip(b"\0"):
        size, kind = header[124:136].strip(b" \0"), header[156:157]
        count += 1
        if kind not in (b"0", b"\0") or not re.fullmatch(rb"[0-7]{1,11}", size) or count > limit:
            name = header[:100].rstrip(b"\0").decode("utf-8", "replace")
            raise ValueError(f"{shown(name)} in it; expected at most {limit} plain files")
        at += tarfile.BLOCKSIZE * (1 + -(-int(size, 8) // tarfile.BLOCKSIZE))

"""Files in untrusted zip archives, unpacked within limits."""

from __future__ import annotations

import zipfile
import zlib

UNPACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Compression methods that zipfile unpacks piece by piece; of the others it unpacks a whole file at once."""
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)
"""Exceptions of zipfile for damaged archives, and of this module's functions."""


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

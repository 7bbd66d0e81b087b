# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The paths in an initramfs image, as the kernel reads it.

`lsinitramfs` and `lsinitrd` list them too, but unpack the whole image several times, which takes seconds, and
the first one writes it to /var/tmp, which a user can fill. Source of the formats: the kernel's
Documentation/driver-api/early-userspace/buffer-format.rst and lib/decompress.c.

Runs on nodes: Python 3.6 to 3.14 and its standard library.
"""

import os
import re
import subprocess

from gpuprov_failures import Failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from io import BufferedReader

MAGIC = 6
ARCHIVES = (b"070701", b"070702")
HEADER = 110
"""Bytes of a member's header: `ARCHIVES`, then 13 numbers of 8 hexadecimal digits."""
NUMBERS = re.compile(rb"[0-9A-Fa-f]{104}\Z")
SIZE, NAME_SIZE = MAGIC + 6 * 8, MAGIC + 11 * 8
"""Where in the header the file's size is, and the size of its name."""
LONGEST_NAME = 4096
LAST = b"TRAILER!!!"
UNPACKERS = {
    b"\x1f\x8b": ("gzip", "-dc"),
    b"BZh": ("bzip2", "-dc"),
    b"\x5d\x00\x00": ("xz", "--format=lzma", "-dc"),
    b"\xfd7zXZ": ("xz", "-dc"),
    b"\x89LZO": ("lzop", "-dc"),
    b"\x02\x21\x4c\x18": ("lz4", "-dc"),
    b"\x28\xb5\x2f\xfd": ("zstd", "-dc"),
}
"""First bytes of a compressed archive → the program that unpacks it."""


def paths_in(image: str) -> "list[str]":
    """Return the paths of all members of an image, without a slash at the start: of its archives at the
    beginning, for example with microcode, and of the compressed one after them.

    Raises:
        Failed: the image cannot be read or unpacked, is incomplete, or has no archive.
    """
    found = []  # type: list[str]
    try:
        with open(image, "rb") as file:
            rest = _members(file, found)
            if rest:
                _unpack(file, rest, found)
    except (OSError, ValueError) as error:
        raise Failed(f"cannot be read: {error}") from error
    if not found:
        raise Failed("has no archive of files")
    return found


def _members(stream: "BufferedReader", found: "list[str]") -> bytes:
    """Add the paths in the archives at the stream's position to `found`; return the first bytes of what
    follows them, which are read, empty at the end.

    Raises:
        ValueError: an archive is incomplete, or damaged.
    """
    name, start = LAST, _after_zeros(stream)
    while start in ARCHIVES:
        header = start + _exactly(stream, HEADER - len(start))
        if not NUMBERS.match(header, MAGIC):  # `int` also takes signs, blanks and underscores
            raise ValueError("a header whose numbers are not hexadecimal")
        size, length = (int(header[place : place + 8], 16) for place in (SIZE, NAME_SIZE))
        if not 0 < length <= LONGEST_NAME:
            raise ValueError(f"a name of {length} bytes")
        name = _exactly(stream, _padded(HEADER + length) - HEADER)[: length - 1]
        _skip(stream, _padded(size))
        if name != LAST:
            found.append(os.fsdecode(name[2:] if name.startswith(b"./") else name.lstrip(b"/")))
        start = _after_zeros(stream)
    if name != LAST:
        raise ValueError("its end is missing")
    return start


def _unpack(file: "BufferedReader", start: bytes, found: "list[str]") -> None:
    """Add the paths in a compressed archive to `found`, whose first bytes were read.

    Raises:
        ValueError: the compression is not known, or it cannot be unpacked.
    """
    command = next((each for magic, each in UNPACKERS.items() if start.startswith(magic)), None)
    if command is None:
        raise ValueError(f"an archive that begins with {start.hex()}")
    os.lseek(file.fileno(), file.tell() - len(start), os.SEEK_SET)
    with subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        _members(process.stdout, found)
        while process.stdout.read(1 << 16):  # until its end: an unpacker fails whose output is not read
            pass
    if process.returncode:
        raise ValueError(f"{' '.join(command)} exited with {process.returncode}")


def _padded(size: int) -> int:
    """Return a size with its padding to a multiple of 4 bytes."""
    return (size + 3) // 4 * 4


def _after_zeros(stream: "BufferedReader") -> bytes:
    """Read null bytes and the 6 bytes after them; return these, fewer at the end."""
    start = stream.read(MAGIC)
    while start.startswith(b"\0"):
        start = start.lstrip(b"\0")
        start += stream.read(MAGIC - len(start))
    return start


def _exactly(stream: "BufferedReader", size: int) -> bytes:
    """Return the next bytes; raise ValueError if the stream ends before."""
    found = stream.read(size)
    if len(found) < size:
        raise ValueError("its end is missing")
    return found


def _skip(stream: "BufferedReader", size: int) -> None:
    """Skip bytes; raise ValueError if a stream that cannot seek ends before."""
    if stream.seekable():
        stream.seek(size, os.SEEK_CUR)
        return
    while size:
        size -= len(_exactly(stream, min(size, 1 << 20)))

"""Compressed indexes, unpacked up to a limit: a few kilobytes can be made to unpack to any size."""

from __future__ import annotations

import bz2
import gzip
import lzma
import shutil
import subprocess
import zlib
from collections.abc import Callable
from io import BytesIO
from tempfile import TemporaryFile
from threading import Timer
from typing import IO

from gpuprov.errors import Refused

LIMIT = 1 << 30
"""Bytes that an index may have unpacked; Debian's largest has some 60 MB, Fedora's some 200."""
ZSTD_S = 120


def unpack(content: bytes, suffix: str, name: str, size: int | None = None) -> bytes:
    """Unpacked content.

    Args:
        suffix: a key of UNPACK.
        name: of the file, for complaints.
        size: what it has unpacked, where its index says so.

    Raises:
        Refused: it is cut off or not of its kind, or larger than it should be.
    """
    limit = LIMIT if size is None else max(0, min(size, LIMIT))
    try:
        unpacked = UNPACK[suffix](content, limit + 1)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise Refused(
            f"{name} cannot be unpacked: {error}",
            expected=f"a whole {suffix.lstrip('.')} file",
            do="the mirror is broken: sync it again",
        ) from error
    if len(unpacked) > limit or size not in (None, len(unpacked)):
        raise Refused(
            f"{name} unpacks to " + (f"more than {limit}" if len(unpacked) > limit else str(len(unpacked))),
            expected=f"{limit} bytes" + (" at most" if size is None else ", as its index says"),
            do="the mirror is broken, or was tampered with: do not install from it",
        )
    return unpacked


def _xz(content: bytes, limit: int) -> bytes:
    with lzma.open(BytesIO(content)) as file:
        return file.read(limit)


def _gzip(content: bytes, limit: int) -> bytes:
    with gzip.open(BytesIO(content)) as file:
        return file.read(limit)


def _bzip2(content: bytes, limit: int) -> bytes:
    with bz2.open(BytesIO(content)) as file:
        return file.read(limit)


def _zstd(content: bytes, limit: int) -> bytes:
    if not shutil.which("zstd"):
        raise OSError("zstd is not installed here")
    pipe = subprocess.PIPE
    with TemporaryFile() as packed:
        packed.write(content)
        packed.seek(0)
        with subprocess.Popen(["zstd", "-dcq"], stdin=packed, stdout=pipe, stderr=pipe) as process:
            timer = Timer(ZSTD_S, process.kill)
            timer.start()
            unpacked = _upto(process.stdout, limit)
            if len(unpacked) == limit:
                process.kill()
            said = _upto(process.stderr, 65536).decode(errors="replace").strip()
            code = process.wait()
            timer.cancel()
    if code and len(unpacked) < limit:
        raise OSError(said or f"zstd ended with {code}")
    return unpacked


def _upto(pipe: IO[bytes] | None, limit: int) -> bytes:
    return pipe.read(limit) if pipe else b""


def _plain(content: bytes, limit: int) -> bytes:
    return content[:limit]


UNPACK: dict[str, Callable[[bytes, int], bytes]] = {
    ".xz": _xz,
    ".gz": _gzip,
    ".zst": _zstd,
    ".bz2": _bzip2,
    "": _plain,
}
"""How to unpack a file by its suffix, up to a limit; the order is the order of choice."""

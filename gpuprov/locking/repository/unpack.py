"""Decompression of indexes up to a limit: a few kilobytes can be crafted to decompress to any size."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
import zlib
from collections.abc import Callable
from io import BytesIO

from gpuprov.errors import Refused

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LIMIT = 256 << 20
"""Maximum uncompressed size of an index in bytes; Debian's largest has some 60 MB, Fedora's some 200."""


def unpack(content: bytes, suffix: str, name: str, size: int | None = None) -> bytes:
    """Decompress content, to at most `LIMIT` bytes.

    Args:
        suffix: a key of UNPACK.
        name: of the file, for error messages.
        size: its uncompressed size, if its index states it.

    Raises:
        Refused: it is truncated or of another format, or its size is wrong or exceeds the limit.
    """
    limit = LIMIT if size is None else max(0, min(size, LIMIT))
    try:
        unpacked = UNPACK[suffix](content, limit + 1)
    except (OSError, EOFError, lzma.LZMAError, zlib.error, zstd.ZstdError) as error:
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
    """Return at most `limit` decompressed bytes."""
    with lzma.open(BytesIO(content)) as file:
        return file.read(limit)


def _gzip(content: bytes, limit: int) -> bytes:
    """Return at most `limit` decompressed bytes."""
    with gzip.open(BytesIO(content)) as file:
        return file.read(limit)


def _bzip2(content: bytes, limit: int) -> bytes:
    """Return at most `limit` decompressed bytes."""
    with bz2.open(BytesIO(content)) as file:
        return file.read(limit)


def _zstd(content: bytes, limit: int) -> bytes:
    """Return at most `limit` decompressed bytes."""
    with zstd.open(BytesIO(content)) as file:
        return file.read(limit)


def _plain(content: bytes, limit: int) -> bytes:
    """Return the first `limit` bytes."""
    return content[:limit]


UNPACK: dict[str, Callable[[bytes, int], bytes]] = {
    ".xz": _xz,
    ".gz": _gzip,
    ".zst": _zstd,
    ".bz2": _bzip2,
    "": _plain,
}
"""Decompressor for each suffix, with a limit, in order of preference."""

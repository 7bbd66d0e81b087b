"""Reading of files that a user states: saved results, recordings, exports of other programs.

Another person may have written them. None of their contents ends a command with a traceback.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from json import JSONDecodeError
from pathlib import Path
from typing import Any, BinaryIO

from gpuprov.errors import GpuprovError, InvalidInput
from gpuprov.untrusted.gates import on_one_line
from gpuprov.untrusted.parsing import read_json

STATED_BYTES = 128 << 20
"""Maximum size of a stated file: results of `accept` for a thousand nodes have about 50 MB."""
STATED_VALUES = 1 << 22
"""Maximum number of values in stated JSON: three times as many as the results of a thousand nodes."""
PIECE = 1 << 16
LEAST = 4 << 10
"""Number of bytes that a file counts at least in `require_small`: each takes time."""
STREAMS = ("/dev/", "/proc/")
"""Folders of files that are streams."""
KERNELS = ("/proc", "/sys")
"""Mount points of file systems whose files are answers of the kernel; others, as configfs, are below them."""
KINDS = {stat.S_IFIFO: "named pipe", stat.S_IFSOCK: "socket"}
"""Types of files that are neither regular files nor devices → their names in messages."""
_CAUSE = 200
"""Maximum length of a cause in a message, in characters."""


@contextmanager
def stated_file(name: object, *, expected: str, do: str = "") -> Iterator[None]:
    """Convert every error of the block except GpuprovError to InvalidInput with the file's name.

    Args:
        name: the file as the user stated it.
        expected: what it should contain.
        do: the next command or change.

    Raises:
        InvalidInput: the file cannot be read, or its content has another form.
    """
    try:
        yield
    except GpuprovError:
        raise
    except OSError as error:
        raise InvalidInput(f"{name} cannot be read: {error.strerror}", expected=expected, do=do) from None
    except Exception as error:  # noqa: BLE001 - a parser of another's text can fail in any way
        raise InvalidInput(f"{name}: {_cause(error)}", expected=expected, do=do) from None


def stated_path(path: str | Path) -> Path:
    """Return a path with `~` and `~USER` expanded.

    That of a user who does not exist stays as it is: there is no such file then. `Path.expanduser` would end
    the command with a RuntimeError.
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111


def open_stated(path: Path) -> BinaryIO:
    """Return a file opened for reading: a regular file, /dev/null, or a stream that an argument of this
    command names, as a shell does for `<(COMMAND)`.

    A link in a folder of another person, or a name in their file, can lead to any file: opening a device can
    have effects, such as a reset by a watchdog, a named pipe or a terminal is waited for without an end, and
    files of /sys and /proc read devices and memory.

    Raises:
        OSError: it cannot be read, or is another file.
    """
    name = str(path)
    typed = name.startswith(STREAMS) and any(each.endswith(name) for each in sys.argv[1:])
    return open(path, "rb", opener=None if typed else _without_devices)


def _without_devices(path: str, flags: int) -> int:
    """Open a regular file or /dev/null; an opener for `open`. OSError as `open_stated`."""
    # Linux: O_PATH does not open what it finds. Elsewhere a device is opened before it is refused.
    handle = os.open(path, getattr(os, "O_PATH", flags) | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        found = os.fstat(handle)
        kind = stat.S_IFMT(found.st_mode)
        if kind == stat.S_IFDIR:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        is_null = kind == stat.S_IFCHR and found.st_rdev == Path(os.devnull).stat().st_rdev
        if kind != stat.S_IFREG and not is_null:
            raise OSError(errno.EINVAL, f"is a {KINDS.get(kind, 'device')}, not a regular file", path)
        if _is_kernels(handle, found.st_dev):
            raise OSError(errno.EINVAL, "is a file of the kernel, not one that somebody wrote", path)
        return os.open(f"/dev/fd/{handle}" if found.st_size else os.devnull, flags)
    finally:
        os.close(handle)


def _is_kernels(handle: int, system: int) -> bool:
    """Return whether an open file is below `KERNELS`, or of their file systems, by any name."""
    name = os.path.realpath(f"/dev/fd/{handle}")
    return any(
        name.startswith(f"{folder}/") or system == Path(folder).stat().st_dev
        for folder in filter(os.path.ismount, KERNELS)
    )


def require_small(files: Iterable[Path], most: int, what: str) -> None:
    """Check the size of all files that a command finds in folders of another person.

    A repository with many copies of a file, or links to one, is small; what is read of them is not.

    Args:
        files: each counts as often as it is named, with at least `LEAST` bytes; one that is missing does not.
        most: maximum size of all, in bytes.
        what: their name in the message.

    Raises:
        InvalidInput: they are larger.
    """
    size = sum(max(path.stat().st_size, LEAST) for path in files if path.exists())
    if size > most:
        raise InvalidInput(f"{what} have {size} bytes", expected=f"at most {most}, and {most // LEAST} files")


def read_bounded(path: Path, limit: int = STATED_BYTES) -> bytes:
    """Return the content of a file of at most `limit` bytes.

    Raises:
        OSError: it cannot be read, or is larger.
    """
    with open_stated(path) as file:
        return _bounded(file, limit, str(path))


def _bounded(file: BinaryIO, limit: int, name: str) -> bytes:
    """Return the rest of an open file of at most `limit` bytes; raise OSError if it is larger."""
    content = bytearray()
    while piece := file.read(PIECE):  # `read(limit)` would take that memory at once
        content += piece
        if len(content) > limit:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes", name)
    return bytes(content)


def read_argument(name: str) -> bytes:
    """Return the content of a file that an argument names, or of standard input for `-`.

    Raises:
        OSError: it cannot be read, or has more than `STATED_BYTES`.
    """
    return _bounded(sys.stdin.buffer, STATED_BYTES, name) if name == "-" else read_bounded(Path(name))


def read_stated_json(path: Path, *, expected: str, do: str = "") -> Any:
    """Return the JSON document in a stated file; the arguments are those of `stated_file`.

    Raises:
        InvalidInput: the file cannot be read, exceeds `STATED_BYTES`, or is not JSON.
    """
    with stated_file(path, expected=expected, do=do):
        return stated_json(read_bounded(path, STATED_BYTES))


def stated_json(data: bytes | str) -> Any:
    """Return the JSON document in the text of a stated file; raise ValueError as `read_json` does."""
    try:
        return read_json(data, STATED_BYTES, STATED_VALUES)
    except JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None


def _cause(error: Exception) -> str:
    """Return the text of an error on one line, at most `_CAUSE` characters, with its type unless it is a
    ValueError.
    """
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return on_one_line(text[:_CAUSE])

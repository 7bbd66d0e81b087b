# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Locks of package managers: who holds them, and what other users can do with them.

The kernel is asked about each lock (F_GETLK of fcntl(2)), which itself needs no lock. /proc/locks names
files by their inodes, whose numbers a user can choose on another file system.

A package manager takes write locks, for which a file must be open for writing: only root holds them. Users
can hold read locks on files that they can open, and rpm's are readable by everybody.

Runs on nodes: Python 3.6 to 3.14 and its standard library, Linux with 64 bits.
"""

import fcntl
import os
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    Conflict = tuple[int, int]

RPM = "/var/lib/rpm/.rpm.lock"
"""Lock of rpm's transactions."""
MANAGERS = ("/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock", "/var/lib/apt/lists/lock", RPM)
"""Locks that a package manager holds while it changes packages or lists."""
DATABASES = ("/var/lib/rpm/rpmdb.sqlite-shm", "/var/lib/dnf/history.sqlite-shm")
"""Locks of SQLite for the databases of rpm and of dnf's history, which are in WAL mode."""
WRITERS = (120, 3)
"""First byte and number of the bytes there that SQLite locks for a writer, a checkpoint and the recovery.

The first connection does a recovery. Readers do not keep locks of these bytes
(https://www.sqlite.org/walformat.html, section 2.3).
"""
BLOCKS = "is no package manager and keeps a lock of the database of rpm or dnf"
"""Text of messages about the process that `blocker` returns."""
DNF = (
    "/var/cache/dnf/metadata_lock.pid",
    "/var/cache/dnf/download_lock.pid",
    "/var/lib/dnf/rpmdb_lock.pid",
    "/var/log/log_lock.pid",
)
"""Files that dnf 4 creates and locks with flock(2) for a moment or for a transaction, with its process."""
RUN_DNF = ("sh", "-c", 'umask 077; exec dnf "$@"', "dnf")
"""Begin of a command of dnf. With an ordinary umask each user can open `DNF` and keep a lock on them, and
dnf waits for it without a message and without a limit (dnf/lock.py).
"""
_FLOCK = "hhqqi0q"  # struct flock: type, whence, start, length, pid


def conflict(path: str, start: int = 0, length: int = 0) -> "Conflict | None":
    """Return a lock of another process that prevents a write lock; None without one, or without the file.

    The file is not locked. Without the right to open it, the result is None, too.

    Args:
        start, length: the bytes of the file; a length of 0 is all bytes from `start` on.

    Returns:
        F_RDLCK or F_WRLCK, and the process: -1 for a lock of an open file, 0 if it is not visible here.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return conflict_of(handle, start, length)
    finally:
        os.close(handle)


def conflict_of(handle: int, start: int = 0, length: int = 0) -> "Conflict | None":
    """Return a lock of another process that prevents a write lock of an open file, as `conflict` does; None
    without one.
    """
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(handle, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else (kind, pid)


def running() -> "int | None":
    """Return the process that holds a write lock of one of `MANAGERS`, a package manager, with the numbers of
    `conflict`; None if none does.
    """
    for path in MANAGERS:
        found = conflict(path)
        if found and found[0] == fcntl.F_WRLCK:
            return found[1]
    return None


def blocker() -> "int | None":
    """Return the process of a user that prevents changes of one of `DATABASES`, see `conflict`, or None.

    It holds a read lock on bytes on which SQLite itself has write locks only.
    """
    for path in DATABASES:
        found = conflict(path, *WRITERS)
        if found and found[0] == fcntl.F_RDLCK:
            return found[1]
    return None


def name_of(pid: int) -> str:
    """Return name and number of a process, `dnf (4711)`; a general text if it is not visible or has ended."""
    if pid <= 0:
        return "a process that is not visible here"
    try:
        with open(f"/proc/{pid}/comm", errors="replace") as file:
            return f"{file.read().strip()} ({pid})"
    except OSError:
        return "a process that has ended meanwhile"


def remove_kept_locks() -> None:
    """Remove the files of `DNF` that others can open and that no dnf has; see `RUN_DNF`.

    A dnf that was killed leaves its file, and a user's lock on a file stays without a dnf.
    """
    for path in DNF:
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if os.fstat(handle).st_mode & 0o077 and not _is_of_a_process(handle):
                os.unlink(path)
        finally:
            os.close(handle)


def _is_of_a_process(handle: int) -> bool:
    """Return whether a lock file names a process of root that runs; dnf writes it right after the lock, so
    that an empty one is read again after 0.5 s.
    """
    for _ in range(2):
        stated = os.pread(handle, 20, 0).strip()
        if stated:
            break
        time.sleep(0.5)
    try:
        return stated.isdigit() and os.stat("/proc/" + stated.decode()).st_uid == 0
    except OSError:
        return False

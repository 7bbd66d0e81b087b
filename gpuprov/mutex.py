"""Locks that only their owner can hold: one process at a time, and waiting has an end.

Runs on nodes as well as here: Python 3.6, standard library. flock(2) needs no more than a file that can be
opened for reading: whoever can open a lock can hold it. Therefore each is in a folder of its owner alone.
"""

import contextlib
import errno
import fcntl
import grp
import os
import pwd
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SHORT_S, LONG_S = 0.01, 0.5
"""The first pause and the longest one between two tries."""


class NotOurs(OSError):
    """A folder or file is another user's, or others may write it; `strerror` says what to do."""


class Locked(OSError):
    """Another process kept a lock for longer than one waits; `strerror` says which, and what to do."""


@contextlib.contextmanager
def held(path: str, seconds: float) -> "Iterator[None]":
    """Hold the lock at `path`, whose folder is private: of all that ask for it, one at a time.

    Args:
        path: made where it is missing, with its folder.
        seconds: the longest wait.

    Raises:
        Locked: another process had it all the time.
        OSError: the folder or the file is another user's, or cannot be made.
    """
    own_folder(os.path.dirname(path), 0o700)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        _require_own(os.fstat(handle), path)
        os.fchmod(handle, 0o600)
        wait_for(handle, path, seconds)
        yield
    finally:
        os.close(handle)


def wait_for(handle: int, path: str, seconds: float, kind: int = fcntl.LOCK_EX) -> None:
    """Lock an open file or folder; `path` stands for it in messages.

    Raises:
        Locked: another process had it for so many seconds.
    """
    end, pause = time.monotonic() + seconds, SHORT_S
    while True:
        try:
            return fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise Locked(errno.EWOULDBLOCK, _said(handle, seconds), path) from None
        time.sleep(max(0.0, min(pause, end - time.monotonic())))
        pause = min(2 * pause, LONG_S)


def own_folder(path: str, mode: int) -> None:
    """Make a folder of this mode, whatever the umask; one that exists and gives more loses what is too much.

    Folders above it that are missing are made as well, writable by their owner alone.

    Raises:
        NotOurs: it is another user's, or others could write it: what is in it may be theirs.
        OSError: it is a link, or cannot be made.
    """
    above = os.path.dirname(path)
    if not os.path.isdir(above):
        own_folder(above, 0o755)
    wanted = 0
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
        wanted = mode
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
        _require_own(found, path)
        _require_closed(found, path)
        if wanted or found.st_mode & 0o777 & ~mode:
            os.fchmod(handle, wanted or found.st_mode & mode)
    finally:
        os.close(handle)


def _require_own(found: os.stat_result, path: str) -> None:
    me = os.geteuid()
    if found.st_uid != me:
        said = f"it belongs to user {found.st_uid}, expected {me}"
        raise NotOurs(errno.EPERM, f"{said}; look at what is in it, then `chown {me} {path}`", path)


def _require_closed(found: os.stat_result, path: str) -> None:
    """Whoever may write a folder may replace what is in it. A group of the owner alone is the owner."""
    if found.st_mode & 0o002 or (found.st_mode & 0o020 and not _is_private(found.st_gid)):
        said = f"other users may write it, its mode is {stat.S_IMODE(found.st_mode):o}"
        raise NotOurs(errno.EPERM, f"{said}; look at what is in it, then `chmod go-w {path}`", path)


def _is_private(group: int) -> bool:
    """Whether a group has its user alone, as distributions with a umask of 002 give each one."""
    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and found.gr_name == user.pw_name and not set(found.gr_mem) - {user.pw_name}


def _said(handle: int, seconds: float) -> str:
    pid = _holder(os.fstat(handle).st_ino)
    if pid is None:
        who, look = "a process that is not known", "`cat /proc/locks` lists the locks"
    else:
        who = f"{_name(pid)} (pid {pid})"
        look = f"`ps -fp {pid}` shows it: wait, or end it if it hangs"
    return f"locked by {who} for more than {seconds:.0f} s; {look}, then the same command again"


def _holder(inode: int) -> "int | None":
    """Return the process that has a file locked. In /proc/locks 0 is one that is not seen from here."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/locks") as file:
        for line in file:
            words = line.split()
            if words[1] == "FLOCK" and words[5].endswith(f":{inode}") and int(words[4]) > 0:
                return int(words[4])
    return None


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return "what a process left that has ended"

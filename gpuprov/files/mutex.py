"""Locks that only their owner can hold: one process at a time, with a limit of the waiting time.

Runs on nodes and on the controller: Python 3.6, standard library. flock(2) only requires a file that can be
opened for reading: any user who can open a lock can hold it. Therefore each is in a folder that only its
owner can open.
"""

import contextlib
import errno
import fcntl
import grp
import os
import pwd
import shlex
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SHORT_S, LONG_S = 0.01, 0.5
"""First and longest pause in seconds between two attempts; it doubles each time."""


class NotOurs(OSError):
    """Error: a folder or file is another user's, or others may write it; `strerror` contains the remedy."""


class Locked(OSError):
    """Error: another process held a lock longer than the limit; `strerror` names it and the remedy."""


@contextlib.contextmanager
def held(path: str, seconds: float) -> "Iterator[None]":
    """Hold the lock at `path`, in a private folder, during the context; only one process holds it at a time.

    The file is kept afterwards. A second `held` of the same path waits, also in the same process.

    Args:
        path: path of the lock, which is created with its folder if missing.
        seconds: the longest wait; 0 tries once.

    Raises:
        Locked: another process held it all the time.
        NotOurs: the folder or the file is another user's, or others may write the folder.
        OSError: the folder or the file cannot be created or opened.
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
    """Lock an open file or folder; closing the handle releases the lock.

    Args:
        path: its name in messages.
        seconds: the longest wait; 0 tries once.
        kind: `LOCK_EX` for this holder only, or `LOCK_SH` to share it.

    Raises:
        Locked: another process held it for `seconds`.
    """
    end, pause = time.monotonic() + seconds, SHORT_S
    while True:
        try:
            return fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise Locked(errno.EWOULDBLOCK, _held_message(handle, seconds), path) from None
        time.sleep(max(0.0, min(pause, end - time.monotonic())))
        pause = min(2 * pause, LONG_S)


def own_folder(path: str, mode: int) -> None:
    """Create a folder with a mode, independent of the umask; remove other permissions of an existing folder.

    An existing folder gets no further permissions. Missing folders above it are created as well, writable
    only by their owner.

    Raises:
        NotOurs: it is another user's, or others could write it: its content may be theirs.
        OSError: it is a symbolic link, or cannot be created.
    """
    above = os.path.dirname(path) or "."
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
    """Check that a file or folder belongs to this process's user; `path` names it in the message.

    Raises:
        NotOurs: it belongs to another user.
    """
    me = os.geteuid()
    if found.st_uid != me:
        said = f"it belongs to user {found.st_uid}, expected {me}"
        do = f"look at what is in it, then `chown {int(me)} {shlex.quote(path)}`"
        raise NotOurs(errno.EPERM, f"{said}; {do}", path)


def _require_closed(found: os.stat_result, path: str) -> None:
    """Check that no other user may write a folder, and thereby replace its content.

    The owner's private group may write it.

    Raises:
        NotOurs: other users may write it.
    """
    if found.st_mode & 0o002 or (found.st_mode & 0o020 and not _is_private(found.st_gid)):
        said = f"other users may write it, its mode is {stat.S_IMODE(found.st_mode):o}"
        do = f"look at what is in it, then `chmod go-w {shlex.quote(path)}`"
        raise NotOurs(errno.EPERM, f"{said}; {do}", path)


def _is_private(group: int) -> bool:
    """Return whether the user is a group's only member, as on distributions with a umask of 002.

    The group must also be the user's primary group and have the user's name. False for an unknown user or
    group.
    """
    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and found.gr_name == user.pw_name and not set(found.gr_mem) - {user.pw_name}


def _held_message(handle: int, seconds: float) -> str:
    """Return the message of `Locked`: who holds the lock of an open file, for how long, and the remedy."""
    pid = _holder(os.fstat(handle))
    if pid is None:
        who, look = "a process that is not known", "`cat /proc/locks` lists the locks"
    else:
        who = f"{_name(pid)} (pid {pid})"
        look = f"`ps -fp {pid}` shows it: wait, or end it if it hangs"
    return f"locked by {who} for more than {seconds:.0f} s; {look}, then the same command again"


def _holder(about: os.stat_result) -> "int | None":
    """Return the id of the process that has locked a file; None if it is not known.

    /proc/locks has 0 for a process that is not visible here. Some file systems, such as btrfs, have another
    device there: a lock of them has no known holder, as a number of an inode alone may be another file's.
    """
    device = about.st_dev
    name = f"{os.major(device):02x}:{os.minor(device):02x}:{about.st_ino}"
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/locks") as file:
        for line in file:
            words = line.split()
            if words[1] == "FLOCK" and words[5] == name and int(words[4]) > 0:
                return int(words[4])
    return None


def _name(pid: int) -> str:
    """Return the name of a process; a general text if it cannot be read, as after its end."""
    try:
        with open(f"/proc/{pid}/comm", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "what a process left that has ended"

# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Resolution of a path without trust in other users' links, and reading of the file there.

Folders are opened one by one, so that none can be replaced by a link in between. A link is followed only if
its owner could do the same without this process: it belongs to root or to this process's user, or it leads
to a folder of its owner.

Runs on nodes and on the controller: Python 3.6 to 3.14 and its standard library, Linux and macOS.
"""

import contextlib
import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

LINKS_MAX = 40
"""Largest number of links in one path, as in the kernel."""
LARGEST = 16 << 20
"""Largest size in bytes of a file that is read: known_hosts with three keys of 20,000 hosts has about 15 MB.
Some files belong to other users, and a sparse file can have any size."""
KEPT_ATTRIBUTES = ("user.", "security.selinux", "security.SMACK64", "system.posix_acl_access")
"""Prefixes of extended attributes that are properties of the file. Others, such as security.ima, describe its
content."""
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags to open a file for reading: no link is followed, and a pipe does not block."""
NOT_REGULAR = "is not a regular file"
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(OSError):
    """Error: an edit or a path could damage another user's files."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(errno.EPERM, reason, path)


class Changed(Refused):
    """Error: another program changed a file between our reading and our writing."""


class Old:
    """A file as it was read.

    Args:
        content: its content; empty if it was not read or there was no file.
        about: its stat result; None if there was no file.
        attributes: its extended attributes that a replacement must have.
    """

    def __init__(
        self, content: bytes, about: "os.stat_result | None", attributes: "dict[str, bytes] | None" = None
    ) -> None:
        self.content = content
        self.about = about
        self.attributes = attributes or {}


class Place:
    """An open folder (`folder`, a descriptor) and a name in it: the place to which a path leads.

    The name may not exist. The context manager closes the folder.

    Args:
        follow: whether a link at the last component is followed, too.

    Raises:
        Refused: a link must not be followed.
        OSError: a folder is missing or is not a folder, or the path has too many links.
    """

    def __init__(self, path: str, follow: bool = False) -> None:
        self.path = os.fspath(path)
        walk = _Walk(self.path, follow)
        self.folder, self.name = walk.here, walk.name

    def __enter__(self) -> "Place":
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self.folder)

    def about(self) -> "os.stat_result | None":
        """Return the name's stat result, without following a link; None if there is no such name."""
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def read(self, content: bool = True) -> Old:
        """Read a regular file with its attributes; a link counts as no file.

        Args:
            content: whether the content is read; if not, a file without permission to read it is no error.

        Raises:
            Refused: it is not a regular file.
            Changed: another program changed it meanwhile.
            OSError: it cannot be read, is a folder, or has more than `LARGEST` bytes.
        """
        about = self.about()
        if about is None or stat.S_ISLNK(about.st_mode):
            return Old(b"", None)
        self._require_regular(about)  # before it is opened: opening a device may have an effect
        try:
            handle = os.open(self.name, READ, dir_fd=self.folder)
        except PermissionError:
            if content:
                raise
            return Old(b"", about)
        try:
            about = os.fstat(handle)
            self._require_regular(about)  # another program may have replaced it
            text = self._content(handle, about.st_size) if content else b""
            return Old(text, about, attributes_of(handle))
        finally:
            os.close(handle)

    def require_trusted(self, about: os.stat_result) -> None:
        """Check that a file in a folder of all users, such as /tmp, is not another user's, who would own what
        is written there; as fs.protected_regular, the folder's owner may.

        Raises:
            Refused: it is.
        """
        folder = os.fstat(self.folder)
        if is_shared(folder) and about.st_uid not in (os.geteuid(), folder.st_uid):
            raise Refused(self.path, "belongs to another user, in a folder of all users")

    def _require_regular(self, about: os.stat_result) -> None:
        """Check that a stat result is a regular file's.

        Raises:
            Refused: it is not; a folder is an IsADirectoryError.
        """
        if stat.S_ISDIR(about.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self.path)
        if not stat.S_ISREG(about.st_mode):
            raise Refused(self.path, NOT_REGULAR)

    def _content(self, handle: int, size: int) -> bytes:
        """Return the content of an open file with this size.

        Raises:
            Refused: it has no content yet, as a pipe.
            Changed: another program changed it meanwhile.
            OSError: it has more than `LARGEST` bytes.
        """
        if size > LARGEST:
            raise OSError(errno.EFBIG, f"has {size} bytes; expected at most {LARGEST}", self.path)
        with open(handle, "rb", closefd=False) as stream:
            text = stream.read(size + 1)
        if text is None:  # it would block, as /proc/kmsg, which is a regular file by its type
            raise Refused(self.path, NOT_REGULAR)
        if len(text) != size:
            raise Changed(self.path, "was changed by another program while it was read")
        return text

    def sync(self) -> None:
        """Write the folder's entries to the disk, if it is readable and its file system supports that."""
        try:
            with readable(self.folder) as handle:
                os.fsync(handle)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EINVAL):
                raise


@contextlib.contextmanager
def readable(folder: int) -> "Iterator[int]":
    """Open an open folder (O_PATH) again for reading, to list or synchronise it; yield the descriptor."""
    handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield handle
    finally:
        os.close(handle)


class _Walk:
    """A walk along a path: the folder that is open now, and at the end the name in it."""

    def __init__(self, path: str, follow: bool) -> None:
        """Open the folder at the end of the path; raises as `_go`."""
        self.path = path
        self.names = _names(path)
        self.name = ""
        self.here = os.open("/" if path.startswith("/") else ".", _FOLDER)
        self.links = 0
        self.link_owners = set()  # type: set[int]
        try:
            self._go(follow)
        except BaseException:
            os.close(self.here)
            raise

    def _go(self, follow: bool) -> None:
        """Walk to the end of the path.

        Raises:
            Refused: a link of another user leads to a folder that is not theirs.
            OSError: as `_step`, or the path ends with `.` or `..`.
        """
        while self.names:
            self._step(follow)
        if self.name in (".", ".."):
            raise self._error(errno.EISDIR)
        if self.link_owners - {os.fstat(self.here).st_uid}:
            raise Refused(self.path, "leads through a link of another user to a folder that is not theirs")

    def _step(self, follow: bool) -> None:
        """Open the next component: enter a folder, or follow a link.

        The last component may be missing or a file.

        Raises:
            OSError: another component is missing or is not a folder, or a link must not be followed; Refused
                for a link of an untrusted user.
        """
        self.name = self.names.pop(0)
        last = not self.names
        try:
            handle, about, target = _entry(self.here, self.name)
        except FileNotFoundError:
            if last:
                return
            raise self._error(errno.ENOENT) from None
        if target is not None:
            if not last or follow:
                self._follow(target, about.st_uid)
        elif last and self.name not in (".", ".."):
            os.close(handle)
        elif stat.S_ISDIR(about.st_mode):
            self._enter(handle)
        else:
            os.close(handle)
            raise self._error(errno.ENOTDIR)

    def _enter(self, folder: int) -> None:
        """Make an open folder the current one; close the one before."""
        os.close(self.here)
        self.here = folder

    def _follow(self, target: str, uid: int) -> None:
        """Put the components of a link's target before the rest of the path.

        Note its owner if another user's.

        Raises:
            Refused: the link is another user's in a folder of all users, such as /tmp.
            OSError: the path has more than `LINKS_MAX` links.
        """
        self.links += 1
        if self.links > LINKS_MAX:
            raise self._error(errno.ELOOP)
        if uid not in (0, os.geteuid()):
            about = os.fstat(self.here)
            if is_shared(about) and uid != about.st_uid:  # as fs.protected_symlinks
                raise Refused(self.path, "leads through a link of another user in a folder of all users")
            self.link_owners.add(uid)
        self.names = _names(target) + self.names
        if target.startswith("/"):
            self._enter(os.open("/", _FOLDER))

    def _error(self, number: int) -> OSError:
        """Return the operating system's error of that number for the path."""
        return OSError(number, os.strerror(number), self.path)


def is_shared(folder: os.stat_result) -> bool:
    """Return whether all users may create files in a folder, and each removes only their own, as in /tmp."""
    return folder.st_mode & 0o1002 == 0o1002


def _names(path: str) -> "list[str]":
    """Return the components of a path; for a path that ends with a slash the last one is `.`."""
    return [name for name in path.split("/") if name] + (["."] if path[-1:] in ("", "/") else [])


def _entry(folder: int, name: str) -> "tuple[int, os.stat_result, str | None]":
    """Return an entry of an open folder: its handle, its stat result, and a link's target (None for others).

    A link is closed, and its handle is -1. macOS has no O_PATH: there only folders are opened, and the handle
    of other files is one of /dev/null.
    """
    if hasattr(os, "O_PATH"):
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        about = os.fstat(handle)
        if not stat.S_ISLNK(about.st_mode):
            return handle, about, None
        try:
            return -1, about, os.readlink("", dir_fd=handle)
        finally:
            os.close(handle)
    about = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(about.st_mode):
        return -1, about, os.readlink(name, dir_fd=folder)
    if stat.S_ISDIR(about.st_mode):
        return os.open(name, _FOLDER, dir_fd=folder), about, None
    return os.open(os.devnull, os.O_RDONLY), about, None


def state_of(about: "os.stat_result | None") -> "tuple[int, ...] | None":
    """Return the values of a stat result that differ after a file was changed or replaced.

    None without a file.
    """
    if about is None:
        return None
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def attributes_of(handle: int) -> "dict[str, bytes]":
    """Return the extended attributes of an open file that its replacement must have, see `KEPT_ATTRIBUTES`.

    Empty if the file system or platform has none.
    """
    if not hasattr(os, "listxattr"):
        return {}
    try:
        names = [name for name in os.listxattr(handle) if name.startswith(KEPT_ATTRIBUTES)]
        return {name: os.getxattr(handle, name) for name in names}
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENOSYS):
            return {}
        raise

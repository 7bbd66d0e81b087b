# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Replacement of files that neither a fault nor another user can damage.

The new content is written to a file with an unpredictable name in the same folder, synchronised to the disk,
and renamed over the old one. After any failure the old file is unchanged. A killed process may leave a file
named `.gpuprov-new-` with 16 letters or digits; the next writer in that folder removes it.

Links in a path are followed under the rules of `gpuprov_place`. The last component is followed only with
`follow`; otherwise a link there is replaced by the file.

Runs on nodes and on the controller: Python 3.6 to 3.14 and its standard library, Linux and macOS.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import re
import stat
from binascii import hexlify

from gpuprov_place import READ, Changed, Old, Place, attributes_of, readable, state_of
from gpuprov_selinux import label_new

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Content = bytes | Iterable[bytes]
    Owner = tuple[int, int]

TEMPORARY = re.compile(r"\.gpuprov-new-[0-9A-Za-z]{16}\Z")
"""Names of temporary files."""
ENTRIES_AT_MOST = 65536
"""Number of entries of a folder among which temporary files of killed writers are found."""
NEW_MODE = 0o644
"""Default mode of a new file; the user's umask may restrict it."""
ACL = "system.posix_acl_access"
"""Attribute of access control lists, which is not kept if a mode is stated."""
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_cleaned = set()  # type: set[tuple[int, int]]
"""Device and inode of the folders that this process has cleaned."""


def replace(
    path: str,
    content: "Content",
    mode: "int | None" = None,
    owner: "Owner | None" = None,
    follow: bool = False,
) -> None:
    """Replace a file, or create it, in one step.

    The folder must exist. Extended attributes of the old file (`KEPT_ATTRIBUTES`) are kept; a new file gets
    the label that SELinux's policy has for its path.

    Args:
        content: the bytes of the file, or pieces of them.
        mode: permissions, independent of the umask; None keeps those of the old file, and gives a new one
            `NEW_MODE`, or less by the umask.
        owner: user and group id; None keeps those of the old file as far as permitted.
        follow: whether the target of a link at the path is replaced; otherwise the link itself is.

    Raises:
        Changed: another program changed the file meanwhile.
        OSError: the replacement failed; the old file is unchanged.
    """
    with Place(path, follow) as place, TemporaryReplacement(place, content, mode, owner) as half:
        half.put()


def replace_link(path: str, target: str) -> None:
    """Replace a file or symbolic link by a symbolic link to `target`, or create it, in one step.

    Raises:
        OSError: the replacement failed; the old file is unchanged.
    """
    with Place(path) as place:
        name = _temporary_name()
        os.symlink(target, name, dir_fd=place.folder)
        try:
            os.rename(name, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
        except OSError:
            os.unlink(name, dir_fd=place.folder)
            raise
        place.sync()


def read(path: str, follow: bool = False) -> "bytes | None":
    """Return the content of a regular file; None if there is no file or no folder of it, or a link that is
    not followed.

    Args:
        follow: whether a link at the path is followed.

    Raises:
        OSError: it cannot be read, is not a regular file, or is too large.
    """
    try:
        with Place(path, follow) as place:
            old = place.read()
    except FileNotFoundError:  # a folder is missing, as on a fresh node in check mode
        return None
    return None if old.about is None else old.content


def make_folders(path: str, mode: int = 0o755, owner: "Owner | None" = None) -> "list[str]":
    """Create a folder and its missing parents, with this mode (independent of the umask) and owner.

    Existing folders are not changed. None as owner is this process's user.

    Returns:
        The paths of the folders that this process created, the outermost first.

    Raises:
        OSError: a folder cannot be created, or a file is in its place.
    """
    path = path.rstrip("/")
    if not path or os.path.isdir(path):
        return []
    above = make_folders(os.path.dirname(path), mode, owner)
    with Place(path, follow=True) as place:
        try:
            os.mkdir(place.name, mode, dir_fd=place.folder)
        except FileExistsError:
            if os.path.isdir(path):  # another process has created it
                return above
            raise
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(place.name, flags, dir_fd=place.folder)
        try:
            if owner:
                os.fchown(handle, *owner)
            os.fchmod(handle, mode)
            label_new(handle, path, "dir")
        finally:
            os.close(handle)
        place.sync()
    return [*above, path]


class TemporaryReplacement:
    """A file's new content, in a temporary file in its folder; removed at the end unless `put` renamed it.

    Args:
        place: the file's place.
        content, mode, owner: as for `replace`.
        old: the file as it was read, for an edit that must not undo another one.

    Raises:
        OSError: it could not be written; no temporary file is left.
    """

    def __init__(
        self,
        place: Place,
        content: "Content",
        mode: "int | None" = None,
        owner: "Owner | None" = None,
        old: "Old | None" = None,
    ) -> None:
        """Create the temporary file, or remove it again if that fails; raises as `_fill`."""
        self.place = place
        self._edited = old
        self._handle = -1
        self._name = ""
        try:
            self._fill(content, mode, owner, old or place.read(content=False))
        except BaseException:
            self.drop()
            raise

    def _fill(self, content: "Content", mode: "int | None", owner: "Owner | None", old: Old) -> None:
        """Create the temporary file with content, owner, mode and attributes, and write it to the disk.

        Raises:
            Refused: the old file is another user's in a folder of all users, who would own the new one.
            OSError: a step failed, or the file does not have the size that was written.
        """
        clean(self.place.folder)
        self._create(NEW_MODE if mode is None and old.about is None else 0o600)
        kept = dict(old.attributes)
        if mode is not None:
            kept.pop(ACL, None)
        elif old.about is not None:
            mode = stat.S_IMODE(old.about.st_mode)
        if owner:
            os.fchown(self._handle, *owner)
        elif old.about is not None and mode is not None:
            self.place.require_trusted(old.about)
            mode = _keep_owner(self._handle, old.about, mode)
        size = self._write([content] if isinstance(content, bytes) else content)
        if mode is not None:
            os.fchmod(self._handle, mode)
        if old.about is None:
            label_new(self._handle, self.place.path)
        _keep_attributes(self._handle, kept)
        os.fsync(self._handle)
        if os.fstat(self._handle).st_size != size:
            raise OSError(errno.EIO, "was not written completely", self.place.path)

    def _create(self, mode: int) -> None:
        """Create the temporary file, locked while it is written: `clean` keeps locked ones."""
        while True:
            name = _temporary_name()
            self._handle = os.open(name, _CREATE, mode, dir_fd=self.place.folder)
            self._name = name
            with contextlib.suppress(OSError):
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(self._handle).st_nlink:
                return
            self.drop()  # another process has removed it before it was locked

    def _write(self, pieces: "Iterable[bytes]") -> int:
        """Write the pieces to the temporary file; return the number of bytes."""
        size = 0
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                done = os.write(self._handle, rest)
                rest = rest[done:]
                size += done
        return size

    def written(self) -> bytes:
        """Return the content of the temporary file."""
        os.lseek(self._handle, 0, os.SEEK_SET)
        return b"".join(iter(lambda: os.read(self._handle, 1 << 20), b""))

    def put(self) -> None:
        """Rename the temporary file over the file, and synchronise the folder to the disk.

        Raises:
            Changed: the file is no longer the one that was read for an edit.
            OSError: the rename failed.
        """
        place = self.place
        if self._edited and state_of(place.about()) != state_of(self._edited.about):
            raise Changed(place.path, "was changed by another program meanwhile")
        os.rename(self._name, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
        self._name = ""
        place.sync()

    def drop(self) -> None:
        """Remove the temporary file unless it was renamed."""
        if self._name:
            with contextlib.suppress(OSError):
                os.unlink(self._name, dir_fd=self.place.folder)
        handle, self._name, self._handle = self._handle, "", -1
        if handle >= 0:
            os.close(handle)

    def __enter__(self) -> "TemporaryReplacement":
        return self

    def __exit__(self, *_error: object) -> None:
        self.drop()


def clean(folder: int) -> None:
    """Remove temporary files of killed writers from an open folder, once per process; ignore errors.

    Files that another writer has locked are kept. At most `ENTRIES_AT_MOST` entries are looked at.
    """
    about = os.fstat(folder)
    if (about.st_dev, about.st_ino) in _cleaned:
        return
    _cleaned.add((about.st_dev, about.st_ino))
    with contextlib.suppress(OSError), readable(folder) as handle:
        for name in itertools.islice(_names(handle), ENTRIES_AT_MOST):
            if TEMPORARY.match(name):
                with contextlib.suppress(OSError):
                    _remove_left_over(folder, name)


def _names(folder: int) -> "Iterator[str]":
    """Yield the names in an open folder one by one, as another user can create millions; Python 3.6 reads all
    of them first.
    """
    if os.scandir not in os.supports_fd:
        yield from os.listdir(folder)
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            yield entry.name


def _remove_left_over(folder: int, name: str) -> None:
    """Remove a temporary file, link or empty folder of that name from an open folder.

    Raises:
        OSError: another process has locked it, or it cannot be removed.
    """
    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode):
        os.rmdir(name, dir_fd=folder)
    elif stat.S_ISLNK(mode):
        os.unlink(name, dir_fd=folder)
    elif stat.S_ISREG(mode):
        handle = os.open(name, READ, dir_fd=folder)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(name, dir_fd=folder)
        finally:
            os.close(handle)


def _temporary_name() -> str:
    """Return a new unpredictable name that `TEMPORARY` matches."""
    return ".gpuprov-new-" + hexlify(os.urandom(8)).decode()


def _keep_owner(handle: int, old: "os.stat_result", mode: int) -> int:
    """Give a new file the owner of the old one, as far as permitted; return the mode for that owner.

    A user other than root may not change the owner: set-id bits are removed then, and the group's permissions
    if the group cannot be set either.
    """
    about = os.fstat(handle)
    if (about.st_uid, about.st_gid) == (old.st_uid, old.st_gid):
        return mode
    try:
        os.fchown(handle, old.st_uid, old.st_gid)
    except PermissionError:
        if os.geteuid() == 0:
            raise
        mode &= ~0o6000
        try:
            os.fchown(handle, -1, old.st_gid)
        except PermissionError:  # the group's permissions were meant for another group
            mode &= ~0o070
    return mode


def _keep_attributes(handle: int, attributes: "dict[str, bytes]") -> None:
    """Give a new file these extended attributes, unless it has them.

    A user other than root may lack permission.
    """
    has = attributes_of(handle) if attributes else {}
    for name, value in attributes.items():
        if has.get(name) != value:
            try:
                os.setxattr(handle, name, value)
            except PermissionError:
                if os.geteuid() == 0:
                    raise

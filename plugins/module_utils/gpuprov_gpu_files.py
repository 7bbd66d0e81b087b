# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes that have a device of a GPU open or mapped. Runs on nodes: Python 3.6 or newer.

The path of an open file, the text of a link in /proc, proves nothing: in a namespace of their own a user
gives any file the name of a device and a device any name, and in a chroot it is another one. The number of a
device is the kernel's. A thread can have its own open files, and continue after the first one has ended.
"""

import ctypes
import errno
import os
import re
import struct
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FOLDER, PROC = "/dev", "/proc"
OPENED = 0o600
"""Mode of a link in /proc/PID/fd or map_files to a file that is open for reading or writing, proc(5).

With O_PATH it has neither, and needs no right to use the device.
"""
SECONDS = 8.0
"""Time for all processes (our choice: below the limits of the probe's collectors; a server looks at several
hundred thousand open files a second).
"""
FEW = 4096
"""Open files up to which a process is looked at first; those with more come last, as few of them are jobs."""
NAMED = 8
"""Processes of a user with too many open files that a message names."""
NUMBERS = {"x86_64": (332, 312), "aarch64": (291, 272)}
"""Machine → numbers of the system calls statx(2) and kcmp(2)."""
AS_KNOWN = 0x4000 | 0x800
"""AT_STATX_DONT_SYNC and AT_NO_AUTOMOUNT: a server that does not answer is not asked."""
WHAT = 0x103
"""STATX_TYPE, STATX_MODE and STATX_INO."""
MAPPED = re.compile(rb"0*([0-9a-f]+)-0*([0-9a-f]+) \S+ \S+ ([0-9a-f]+):([0-9a-f]+) ([1-9]\d*)")
"""Begin and end, number of the file system, and number of the file, in a line of /proc/PID/maps."""
FILES = 2
"""KCMP_FILES: whether two tasks have the same table of open files."""
_LIBRARY = ctypes.CDLL(None, use_errno=True)
_STATX, _KCMP = NUMBERS.get(os.uname().machine, (0, 0))


class TooManyFiles(Exception):
    """More open files than can be looked at in time, or a process whose mappings the kernel does not tell;
    the text names the user and a process.
    """


def devices_of(pid: str) -> "set[str]":
    """Return the names in /dev of NVIDIA's devices that a process has open: `nvidia0`, `nvidia-uvm`.

    Raises:
        TooManyFiles: it has too many files open, or keeps its mappings from being read.
    """
    return devices_in_use([pid]).get(pid, set())


def devices_in_use(
    pids: "Iterable[str] | None" = None, seconds: float = SECONDS, mapped: bool = True
) -> "dict[str, set[str]]":
    """Return process → names in /dev of NVIDIA's devices that it has open, for processes with any.

    Processes that have ended, or whose open files this user may not read, are left out.

    Args:
        pids: the processes; all but this one if it is None.
        mapped: whether devices count that a process has only mapped. A process can keep others from reading
            its mappings: what is not about a change does without them.

    Raises:
        TooManyFiles: not all open files could be looked at within the time.
    """
    if pids is None:
        pids = [pid for pid in os.listdir(PROC) if pid.isdecimal() and pid != str(os.getpid())]
    search, answers = _Search(seconds), []  # type: _Search, list[dict[str, set[str]] | TooManyFiles]

    def work() -> None:
        try:
            answers.append(search.all_of(pids or (), mapped))
        except TooManyFiles as error:
            answers.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds + 0.5)
    answer = answers[0] if answers else search.no_answer()
    if isinstance(answer, TooManyFiles):
        raise answer
    return answer


class _Search:
    """Names of the devices in tables of open files, within a time."""

    def __init__(self, seconds: float) -> None:
        """Read the numbers of NVIDIA's devices; the search ends after `seconds`."""
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._majors = _majors()
        self._names = {}  # type: dict[tuple[int, ...], str]
        self._files = {}  # type: dict[tuple[int, ...] | None, str | None]
        self._seen = {}  # type: dict[str, int]
        self._table = ""
        for name in sorted(os.listdir(FOLDER)):
            if name.startswith("nvidia"):
                number, seen = _device(0, "", FOLDER + "/" + name)
                if number:
                    self._files[seen] = self._names.setdefault(number, name)

    def all_of(self, pids: "Iterable[str]", mapped: bool) -> "dict[str, set[str]]":
        """Return process → names of its devices; raises as `look`."""
        found, later = {}, []  # type: dict[str, set[str]], list[tuple[str, str]]
        for pid in pids:
            for table in _tables(pid, mapped):
                names = self.look(table, FEW)
                if names is None:
                    later.append((pid, table))
                elif names:
                    found.setdefault(pid, set()).update(names)
        for pid, table in sorted(later, key=lambda each: _size(each[1])):
            names = self.look(table)
            if names:
                found.setdefault(pid, set()).update(names)
        return found

    def no_answer(self) -> TooManyFiles:
        """Return the error that the kernel does not answer about the process at which the search is."""
        pid = self._table.split("/")[2]
        return TooManyFiles(
            f"the kernel does not tell which files process {pid} ({_comm(pid)}) of user {_owner(pid)} has "
            f"mapped, and one of them may be a GPU; end it: sudo kill -9 {pid}"
        )

    def look(self, table: str, most: int = 0) -> "set[str] | None":
        """Return the names of the devices in a table, a folder of /proc; None if it has over `most` files (0:
        no limit).

        They are empty or incomplete if the process ends, empty without the right to read the table.

        Raises:
            TooManyFiles: the time has passed.
        """
        found, place, self._table = set(), 0, table  # type: set[str], int, str
        try:
            handle = os.open(table, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:  # the process has ended, or is another user's
            return found
        names = self._mapped if table.endswith("map_files") else self._opened
        try:
            for place, name in enumerate(names(table, handle), 1):
                if most and place > most:
                    return None
                if place % 64 == 1 and time.monotonic() > self._end:
                    self._seen[table] = place
                    raise self._too_many()
                if name:
                    found.add(name)
        except OSError:
            return found
        finally:
            self._seen[table] = place
            os.close(handle)
        return found

    def _opened(self, table: str, handle: int) -> "Iterator[str | None]":
        """Yield the name of the device for each file in a table, None for others, and for one that is closed
        meanwhile.
        """
        with os.scandir(table) as entries:
            for entry in entries:
                name = self._name(_device(handle, table, entry.name)[0])
                try:
                    yield name if name and os.lstat(entry.path).st_mode & OPENED else None
                except OSError:
                    yield None

    def _mapped(self, table: str, handle: int) -> "Iterator[str | None]":
        """Yield the name of the device for each mapping, None for others.

        A file is looked at once, and kept under the numbers that it has then: another one could be in its
        place meanwhile. Mappings that have changed are read again, until twice the same files differ from
        theirs: one of overlay can have another number than its mapping, one of btrfs another file system.
        """
        before, other = None, set()  # type: set[object] | None, set[object]
        while other != before:
            before, other = other, set()
            with open(table.replace("map_files", "maps"), "rb") as file:
                for line in file:
                    found = MAPPED.match(line)
                    if not found:
                        yield None
                        continue
                    first, end, major, minor, inode = found.groups()
                    key = (int(major, 16), int(minor, 16), int(inode))
                    if key in self._files:
                        yield self._files[key]
                        continue
                    number, seen = _device(handle, table, f"{first.decode()}-{end.decode()}")
                    name = self._name(number)
                    if seen:
                        self._files[seen] = name
                    if seen is not None and seen[2:] != key[2:]:
                        other.add((key, seen or object()))
                    yield name

    def _name(self, number: "tuple[int, ...] | None") -> "str | None":
        """Return the name of a device; None for others. A container has devices that /dev has not."""
        if number is None:
            return None
        if number in self._names:
            return self._names[number]
        driver, minor = self._majors.get(number[0]), number[1]
        if driver is None:
            return None
        if driver in ("nvidia", "nvidia-frontend"):
            return {255: "nvidiactl", 254: "nvidia-modeset"}.get(minor, "nvidia" + str(minor))
        return driver if driver in ("nvidiactl", "nvidia-uvm") else driver + str(minor)

    def _too_many(self) -> TooManyFiles:
        """Return the error, with the user who has the most files open, and with processes of that user to
        end.
        """
        files, processes = {}, {}  # type: dict[int, int], dict[int, dict[str, int]]
        for table, seen in self._seen.items():
            pid = table.split("/")[2]
            owner, number = _owner(pid), max(seen, _size(table))
            files[owner] = files.get(owner, 0) + number
            own = processes.setdefault(owner, {})
            own[pid] = own.get(pid, 0) + number
        user = max(files, key=lambda each: files[each])
        pids = sorted(processes[user], key=lambda each: -processes[user][each])
        most = processes[user][pids[0]]
        return TooManyFiles(
            f"user {user} has {files[user]} files open in {len(processes[user])} processes, {most} of them "
            f"in {pids[0]} ({_comm(pids[0])}): not all open files can be looked at in {self._seconds:.0f} s, "
            f"and one of them may be a GPU; end the processes with most: sudo kill {' '.join(pids[:NAMED])}"
        )


def _tables(pid: str, mapped: bool) -> "Iterator[str]":
    """Yield the folders of a process's open and mapped files, and those of threads that do not share the
    former, unless it has ended. A file that is mapped stays open for the driver when it is closed.

    /proc also has a folder for each thread, though it does not list them.
    """
    try:
        threads = os.listdir(f"{PROC}/{pid}/task")
    except OSError:
        return
    for thread in threads:
        if thread == pid or not _is_shared(pid, thread):
            yield f"{PROC}/{pid}/task/{thread}/fd"
            if mapped:
                yield f"{PROC}/{thread}/map_files"


def _is_shared(pid: str, thread: str) -> bool:
    """Return whether a thread has the same open files as its process; False if the kernel does not tell."""
    return bool(_KCMP) and _LIBRARY.syscall(_KCMP, int(pid), int(thread), FILES, 0, 0) == 0


def _device(handle: int, folder: str, name: str) -> "tuple[tuple[int, ...] | None, tuple[int, ...] | None]":
    """Return major and minor number of an open character device, None for another file; and the numbers of
    its file system and its own there, () if it was closed meanwhile, None if the kernel does not tell.
    """
    about = ctypes.create_string_buffer(256)
    if _STATX and _LIBRARY.syscall(_STATX, handle, name.encode(), AS_KNOWN, WHAT, about) == 0:
        mode, inode = struct.unpack_from("=H2xQ", about, 28)
        *number, major, minor = struct.unpack_from("=IIII", about, 128)
        return tuple(number) if mode & 0o170000 == 0o020000 else None, (major, minor, inode)
    if _STATX and ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM):
        return None, () if ctypes.get_errno() == errno.ENOENT else None
    try:
        found = os.stat(folder + "/" + name)
    except OSError:
        return None, None
    major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
    return (major, minor) if found.st_mode & 0o170000 == 0o020000 else None, None


def _majors() -> "dict[int, str]":
    """Return major number → name of NVIDIA's drivers of character devices."""
    text = _read(PROC + "/devices").partition("Block devices")[0]
    return {int(number): name for number, name in re.findall(r"(?m)^ *(\d{1,9}) (nvidia[\w-]*)$", text)}


def _size(table: str) -> int:
    """Return the number of open files in a table; 0 if it is not known, as before Linux 6.2."""
    try:
        return os.stat(table).st_size
    except OSError:
        return 0


def _owner(pid: str) -> int:
    """Return the user of a process; -1 if it has ended."""
    try:
        return os.stat(f"{PROC}/{pid}").st_uid
    except OSError:
        return -1


def _comm(pid: str) -> str:
    """Return the name of a process, without control characters; empty if it has ended."""
    return "".join(each for each in _read(f"{PROC}/{pid}/comm").strip() if each.isprintable())


def _read(path: str) -> str:
    """Return the text of a file of /proc; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""

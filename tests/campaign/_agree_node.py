"""A provisioned node on which changes are made and reverted from outside, with or without a working sshd."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gpuprov.errors import NodeFailed, Unreachable
from gpuprov.model.lock import LockedGroup
from gpuprov.verify.observers.package_files import DOCUMENTATION
from gpuprov_lab import Node, engine

STASH = "var/lib/gpuprov-agree"
"""Folder of the node's file system with a second link to each file that a round changes."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
COMMAND_S = 90.0
SSHD_AGAIN = "systemctl reset-failed ssh; systemctl restart ssh"
"""Commands that start sshd again after it has ended because of its configuration."""


@dataclass
class Place:
    """A provisioned node, its group in the lock, and what changes are drawn from.

    Attributes:
        opened: files below /etc that services of the stack open.
    """

    node: Node
    group: LockedGroup
    opened: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Leave out opened files that this node does not have."""
        self.opened = tuple(path for path in self.opened if self.at(path).is_file())

    def at(self, path: str) -> Path:
        """Return a path of the node as a path of this machine."""
        return self.node.root / path.lstrip("/")

    def has(self, path: str) -> bool:
        """Return whether a path exists on the node; a link exists without its target."""
        return os.path.lexists(self.at(path))

    def enter(self, script: str, *, timeout: float = COMMAND_S) -> subprocess.CompletedProcess[str]:
        """Run a shell script as root in the node, without SSH."""
        command = ["nsenter", "--target", str(_init(self.node)), "--all", "--root", "--wd", "env", "-i"]
        words = [f"PATH={PATH}", "HOME=/root", "LC_ALL=C.UTF-8", f"K={self.node.kernel}", "sh", "-c", script]
        return subprocess.run(
            [*command, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout,
        )

    def files_of(self, package: str) -> list[str]:
        """Return the regular files of a package, without configuration files and documentation."""
        info = self.node.root / "var/lib/dpkg/info"
        named = [path for path in (info / f"{package}.list", info / f"{package}:amd64.list") if path.exists()]
        own = (info / f"{package}.conffiles", info / f"{package}:amd64.conffiles")
        conffiles = {line for path in own if path.exists() for line in path.read_text().split()}
        lines = [line for path in named for line in path.read_text().splitlines()]
        judged = (line for line in lines if line not in conffiles and not DOCUMENTATION.match(line))
        return [line for line in judged if _is_file(self.at(line))]


def _is_file(path: Path) -> bool:
    """Return whether a path is a regular file, and not a link."""
    return not path.is_symlink() and path.is_file()


def _init(node: Node) -> int:
    """Return the process id of a node's init.

    Raises:
        NodeFailed: it is not running.
    """
    for pid in sorted(engine.processes(node.machine)):
        with suppress(FileNotFoundError, ProcessLookupError):
            status = Path(f"/proc/{pid}/status").read_text()
            spaces = next((line for line in status.splitlines() if line.startswith("NSpid:")), "")
            if spaces.split()[2:] == ["1"]:
                return pid
    raise NodeFailed(f"{node.name} has no init: it is not running")


@dataclass
class Snapshot:
    """Files, links and folders of a node as they were, with the inode and times of each file.

    A second link keeps the inode of a file that is replaced or removed; only its ctime changes.
    """

    root: Path
    _copies: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="gpuprov-agree-")))
    _kept: list[_Kept] = field(default_factory=list)

    def take(self, paths: tuple[str, ...]) -> None:
        """Record paths, folders with all that they contain, and missing ones as missing."""
        for path in paths:
            self._take(self.root / path.lstrip("/"))

    def _take(self, path: Path) -> None:
        """Record the state of a path, or of its first missing folder; nothing for a path recorded before."""
        if any(kept.path == path for kept in self._kept):
            return
        if not os.path.lexists(path):
            while not os.path.lexists(path.parent):
                path = path.parent
            self._kept.append(_Kept(path))
            return
        about = path.lstat()
        kept = _Kept(path, about)
        self._kept.append(kept)
        number = len(self._kept)
        if stat.S_ISLNK(about.st_mode):
            kept.target = str(path.readlink())
        elif stat.S_ISDIR(about.st_mode):
            kept.names = {each.name for each in path.iterdir()}
            for name in sorted(kept.names):
                self._take(path / name)
        else:
            kept.link, kept.copy = self.root / STASH / str(number), self._copies / str(number)
            kept.link.parent.mkdir(exist_ok=True)
            kept.link.unlink(missing_ok=True)
            os.link(path, kept.link)
            shutil.copyfile(path, kept.copy)

    def differs(self) -> bool:
        """Return whether a recorded path is not as it was, also one that is missing now or was so before."""
        return any(kept.now() != kept.before for kept in self._kept)

    def put_back(self) -> None:
        """Restore everything; folders before their content."""
        for kept in self._kept:
            kept.put_back()
        for kept in reversed(self._kept):  # after their contents were restored
            kept.put_times_back()
        shutil.rmtree(self.root / STASH, ignore_errors=True)
        shutil.rmtree(self._copies)


@dataclass
class _Kept:
    """One path as it was; without `about` it was missing."""

    path: Path
    about: os.stat_result | None = None
    target: str = ""
    names: set[str] = field(default_factory=set)
    link: Path | None = None
    copy: Path | None = None

    def __post_init__(self) -> None:
        """Record file, mode, owner and time, which any change of the path changes."""
        self.before = self.now()

    def now(self) -> tuple[int, ...]:
        """Return file, mode, owner and time of the path; () if it is missing."""
        if not os.path.lexists(self.path):
            return ()
        about = self.path.lstat()
        return about.st_ino, about.st_mode, about.st_uid, about.st_gid, about.st_size, about.st_mtime_ns

    def put_back(self) -> None:
        """Restore the recorded state of a path: file, link, folder or nothing."""
        if self.about is None:
            _remove(self.path)
        elif stat.S_ISLNK(self.about.st_mode):
            if not (self.path.is_symlink() and str(self.path.readlink()) == self.target):
                _remove(self.path)
                self.path.parent.mkdir(exist_ok=True)  # systemctl removes a folder with its last link
                self.path.symlink_to(self.target)
        elif stat.S_ISDIR(self.about.st_mode):
            if self.path.is_symlink() or not self.path.is_dir():
                _remove(self.path)
                self.path.mkdir()
            for each in self.path.iterdir():
                if each.name not in self.names:
                    _remove(each)
        else:
            self._put_file_back()

    def _put_file_back(self) -> None:
        """Restore the recorded file itself, with its content."""
        assert self.link is not None
        assert self.copy is not None
        if not os.path.lexists(self.path) or not os.path.samestat(self.path.lstat(), self.link.lstat()):
            _remove(self.path)
            self.link.rename(self.path)
        content = self.copy.read_bytes()
        if self.path.read_bytes() != content:
            self.path.write_bytes(content)

    def put_times_back(self) -> None:
        """Restore owner, mode and times; those of a link stay."""
        if self.about is None or stat.S_ISLNK(self.about.st_mode):
            return
        now = self.path.lstat()
        if (now.st_uid, now.st_gid) != (self.about.st_uid, self.about.st_gid):
            os.chown(self.path, self.about.st_uid, self.about.st_gid)
        if now.st_mode != self.about.st_mode:
            self.path.chmod(stat.S_IMODE(self.about.st_mode))
        if now.st_mtime_ns != self.about.st_mtime_ns:
            os.utime(self.path, ns=(self.about.st_atime_ns, self.about.st_mtime_ns))


def _remove(path: Path) -> None:
    """Remove a file, a link or a whole folder; a missing one is no error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def settled(place: Place) -> None:
    """Wait until SSH answers; restart sshd if it does not, and at last the node."""
    for mend in ("sleep 0.5", SSHD_AGAIN, "sleep 2", ""):
        with suppress(Unreachable, NodeFailed):
            place.node.run("true", timeout=30)
            return
        if mend:
            place.enter(mend)
    place.node.reboot()

"""Stored output of nvidia-smi, printed again as long as the state that it depends on is unchanged.

The real nvidia-smi waits for its driver, this one computes: with hundreds of targets on two processors, a
benchmark would measure that instead of gpuprov. So this module imports nothing that takes long to load.
"""

from __future__ import annotations

import os
import time

from .places import HOME, LIBRARY, LIBRARY_FOLDERS, RUN

_NOW = "\0"
_DAEMONS = ("nvidia-persistenced/nvidia-persistenced.pid", "nvidia-fabricmanager/nv-fabricmanager.pid")


def now() -> str:
    """Return the time in the format of nvidia-smi's logs."""
    return time.strftime("%a %b %d %H:%M:%S %Y")


class Answer:
    """The answer to some arguments, for the state of the node at the creation of this object."""

    def __init__(self, root: str, arguments: list[str]) -> None:
        self._path = os.path.join(root, RUN, "answers", " ".join(arguments).replace("/", "_")[:200] or "none")
        self._basis = _basis(root)
        self._since = now()
        self._tells_milliseconds = any("timestamp" in word for word in arguments)

    def again(self) -> str | None:
        """Return the stored output with the present time, or None if the state has changed since or none is
        stored.
        """
        known = _read(self._path)
        return known[len(self._basis) :].replace(_NOW, now()) if known.startswith(self._basis) else None

    def keep(self, said: str) -> None:
        """Store an answer, unless it has milliseconds, the second has changed meanwhile, or the user may not
        write.
        """
        if self._tells_milliseconds or self._since != now():
            return
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            with open(f"{self._path}.{os.getpid()}", "w") as file:
                file.write(self._basis + said.replace(self._since, _NOW))
            os.replace(file.name, self._path)
        except OSError:
            return


def _basis(root: str) -> str:
    """Return all that an answer depends on: hardware, settings, faults, the
    library, and the running daemons.
    """
    parts = [_stamp(os.path.join(root, HOME, "machine.json"))]
    states = (f"{HOME}/durable.json", f"{HOME}/power.json", f"{RUN}/state.json")
    parts += [_read(os.path.join(root, path)) for path in states]
    parts += [_target(f"{root}/{folder}/{LIBRARY}.1") for folder in LIBRARY_FOLDERS]
    for path in _DAEMONS:
        process = _read(os.path.join(root, "run", path)).strip()
        parts.append(f"{process} {os.path.exists('/proc/' + process)}")
    return "\n".join(parts) + "\n\n"


def _stamp(path: str) -> str:
    """Return inode and modification time of a file as text; "" if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{status.st_ino} {status.st_mtime_ns}"


def _read(path: str) -> str:
    """Return a file's text; "" if it cannot be read."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _target(link: str) -> str:
    """Return the path that a link leads to; "" if that does not exist."""
    path = os.path.realpath(link)
    return path if os.path.exists(path) else ""

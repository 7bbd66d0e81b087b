"""What nvidia-smi said, said again while everything that it speaks of is as it was.

The real one waits for its driver, this one computes: where hundreds of targets share two processors, that
would be measured in gpuprov's place. So nothing that takes long to load is imported here.
"""

from __future__ import annotations

import os
import time

from .places import HOME, LIBRARY, LIBRARY_FOLDERS, RUN

_NOW = "\0"
_DAEMONS = ("nvidia-persistenced/nvidia-persistenced.pid", "nvidia-fabricmanager/nv-fabricmanager.pid")


def now() -> str:
    """The time as nvidia-smi writes it above its logs."""
    return time.strftime("%a %b %d %H:%M:%S %Y")


class Answer:
    """The answer to some arguments, as things stand on the node when this is made."""

    def __init__(self, root: str, arguments: list[str]) -> None:
        self._path = os.path.join(root, RUN, "answers", " ".join(arguments).replace("/", "_")[:200] or "none")
        self._basis = _basis(root)
        self._since = now()
        self._tells_milliseconds = any("timestamp" in word for word in arguments)

    def again(self) -> str | None:
        """What was said the last time; None where it may be another answer by now."""
        known = _read(self._path)
        return known[len(self._basis) :].replace(_NOW, now()) if known.startswith(self._basis) else None

    def keep(self, said: str) -> None:
        """Remember an answer; users who may not write keep none."""
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
    """All that an answer depends on: hardware, settings, faults, the library, and which daemons live."""
    parts = [_stamp(os.path.join(root, HOME, "machine.json"))]
    parts += [_read(os.path.join(root, path)) for path in (f"{HOME}/durable.json", f"{RUN}/state.json")]
    parts += [_target(f"{root}/{folder}/{LIBRARY}.1") for folder in LIBRARY_FOLDERS]
    for path in _DAEMONS:
        process = _read(os.path.join(root, "run", path)).strip()
        parts.append(f"{process} {os.path.exists('/proc/' + process)}")
    return "\n".join(parts) + "\n\n"


def _stamp(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{status.st_ino} {status.st_mtime_ns}"


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _target(link: str) -> str:
    path = os.path.realpath(link)
    return path if os.path.exists(path) else ""

#!/usr/bin/python3 -IBS
"""Program of one file with all modules that it needs, written whole by gpuprov: changes are overwritten.

`--unpack DIR` writes the modules to a folder, to read them. At its first start after a boot the program
unpacks them below /run, where Python also keeps them compiled: later starts take a third of the time.
"""

import base64
import hashlib
import json
import os
import shutil
import sys
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PLACE = "/run/gpuprov/program"
MODULE = ""
PACKED = ""


def unpack(folder: str) -> None:
    """Write all packed modules below a folder."""
    for path, text in json.loads(zlib.decompress(base64.b64decode(PACKED)).decode()).items():
        os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
        with open(os.path.join(folder, path), "w", encoding="utf-8") as file:
            file.write(text)


def place() -> str:
    """Return the folder with the modules, unpacked if it is missing; exit if others could write a folder
    above.

    It is renamed when it is complete, so that an interrupted start leaves no incomplete modules in it.
    """
    for path in (os.path.dirname(PLACE), PLACE):
        os.makedirs(path, mode=0o755, exist_ok=True)
        about = os.lstat(path)
        if about.st_uid != os.geteuid() or about.st_mode & 0o22:
            sys.exit(f"{path} can be written by others, expected a folder of its own: remove it")
    digest = hashlib.sha256(PACKED.encode()).hexdigest()[:16]
    folder = os.path.join(PLACE, f"{digest}-{sys.implementation.cache_tag}")
    if not os.path.isdir(folder):
        new = f"{folder}.{os.getpid()}"
        try:
            unpack(new)
            os.rename(new, folder)
        except OSError as error:
            shutil.rmtree(new, ignore_errors=True)
            if not os.path.isdir(folder):
                sys.exit(f"{folder} cannot be written: {error.strerror}")
    return folder


def amend() -> None:
    """Give Python 3.9 and 3.10 what the modules use of 3.11, and of 3.10."""
    import builtins
    import dataclasses
    import datetime
    import itertools

    datetime.UTC = datetime.timezone.utc  # noqa: UP017
    if sys.version_info >= (3, 10):
        return
    made, zipped = dataclasses.dataclass, builtins.zip

    def dataclass(
        cls: "Any" = None, *, slots: bool = False, kw_only: bool = False, **options: "Any"
    ) -> "Any":
        def wrap(cls: "Any") -> "Any":
            for name in vars(cls).get("__annotations__", ()) if kw_only else ():
                if name not in cls.__dict__:  # its order of fields would be refused; all are given by name
                    setattr(cls, name, None)
            return made(cls, **options)

        return wrap if cls is None else wrap(cls)

    def pairwise(rows: "Any") -> "Any":
        former = list(rows)
        return zipped(former, former[1:])

    dataclasses.dataclass = dataclass
    itertools.pairwise = pairwise  # type: ignore[misc]
    builtins.zip = lambda *rows, strict=False: zipped(*rows)  # type: ignore[misc]


def launch() -> None:
    """Unpack the modules, or only that if it is requested, and start the program. Exit on a Python older than
    3.9.
    """
    if sys.version_info < (3, 9):
        sys.exit(f"this is Python {sys.version.split()[0]}, expected 3.9 or newer")
    os.umask(0o022)
    if sys.argv[1:2] == ["--unpack"]:
        unpack(sys.argv[2])
        return
    if sys.version_info < (3, 11):
        amend()
    sys.dont_write_bytecode = False
    sys.path.insert(0, place())
    __import__(MODULE)
    sys.modules[MODULE].start(os.path.abspath(__file__))


if __name__ == "__main__":
    launch()

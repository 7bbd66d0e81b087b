"""DCGM's own diagnostics, if DCGM is installed; its output is returned unparsed."""

import os
import re
import stat
from contextlib import contextmanager, suppress

from gpuprov.probe.node.base import Failed, find_program, run, run_anyway

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from gpuprov.probe.node.base import Values

TEXT_LIMIT = 256 * 1024
"""Maximum length of DCGM's output in characters."""
HOST, PORT = "127.0.0.1", 5555
"""Where DCGM's daemon, which is root's, is asked."""
MPS = "/tmp/nvidia-mps"  # noqa: S108 - it is libcuda's
"""Folder in which libcuda looks for an MPS server, also in the programs with which DCGM's daemon loads the
GPUs. A server of a user there has them fail, or wait without an end.
"""
LISTENERS = (
    "ss -Hltne 'sport = :{} and ( src {} or src 0.0.0.0 or src [::] )'"
    " | grep -avE '^LISTEN +[0-9]+ +[0-9]+ +\\[::\\]' | head -n 9"
).format(PORT, HOST)
"""Command that lists the sockets that get the connections to `HOST`; `[::]` is one for IPv6 only.

As the kernel permits no second user among them, and a user can have any number, the first ones are enough.
"""


def installed() -> bool:
    """Return whether DCGM's tool `dcgmi` is found in PATH."""
    return find_program("dcgmi") is not None


def diagnose(_: str, arguments: "Any") -> "Values":
    """Run `dcgmi diag` in a worker; return `run` (the level), exit `code`, `said` and `errors`.

    `said` is cut after `TEXT_LIMIT` characters; `errors` has the last 2,000 characters. If a user listens in
    place of DCGM's daemon, it is not asked: return only `user`, the user's number; if a user could answer in
    place of an MPS server, only `mps_user`.

    Args:
        arguments: level and time limit in seconds.

    Raises:
        Failed: it did not end in time, root's daemon does not listen or has ended meanwhile, or `MPS` is
            no folder.
    """
    level, seconds = arguments
    sockets = _listeners()
    users = [user for user, _ in sockets if user]
    if users:
        return {"user": users[0]}
    if not sockets:
        raise Failed("its daemon does not listen on {}:{}".format(HOST, PORT))
    words = ("diag", "--host", HOST, "-r", str(level), "-j")
    with _own_mps() as user:
        if user:
            return {"mps_user": user}
        code, said, errors = run_anyway("dcgmi", *words, seconds=seconds)
    if _listeners() != sockets:  # a user could have answered in its place
        raise Failed("its daemon ended meanwhile")
    return {"run": level, "code": code, "said": said[:TEXT_LIMIT], "errors": errors[-2000:]}


@contextmanager
def _own_mps() -> "Iterator[str]":
    """Keep `MPS` a folder that only root can write within the context, so that no user can answer there; the
    context's value is the number of the user whose folder or server it is already, else empty.

    The folder of a server of root can be written by all users; it has its former mode afterwards.

    Raises:
        Failed: root has another file in its place.
    """
    made, mode = False, 0
    with suppress(FileExistsError):
        os.mkdir(MPS, 0o700)
        made = True
    try:
        about = os.lstat(MPS)
        if about.st_uid in (0, os.geteuid()):
            if not stat.S_ISDIR(about.st_mode):
                raise Failed("{} is not a folder".format(MPS))
            mode = stat.S_IMODE(about.st_mode)
            os.chmod(MPS, mode & ~(stat.S_IWGRP | stat.S_IWOTH))
        paths = [path for path in (MPS, MPS + "/control") if os.path.lexists(path)]
        owners = [os.lstat(path).st_uid for path in paths]
        yield next((str(owner) for owner in owners if owner not in (0, os.geteuid())), "")
    finally:
        with suppress(OSError):
            if made:
                os.rmdir(MPS)
            elif mode:
                os.chmod(MPS, mode)


def _listeners() -> "list[tuple[str, str]]":
    """Return user, empty for root, and number of each socket that `LISTENERS` lists."""
    pattern = r"(?m)^LISTEN(?: +\S+){4}(?: +timer:\S+)?(?: +uid:(\d+))? +ino:(\d+)"
    return re.findall(pattern, run("sh", "-c", LISTENERS))

"""Commands on this machine when it is the node itself, with the environment of a login."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from pathlib import Path

from gpuprov.untrusted.programs import Answer, run_limited

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH of root's login on Debian, Ubuntu and RHEL: its Python is the one of the system's packages."""
KEPT = ("SSH_CONNECTION", "TZ", "LANG", "http_proxy", "https_proxy", "no_proxy", "HTTPS_PROXY", "NO_PROXY")
"""Environment variables of gpuprov that a command on this machine keeps; none of a Python environment."""


def login_environment() -> dict[str, str]:
    """Return the environment of a login on this machine.

    PATH has the system's folders first, then the folders of the user's own PATH, without those of an active
    virtual environment. Other variables are HOME, USER, LOGNAME and those of `KEPT` that are set.
    """
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    own = [each for each in os.environ.get("PATH", "").split(":") if each not in SYSTEM_PATH.split(":")]
    prefix = os.environ.get("VIRTUAL_ENV")
    own = [each for each in own if each and not (prefix and each.startswith(prefix))]
    user = "root" if os.geteuid() == 0 else getpass.getuser()
    return {**kept, "PATH": ":".join([SYSTEM_PATH, *own]), "HOME": _home(), "USER": user, "LOGNAME": user}


def login_folder() -> str:
    """Return the folder that a login on this machine starts in: the home folder, or `/` if it cannot be
    entered.

    The current folder may be another user's, and Python imports modules from the folder that it starts in.
    """
    home = Path(_home())
    return str(home) if home.is_dir() and os.access(home, os.X_OK) else "/"


def absolute(program: str) -> str:
    """Return the absolute path of a program that is stated by a path of the current folder; a name without a
    folder as it is.
    """
    return str(Path(program).absolute()) if "/" in program else program


def _home() -> str:
    """Return the home folder of this process."""
    return os.environ.get("HOME", "/root" if os.geteuid() == 0 else "/")


def run_here(
    command: str,
    stdin: bytes = b"",
    *,
    seconds: float,
    limit: int,
    environment: Mapping[str, str] | None = None,
) -> Answer:
    """Run one command line in the system's shell, in the folder of a login, to its end.

    Args:
        seconds: maximum duration.
        limit: maximum output in bytes.
        environment: environment in place of gpuprov's own.

    Returns:
        Exit code and outputs; a command that fails raises nothing.

    Raises:
        NodeFailed: no end within `seconds`, or more than `limit` bytes; the command is killed with the
            processes that it started.
    """
    argv = ["/bin/sh", "-c", command]
    return run_limited(
        argv, stdin, seconds=seconds, limit=limit, environment=environment, folder=login_folder()
    )

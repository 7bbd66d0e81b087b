"""Runs: every verb that accesses nodes has an id and a folder for its records."""

from __future__ import annotations

import errno
import logging
import os
import platform
import re
import secrets
from datetime import UTC, datetime
from pathlib import Path

from gpuprov.errors import Refused
from gpuprov.files.mutex import NotOurs, own_folder
from gpuprov.files.ways import require_own_above

LOG = logging.getLogger(__name__)
ELSEWHERE = "set XDG_STATE_HOME and XDG_CACHE_HOME elsewhere"


def now() -> str:
    """Return the current time in UTC, ISO 8601, to the second: `2026-01-31T14:25:01+00:00`."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def state_dir() -> Path:
    """Return `$XDG_STATE_HOME/gpuprov`, created for its owner only, independent of the umask.

    On Linux `~/.local/state` is used if the variable is not set. If the folder cannot be created, that is
    only logged.

    Raises:
        Refused: it is another user's, or others may write it: its content decides what is done to nodes; or
            others may replace it, as a folder above it is theirs.
    """
    import platformdirs

    return _private(Path(platformdirs.user_state_dir("gpuprov")))


def cache_dir() -> Path:
    """Return `$XDG_CACHE_HOME/gpuprov`, on Linux `~/.cache/gpuprov` if it is not set.

    Created and checked as `state_dir`, and raises as it does.
    """
    import platformdirs

    return _private(Path(platformdirs.user_cache_dir("gpuprov")))


def _private(path: Path) -> Path:
    """Create a folder for its owner only, and return it; if it cannot be created, that is only logged.

    Raises:
        Refused: as `state_dir`.
    """
    path, real = path.absolute(), path.resolve()
    try:
        own_folder(str(real), 0o700)
        require_own_above(path)
    except NotOurs as error:
        seen, _, do = str(error.strerror).partition("; ")
        raise Refused(f"{error.filename} is not safe: {seen}", do=do or ELSEWHERE) from None
    except OSError as error:  # writing there will fail with its own error; reading needs no folder
        LOG.info("%s: %s", path, error.strerror)
    return path


def new_id(verb: str) -> str:
    """Return a new run's id, from the time in UTC, the verb, and four random digits:
    `20260131-142501-apply-9f3a`.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return f"{stamp}-{verb}-{secrets.token_hex(2)}"


def started_by() -> str:
    """Return the user and the machine that start a run: `anna@ctl1`.

    The user is the one who called sudo, if known; `root` if the environment names no user.
    """
    return f"{os.environ.get('SUDO_USER') or os.environ.get('USER', 'root')}@{platform.node()}"


def verb_of(run_id: str) -> str:
    """Return the verb of a run's id: `apply` of `20260131-142501-apply-9f3a`.

    Raises:
        IndexError: the text has fewer than two `-`.
    """
    return run_id.split("-")[2]


def run_folder(verb: str) -> Path:
    """Return the folder for a new run, named by a new id, without creating it; raises as `state_dir`."""
    return state_dir() / "runs" / new_id(verb)


def known_run(run_id: str) -> Path | None:
    """Return the folder of a run in the state folder, or None if there is no such folder; raises as
    `state_dir`.

    The id is untrusted input: None also for one with other characters than `a-z0-9-`.
    """
    folder = state_dir() / "runs" / run_id
    return folder if re.fullmatch(r"[a-z0-9-]+", run_id) and folder.is_dir() else None


def new_run(verb: str) -> Path:
    """Create and return the folder of a new run, accessible only to its owner.

    Raises:
        OSError: it cannot be created.
        Refused: as `state_dir`.
    """
    return make_folder(run_folder(verb))


def make_folder(folder: Path) -> Path:
    """Create the folder of a run, accessible only to its owner, log it, and return it.

    Raises:
        FileExistsError: it exists already.
        OSError: it cannot be created.
    """
    from gpuprov.files.writing import make_folders

    if not make_folders(folder):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
    LOG.info("run %s", folder)
    return folder


def run_folders(*verbs: str) -> list[Path]:
    """Return the folders of all runs of some verbs, oldest first.

    Empty without verbs or runs; raises as `state_dir`.
    """
    runs = state_dir() / "runs"
    return sorted(folder for verb in verbs for folder in runs.glob(f"*-{verb}-*"))

"""Isolation of the tests from the user's own state and cache folders."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuprov.files.runs import state_dir


@pytest.fixture(scope="session", autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """State and cache folders of this session; afterwards the user's own history must not mention it."""
    begun, users_own = time.time(), state_dir()
    session = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        session = session.parent
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("state", "cache"):
            patch.setenv(f"XDG_{kind.upper()}_HOME", str(session / f"own-{kind}"))
        yield
    assert mentions(session, since=begun, below=users_own) == []


def mentions(session: Path, *, since: float, below: Path) -> list[str]:
    """Return files of the history and of runs that were written after `since` and name a session's folder."""
    name, files = os.fsencode(session), [*below.glob("history.sqlite*"), *below.glob("runs/**/*")]
    written = [path for path in files if path.is_file() and path.stat().st_mtime >= since]
    return [str(path) for path in written if name in path.read_bytes()]

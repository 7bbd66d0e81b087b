"""Runs: every verb that touches nodes has an id and a folder for what it saw and did."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path

import platformdirs


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def state_dir() -> Path:
    """`$XDG_STATE_HOME/gpuprov`."""
    return Path(platformdirs.user_state_dir("gpuprov"))


def new_id(verb: str) -> str:
    """`20260131-142501-apply-9f3a`."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return f"{stamp}-{verb}-{secrets.token_hex(2)}"


def new_run(verb: str) -> Path:
    """A new folder under `runs`, for its owner alone; its name is the run's id."""
    folder = state_dir() / "runs" / new_id(verb)
    folder.mkdir(parents=True, mode=0o700)
    return folder

"""Runs: every verb that touches nodes has an id and a folder for what it saw and did."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path

import platformdirs


def state_dir() -> Path:
    """`$XDG_STATE_HOME/gpuprov`."""
    return Path(platformdirs.user_state_dir("gpuprov"))


def new_run(verb: str) -> Path:
    """A new folder `runs/20260131-142501-apply-9f3a`, for its owner alone; its name is the run's id."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    folder = state_dir() / "runs" / f"{stamp}-{verb}-{secrets.token_hex(2)}"
    folder.mkdir(parents=True, mode=0o700)
    return folder

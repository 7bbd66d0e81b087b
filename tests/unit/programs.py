"""Programs written by a test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def write_program(path: Path, body: str) -> Path:
    """Write an executable shell script."""
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def leave_no_room_to_sort(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `sort` fail as where a user has filled /tmp, to which it writes a long list."""
    write_program(folder / "sort", "echo 'sort: write failed: No space left on device' >&2; exit 2")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def older_python(version: str) -> str | None:
    """Return the path of an interpreter of this version, None without one."""
    places = [Path(f"/usr/bin/python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    return next((str(path) for path in places if path.exists()), None)

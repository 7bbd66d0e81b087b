"""Programs written by a test."""

from __future__ import annotations

from pathlib import Path


def write_program(path: Path, body: str) -> Path:
    """Write an executable shell script."""
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path

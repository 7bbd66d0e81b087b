"""Programs of a test's own."""

from __future__ import annotations

from pathlib import Path


def write_program(path: Path, body: str) -> Path:
    """Write a shell script that can be called."""
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path

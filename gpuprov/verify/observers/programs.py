"""Programs of verify that run in a node's own Python."""

from __future__ import annotations

import shlex


def python(program: str) -> str:
    """Return the shell command of a program for Python 3.6; RHEL 8 may have no other, and not in PATH."""
    return f"$(command -v python3 || echo /usr/libexec/platform-python) -I -c {shlex.quote(program)}"

"""pip within limits: a package index can send pages and files without an end."""

from __future__ import annotations

import os
import sys
import tempfile

from gpuprov.errors import NodeFailed, Unreachable
from gpuprov.untrusted.programs import TooSlow, run_limited, with_limits
from gpuprov.untrusted.urls import public_urls

PATIENCE_S = 300.0
MEMORY = 1 << 30
"""Maximum memory of pip in bytes; it takes 0.1 GB for an index of 1,000 versions."""
WHEEL = 64 << 20
"""Default maximum size of a downloaded file in bytes."""
SAID = 16 << 20
"""Maximum size of pip's output in bytes; a report about one wheel has some 100 kB."""


def run_pip(*arguments: str, file: int = WHEEL, do: str = "check pip's index and the network") -> bytes:
    """Run pip without questions and return its output.

    Its temporary files are in a folder that is removed, also if it is killed.

    Args:
        file: maximum size of a file in bytes.
        do: the next step, for errors.

    Raises:
        Unreachable: it fails, or exceeds a limit.
    """
    command = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    limited = with_limits(command, memory=MEMORY, file=file)
    with tempfile.TemporaryDirectory(prefix="gpuprov-pip-", ignore_cleanup_errors=True) as scratch:
        environment = {**os.environ, "TMPDIR": scratch}
        try:
            done = run_limited(
                limited, seconds=PATIENCE_S, limit=SAID, environment=environment, kill_rest=True
            )
        except TooSlow:
            raise Unreachable(f"pip {arguments[0]} took more than {PATIENCE_S:g} s", do=do) from None
        except NodeFailed as error:
            raise Unreachable(f"pip {arguments[0]} {error.seen}", do=do) from None
    if done.code:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        errors = [line for line in lines if line.startswith("ERROR: ") and line != "ERROR: Exception:"]
        last = (errors or lines or ["no message"])[-1]
        raise Unreachable(f"pip {arguments[0]} {arguments[-1]}: {public_urls(last)}", do=do)
    return done.stdout

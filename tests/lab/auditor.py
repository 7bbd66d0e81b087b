"""The program ssh-audit, asked about a node's sshd."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from gpuprov_lab import Node

KINDS = ("kex", "key", "enc", "mac")
ENDS = {0: "no complaint", 2: "a warning", 3: "a failure"}
"""Exit codes of ssh-audit when it has reached the server."""


def complaints(node: Node) -> list[tuple[str, str, str]]:
    """Return what ssh-audit calls a failure or a warning: kind, algorithm and level.

    Raises:
        AssertionError: it did not reach the server.
    """
    program = Path(sys.executable).with_name("ssh-audit")
    command = [str(program), "--skip-rate-test", "--json", node.address]
    audit = subprocess.run(command, capture_output=True, text=True, check=False)
    assert audit.returncode in ENDS, audit.stdout
    found = json.loads(audit.stdout)
    assert all(found[kind] for kind in KINDS), audit.stdout
    return [
        (kind, each["algorithm"], level)
        for kind in KINDS
        for each in found[kind]
        for level in each["notes"]
        if level in ("fail", "warn")
    ]

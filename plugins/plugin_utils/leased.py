# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check of whether a node is still leased to the run that works on it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


def complaint(node: str) -> str:
    """Return why the node is not leased to this run; empty if it is, or if the run uses no leases.

    gpuprov renews the leases, and writes their ends to the file that GPUPROV_LEASES names. A run without this
    variable uses no leases; a file that cannot be read, or lacks the node, is a reason.
    """
    path = os.environ.get("GPUPROV_LEASES")
    if not path:
        return ""
    try:
        result = json.loads(Path(path).read_text("utf-8"))
        if node in result["lost"]:
            return str(result["lost"][node])
        until = float(result["until"][node])
    except (OSError, ValueError, KeyError, TypeError):
        return "the node is not leased to this run"
    if time.clock_gettime(time.CLOCK_BOOTTIME) > until:
        return "the node's lease was not renewed in time: gpuprov was killed, or lost the connection"
    return ""

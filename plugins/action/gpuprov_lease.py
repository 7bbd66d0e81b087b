# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Says whether a node is still leased to the run; see plugins/modules/gpuprov_lease.yml."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Runs on the controller alone: gpuprov renews the leases, and writes down until when they hold."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        node = (task_vars or {}).get("inventory_hostname", "")
        result["complaint"] = _complaint(str(node))
        return result


def _complaint(node: str) -> str:
    """Why the node is not the run's; empty where it is, or where no one speaks of leases."""
    path = os.environ.get("GPUPROV_LEASES")
    if not path:
        return ""
    try:
        told = json.loads(Path(path).read_text("utf-8"))
        if node in told["lost"]:
            return str(told["lost"][node])
        until = float(told["until"][node])
    except (OSError, ValueError, KeyError, TypeError):
        return "the node is not leased to this run"
    if time.clock_gettime(time.CLOCK_BOOTTIME) > until:
        return "the node's lease was not renewed in time: gpuprov was killed, or lost the node"
    return ""

"""Roles on one lab node, and what they changed."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from gpuprov.apply.context import Options, RunContext
from gpuprov.apply.playbook import NodeOutcome, run_playbook
from gpuprov.lab import Node
from gpuprov.model.lock import Lock

WOULD_BRING = "Say what would be installed, removed and remembered, as --check cannot try"
"""The task that says of packages what --check cannot try."""


def play(
    lock: Lock, node: Node, folder: Path, *roles: str, check: bool = False, **variables: Any
) -> tuple[NodeOutcome, list[str]]:
    """Run roles; the outcome, and the names of the tasks that changed something.

    Args:
        folder: gets a folder of its own for each run.
        variables: of the roles, over those of the lock.
    """
    events: list[dict[str, Any]] = []
    run = RunContext(
        lock, Path(tempfile.mkdtemp(prefix="run-", dir=folder)), Options(check=check), listen=events.append
    )
    nodes = {node.name: {"gpuprov_roles": list(roles), **variables}}
    outcomes = run_playbook("site", nodes, run)
    return outcomes[node.name], [event["task"] for event in events if event.get("status") == "changed"]

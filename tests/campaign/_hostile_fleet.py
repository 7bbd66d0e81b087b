"""A fleet with one hostile node; only the SSH connection is simulated."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gpuprov.model.lock import Lock, read_lock
from gpuprov.model.rollout import Rollout
from gpuprov.ssh import transport
from gpuprov.ssh.transport import ConnectionLimits, Output, Session, Target
from gpuprov.upgrade.context import UpgradeContext
from tests import RECORDED_FACTS, RECORDED_LOCK

BAD, GOOD = "node2", ("node1", "node3")
"""The hostile node, and the sound ones."""
NONCE = re.compile(r"<<gpuprov ([0-9a-f]{16}) no-python>>")

Answer = Callable[[str], bytes]
"""Function from a question's nonce to a node's output."""


def framed(body: bytes, nonce: str) -> bytes:
    """Return a body with the probe's header."""
    return f"\n<<gpuprov {nonce} {len(body)} {hashlib.sha256(body).hexdigest()}>>\n".encode() + body + b"\n"


def answering(document: Any) -> Answer:
    """Return a complete answer with a document."""
    body = base64.b64encode(zlib.compress(json.dumps(document).encode(), 1))
    return lambda nonce: framed(body, nonce)


def healthy() -> dict[str, Any]:
    """Return the facts of a recorded node that matches its lock, with the gate's additional facts."""
    document: dict[str, Any] = json.loads(RECORDED_FACTS.read_text())
    gate: dict[str, Any] = {
        "offered": [],
        "kept": [],
        "lease": None,
        "architecture": "amd64",
        "awake_s": 9000.0,
    }
    document["collectors"] |= {"gate": gate, "gpu_use": {"processes": {}, "containers": []}}
    document["collectors"] = {"state": _STATE, "hcas": [], "nics": []} | document["collectors"]
    return document


_STATE = {
    "reboot_required": False,
    "reboot_packages": [],
    "secure_boot": None,
    "cloud_init": "",
    "foreign_drivers": [],
    "free_mib": {"/": 90000, "/boot": 900},
    "device_nodes": [],
    "package_manager_busy": None,
}


class PaperSession(Session):
    """A session in which every command has the same answer."""

    def __init__(self, target: Target, limits: ConnectionLimits, answer: Answer) -> None:
        super().__init__(target, limits)
        self._answer = answer

    def run(self, command: str, stdin: bytes = b"") -> Output:
        """Return the node's output; the answer also determines the exit code."""
        found = NONCE.search(command)
        said = self._answer(found[1] if found else command)
        return Output(said[0] % 3 if said and not found else 0, said, said[:100])


class Fleet:
    """Three nodes of the recorded lock; the sound ones answer with `good`.

    Args:
        folder: folder for the runs of upgrades.
    """

    def __init__(self, folder: Path) -> None:
        recorded = read_lock(RECORDED_LOCK)
        [(name, group)] = recorded.groups.items()
        hosts = dict.fromkeys(sorted([BAD, *GOOD]), "127.0.0.1")
        groups = {name: group.model_copy(update={"hosts": hosts})}
        self.lock: Lock = recorded.model_copy(update={"groups": groups})
        self.names = list(hosts)
        self.good = answering(healthy())
        self.folder = folder

    def context(self, **hooks: Any) -> UpgradeContext:
        """Return the context of an upgrade to the fleet's current lock."""
        rollout = Rollout.model_validate({"hooks": hooks, "settle_s": 0})
        lock = self.lock.model_copy(update={"rollout": rollout})
        return UpgradeContext(lock, self.folder, old=lock, source=self.folder)

    @contextmanager
    def in_which(self, bad: Answer, good: Answer | None = None) -> Iterator[None]:
        """Let one node answer with `bad`, the others with `good`."""

        @contextmanager
        def opened(node: Target, limits: ConnectionLimits) -> Iterator[Session]:
            yield PaperSession(node, limits, bad if node.name == BAD else good or self.good)

        with patch.object(transport, "open_session", opened):
            yield

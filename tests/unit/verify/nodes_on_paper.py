"""Nodes that answer from a recording; the suite runs on them in this process as on real nodes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from testinfra.host import Host

from gpuprov.errors import Unreachable
from gpuprov.model.lock import Lock, LockedGroup, read_lock
from gpuprov.verify.event_log import EventLog, read_events
from gpuprov.verify.nodes import NodeUnderTest
from gpuprov.verify.plugin import Verification
from gpuprov.verify.sharing import rules
from gpuprov.verify.shell import Shell, ShellBackend
from gpuprov.verify.verdict import NodeVerdict
from tests import RECORDED, RECORDED_LOCK

VERSION = "535.309.01"
KERNEL = "6.1.0-56-amd64"

OFFERED = "methods that sshd offers from outside"

Answers = dict[str, tuple[int, str, str]]
Change = Callable[[Answers], None]


def locked_group(*hosts: str, kernel: str = KERNEL) -> LockedGroup:
    """Return the group of the recorded node with other hosts, at addresses without a server."""
    (group,) = read_lock(RECORDED_LOCK).groups.values()
    settings = {**group.settings, "kernel": group.settings["kernel"].model_copy(update={"value": kernel})}
    return group.model_copy(update={"hosts": dict.fromkeys(hosts, "127.0.0.1"), "settings": settings})


def lock_of(*hosts: str) -> Lock:
    """Return a lock of one group."""
    return Lock(inputs="0" * 64, groups={"train": locked_group(*hosts)})


class PaperShell(Shell):
    """Fake shell with recorded answers; any other command fails with status 127.

    Args:
        breaks_at: part of a command that breaks the connection.
    """

    def __init__(self, answers: Answers, breaks_at: str | None) -> None:
        super().__init__([], timeout_s=0)
        self.answers, self.breaks_at = answers, breaks_at

    def open(self) -> None:
        """Do nothing."""

    def another(self) -> PaperShell:
        """Return a shell with the same answers."""
        return PaperShell(self.answers, self.breaks_at)

    def ask(self, command: str, *, quoted: bool = True) -> tuple[int, bytes, bytes]:
        """Return status, output and errors recorded for a command; 127 if none are.

        Raises:
            Unreachable: the connection is to break at this command.
        """
        if self.breaks_at and self.breaks_at in command:
            raise Unreachable("Connection reset by peer")
        code, out, err = self.answers.get(command, (127, "", f"sh: 1: not recorded: {command}"))
        return code, out.encode(), err.encode()


def recorded() -> Answers:
    """Return the recorded answers of a provisioned node."""
    return {
        command: tuple(answer)
        for command, answer in json.loads((RECORDED / "verify/debian12-a100x4.json").read_text()).items()
    }


def paper_node(name: str, group: LockedGroup, change: Change, breaks_at: str | None = None) -> NodeUnderTest:
    """Return a node with the recorded answers and one change."""
    answers = recorded()
    change(answers)
    backend = ShellBackend(name, PaperShell(answers, breaks_at), budget_s=60)
    backend.shared = rules(Lock(inputs="0" * 64, groups={"train": group}))[name]
    host = Host(backend)
    backend.set_host(host)
    offered = answers.get(OFFERED, (0, "publickey,password", ""))[1].split(",")
    ports = dict.fromkeys((22, group.connection_of(name).port or 22), offered)
    return NodeUnderTest(name, group, backend, host, ports=ports)


def judge(nodes: list[NodeUnderTest], folder: Path) -> dict[str, NodeVerdict]:
    """Run the suite on nodes; return node → verdict."""
    account = folder / "account.jsonl"
    options = [
        "-q",
        "-c",
        os.devnull,
        "--rootdir",
        str(folder),
        "-p",
        "no:cacheprovider",
        "-p",
        "no:testinfra",
        "--tb=no",
        "-p",
        "no:unraisableexception",  # it collects garbage five times a session
    ]
    pytest.main(
        [*options, "--pyargs", "gpuprov.verify.suite"], plugins=[Verification(nodes, EventLog(account))]
    )
    return {node.name: node for node in read_events(account, [node.name for node in nodes], "cut short")}

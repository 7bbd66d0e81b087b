"""Fake nodes that run the real lease program, and a clock that the test sets."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuprov.apply import lease_manager
from gpuprov.apply.node import lease, main
from gpuprov.errors import Unreachable
from gpuprov.model.lock import Lock, read_lock
from gpuprov.ssh.contained import contained
from gpuprov.ssh.transport import Target
from tests import RECORDED_LOCK


class PaperNodes:
    """Fake nodes with leases; `dark` ones are unreachable, at the ports in `ports`.

    Attributes:
        now: time of the clocks of nodes and controller in seconds.
        clock: source of a node's time since boot.
        booted: node → time of its boot by that clock.
        asked: (act, names) of each request to nodes.
        slow: (node, act) → seconds until the node answers.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.folder, self.names, self.now = folder, names, 1_000_000.0
        self.dark: set[str] = set()
        self.ports: dict[str, int] = {}
        self.asked: list[tuple[str, list[str]]] = []
        self.slow: dict[tuple[str, str], float] = {}
        self._one = threading.Lock()
        monkeypatch.setattr(lease_manager, "ask_nodes", self._ask_nodes)
        monkeypatch.setattr(lease_manager, "uptime", lambda: self.now)
        monkeypatch.setattr(lease, "time", SimpleNamespace(time=lambda: self.now))
        self.clock: Callable[[], float] = lambda: self.now
        self.booted: dict[str, float] = {}

    def lock(self, **connection: Any) -> Lock:
        """Return the recorded lock with these nodes."""
        recorded = read_lock(RECORDED_LOCK)
        [(name, group)] = recorded.groups.items()
        way = group.connection.model_copy(update=connection)
        mine = {"hosts": dict.fromkeys(self.names, "127.0.0.1"), "connection": way}
        return recorded.model_copy(update={"groups": {name: group.model_copy(update=mine)}})

    def do(self, name: str, act: str, *arguments: Any) -> Any:
        """Run an act of the lease program on one node."""
        with self._one, pytest.MonkeyPatch.context() as patch:
            home = self.folder / "nodes" / name
            patch.setattr(lease, "FOLDER", str(home))
            patch.setattr(lease, "PATH", str(home / "lease.json"))
            patch.setattr(lease, "RUN", str(home / "run"))
            booted = self.booted.get(name, 0.0)
            patch.setattr(lease, "now", lambda: (f"boot {booted}", self.clock() - booted))
            if act == "current":
                return lease.current()
            return json.loads(json.dumps(main.ACTS[act](*arguments)))

    def give(self, name: str, run: str, holder: str = "x@y", seconds: float = 600.0) -> None:
        """Give a node to another controller's run."""
        assert self.do(name, "take", run, holder, seconds)["run"] == run

    @property
    def holders(self) -> dict[str, str]:
        """Node → the run that holds it now."""
        result = {name: self.do(name, "current") for name in self.names}
        return {name: lease["run"] for name, lease in result.items() if lease}

    def _answer(self, name: str, asked: dict[str, Any], read: Callable[[Any], Any]) -> Any:
        """Do what a node is asked, and return its parsed answer, at once or after a while."""
        answer = read(self.do(name, asked["act"], *asked["arguments"]))
        time.sleep(self.slow.get((name, asked["act"]), 0.0))
        return answer

    def _ask_nodes(
        self,
        modules: tuple[str, ...],
        ways: Iterable[Target],
        questions: dict[str, Any],
        *,
        read: Callable[[Any], Any],
        **how: Any,
    ) -> dict[str, Any]:
        """Return each node's answer; `Unreachable` for a dark node or a wrong port."""
        answers = {}
        ways = list(ways)
        for way in ways:
            asked = questions[way.name]
            if way.name in self.dark or way.connection.port != self.ports.get(way.name, way.connection.port):
                answers[way.name] = Unreachable("no SSH on port 22: timed out")
            else:
                answers[way.name] = contained(way.name, partial(self._answer, way.name, asked, read))
        if ways:
            self.asked.append((questions[ways[0].name]["act"], [way.name for way in ways]))
        return answers

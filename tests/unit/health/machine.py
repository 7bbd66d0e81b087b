"""A composed machine on which the program runs, with simulated clocks."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from gpuprov.health import look, machine, program
from gpuprov.health.program import Config
from tests.unit.doctor.machines import Collectors, as_examined, bare_metal

BOOT = "6f1d3a52-7c1e-4f0e-9a55-0123456789ab"


class Machine:
    """A machine whose collectors answer with changeable values.

    Attributes:
        collectors: raw values; the kernel log's times are as at the examination, so that it does not age.
        uptime: seconds since boot.
        wall: seconds since the epoch.
        changing: the run or process that changes the node, "" for none.
        stuck: name of a program → PIDs of its processes that do not end.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.collectors: Collectors = bare_metal()
        self.uptime, self.wall, self.boot = 5000.0, 1_795_000_000.0, BOOT
        self.changing, self.stuck = "", dict[str, list[int]]()
        self.config = Config()
        self.asked: list[list[str]] = []
        monkeypatch.setattr(look, "collect", self._collect)
        monkeypatch.setattr(machine, "uptime", lambda: self.uptime)
        monkeypatch.setattr(machine, "boot_id", lambda: self.boot)
        monkeypatch.setattr(machine, "changing", lambda: self.changing)
        monkeypatch.setattr(machine, "leftovers", lambda name: self.stuck.get(name, []))
        monkeypatch.setattr(time, "time", lambda: self.wall)

    def _collect(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the document of the requested collectors."""
        self.asked.append(parameters["collectors"])
        answer = as_examined(self.collectors).to_answer()
        kept = {
            name: answer["collectors"][name]
            for name in parameters["collectors"]
            if name in answer["collectors"]
        }
        return {**answer, "collectors": kept}

    def judge_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Judge equal values of the collectors only once: a day has 1,440 runs, and these logs do not age."""
        judge = look._by_concerns
        known: dict[tuple[str, tuple[str, ...]], Any] = {}

        def remembered(seen: Any, is_wanted: Any, without: Collection[str] = ()) -> Any:
            key = json.dumps(seen.collectors, sort_keys=True), tuple(without)
            if key not in known:
                known[key] = judge(seen, is_wanted, without)
            return deepcopy(known[key])

        monkeypatch.setattr(look, "_by_concerns", remembered)

    def run(self, times: int = 1) -> dict[str, Any]:
        """Let an interval pass and run, as often as stated; return the last document."""
        for _ in range(times):
            self.pass_time(self.config.interval)
            document = program.run(self.config, str(self.folder))
        return document

    def pass_time(self, seconds: float) -> None:
        """Let time pass by both clocks."""
        self.uptime += seconds
        self.wall += seconds

    def reboot(self, uptime: float = 40.0) -> None:
        """Boot, with the volatile files of the program lost."""
        self.boot = f"{self.boot[:-1]}{int(self.boot[-1], 16) ^ 1:x}"
        self.uptime = uptime
        for path in self.folder.iterdir():
            path.unlink()

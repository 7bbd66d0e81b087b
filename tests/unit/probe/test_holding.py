"""How long a run holds a node, and the places of processors: what the collectors send, parsed."""

from __future__ import annotations

import inspect
import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from gpuprov.access import deadman
from gpuprov.apply.node import lease
from gpuprov.drift.judge import judge
from gpuprov.probe.facts import Facts
from gpuprov.probe.node import services
from gpuprov.probe.node.hardware import _places
from gpuprov.probe.parse.hardware import parse_cpu
from gpuprov.probe.parse.state import LONGEST_S, Holding, parse_holding

NOW = 1_800_000_000.0


def held(stated: Any = None, armed: Any = None) -> Holding:
    """Return the parsed answer of a node with this lease, and this time at which the switch was armed."""
    return parse_holding({"lease": stated and json.dumps(stated), "armed": armed, "now": NOW})


def test_a_lease_that_has_not_ended_counts() -> None:
    assert held() == Holding(None, None)
    assert held({"since": NOW - 90, "until": NOW + 60}) == Holding(90.0, None)
    assert held({"since": NOW - 90, "until": NOW - 1}) == Holding(None, None)
    assert held(armed=NOW - 45) == Holding(None, 45.0)


@pytest.mark.parametrize(
    "stated", [[], 7, {"until": "x"}, {"until": NOW + 9}, {"until": NOW + 9, "since": None}]
)
def test_a_damaged_lease_is_none(stated: Any) -> None:
    assert held(stated) == Holding(None, None)
    assert parse_holding({"lease": "{", "armed": None, "now": NOW}) == Holding(None, None)


@pytest.mark.parametrize(("since", "seconds"), [(-1e15, LONGEST_S), (NOW + 50, 0.0)])
def test_a_duration_has_limits(since: float, seconds: float) -> None:
    assert held({"since": since, "until": NOW + 60}).lease_s == seconds


def test_drift_has_the_holding_of_its_node() -> None:
    raw = {"lease": json.dumps({"since": NOW - 90, "until": NOW + 60}), "armed": None, "now": NOW}
    assert judge("n", Facts("n", "", 0.1, {"holding": raw}), []).held == Holding(90.0, None)
    assert judge("n", Facts("n", "", 0.1, {"holding": {**raw, "lease": None}}), []).held is None
    assert judge("n", Facts("n", "", 0.1, {"holding": {"error": "timed out"}}), []).held is None


CPUINFO = "".join(
    f"processor\t: {cpu}\nmodel name\t: X\nphysical id\t: {cpu % 2}\ncore id\t\t: {cpu // 2}\n\n"
    for cpu in range(4)
)


def test_places_of_processors_are_those_of_cpuinfo() -> None:
    rows = _places(CPUINFO)
    assert rows == ["0 0 0", "1 1 0", "2 0 1", "3 1 1"]
    assert parse_cpu({"places": rows}).places == {0: (0, 0), 1: (1, 0), 2: (0, 1), 3: (1, 1)}
    assert parse_cpu({"places": ["x", "1 2", "0 0 0 0", "9 9 9"]}).places == {9: (9, 9)}


def test_without_sockets_in_cpuinfo_the_places_are_those_of_sys() -> None:
    rows = _places("processor\t: 0\nBogoMIPS\t: 2000.00\n\nprocessor\t: 1\nBogoMIPS\t: 2000.00\n")
    assert parse_cpu({"places": rows}).places.keys() >= {0}


def test_the_lease_that_a_run_takes_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "PATH", str(tmp_path / "lease.json"))
    monkeypatch.setattr(lease, "alone", lambda name: nullcontext())
    monkeypatch.setattr(lease, "RUN", str(tmp_path))
    lease.take("20260131-upgrade-1", "me@here", 60.0)
    text = (tmp_path / "lease.json").read_text()
    later = parse_holding({"lease": text, "armed": None, "now": time.time() + 30})
    assert later.lease_s == pytest.approx(30, abs=5)
    assert parse_holding({"lease": text, "armed": None, "now": time.time() + 90}) == Holding(None, None)


def test_the_files_are_those_that_lease_and_switch_write() -> None:
    source = inspect.getsource(services.holding)
    assert f'"{lease.PATH}"' in source
    assert f'"{deadman.FOLDER}/armed"' in source

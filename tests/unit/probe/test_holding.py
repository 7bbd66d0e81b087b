"""How long a run holds a node, and the places of processors: what the collectors send, parsed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuprov.drift.judge import judge
from gpuprov.probe.facts import Facts
from gpuprov.probe.node.hardware import _places
from gpuprov.probe.parse.hardware import parse_cpu
from gpuprov.probe.parse.state import LONGEST_S, Holding, parse_holding

NOW = 1_800_000_000.0


def held(lease: Any = None, armed: Any = None) -> Holding:
    """Return the parsed answer of a node with this lease, and this time at which the switch was armed."""
    return parse_holding({"lease": lease and json.dumps(lease), "armed": armed, "now": NOW})


def test_a_lease_that_has_not_ended_counts() -> None:
    assert held() == Holding(None, None)
    assert held({"since": NOW - 90, "until": NOW + 60}) == Holding(90.0, None)
    assert held({"since": NOW - 90, "until": NOW - 1}) == Holding(None, None)
    assert held(armed=NOW - 45) == Holding(None, 45.0)


@pytest.mark.parametrize(
    "lease", [[], 7, {"until": "x"}, {"until": NOW + 9}, {"until": NOW + 9, "since": None}]
)
def test_a_damaged_lease_is_none(lease: Any) -> None:
    assert held(lease) == Holding(None, None)
    assert parse_holding({"lease": "{", "armed": None, "now": NOW}) == Holding(None, None)


@pytest.mark.parametrize(("since", "seconds"), [(-1e300, LONGEST_S), (NOW + 50, 0.0)])
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

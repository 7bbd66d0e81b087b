"""The ledger of machines: faults that come and go, hours out of service, serial numbers across names."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuprov.doctor.fault import Fault
from gpuprov.doctor.judge import Diagnosis
from gpuprov.errors import Unreachable
from gpuprov.history import History
from gpuprov.history.ledger import (
    EVENTS,
    Event,
    Kind,
    machine_key,
    of_diagnosis,
    out_now,
    standing,
    worst,
)

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def event(
    kind: Kind, hour: int, *, machine: str = "SN7", unit: str = "", node: str = "gpu01", what: str = ""
) -> Event:
    """Return an event of a machine at an hour of one day."""
    return Event(
        f"2026-01-31T{hour:02}:00:00+00:00", "/fleet.lock.yml", node, machine, unit, kind, what, "run"
    )


def diagnosis(*rules: str, unknown: tuple[str, ...] = (), host: str = "gpu01") -> Diagnosis:
    """Return the diagnosis of a machine with broken faults by these rules, and rules that could not judge."""
    faults = tuple(Fault("broken", f"{rule} is wrong", rule=rule) for rule in rules)
    return Diagnosis(host, faults, tuple((rule, "no log") for rule in unknown), machine="SN7")


def test_a_fault_is_recorded_when_it_appears_and_when_it_is_gone() -> None:
    ledger: list[Event] = []
    for found, kinds in (
        (diagnosis("a.b"), [("fault", "a.b")]),
        (diagnosis("a.b"), []),
        (diagnosis("a.b", "c.d"), [("fault", "c.d")]),
        (diagnosis("c.d", unknown=("a.b",)), []),
        (Diagnosis("gpu01", failure=Unreachable("no route")), []),
        (diagnosis("c.d"), [("gone", "a.b")]),
        (diagnosis("a.b", "c.d", host="renamed"), [("fault", "a.b")]),
    ):
        new = of_diagnosis(found, "/f", "2026-01-31T00:00:00+00:00", ledger)
        assert [(each.kind, each.what) for each in new] == kinds
        ledger += new
    [offender] = worst(ledger, now=NOW)
    assert (offender.key, offender.nodes) == ("SN7", ["gpu01", "renamed"])
    assert (offender.counts["fault"], offender.rules) == (3, {"a.b": 2, "c.d": 1})


def test_a_node_that_states_other_faults_each_time_adds_a_limited_number_of_events() -> None:
    ledger: list[Event] = []
    for turn in range(8):
        rules = [f"rule{turn}.number{number}" for number in range(EVENTS - 50)]
        new = of_diagnosis(diagnosis(*rules), "/f", "2026-01-31T00:00:00+00:00", ledger)
        assert len(new) <= EVENTS
        ledger += new
    for left in (EVENTS, EVENTS, EVENTS, 0):  # what was left out follows
        new = of_diagnosis(diagnosis("last.one"), "/f", "2026-01-31T00:00:00+00:00", ledger)
        assert len(new) <= left
        ledger += new
    assert standing(ledger, "SN7") == {("", "last.one")}


def test_hours_out_of_service_and_who_is_worst() -> None:
    events = [
        event("out", 1, unit="G1"), event("reset", 1, unit="G1"), event("back", 3, unit="G1"),
        event("fault", 4, machine="SN8", node="gpu02", what="a.b"),
        event("out", 10, machine="SN9", node="gpu03"), event("power", 10, machine="SN9", node="gpu03"),
        event("accepted", 11, machine="SN10", node="gpu04"),
    ]  # fmt: skip
    found = worst(events, now=NOW)
    assert [(each.key, each.is_gpu, each.out_s / 3600, each.is_out) for each in found] == [
        ("SN7", False, 2.0, False),
        ("SN9", False, 2.0, True),
        ("G1", True, 2.0, False),
        ("SN8", False, 0.0, False),
    ]
    late = worst(events, since="2026-01-31T02:00:00+00:00", now=NOW)
    assert {each.key: each.out_s / 3600 for each in late} == {"SN9": 2.0, "SN7": 1.0, "G1": 1.0, "SN8": 0.0}
    assert {each.key: each.counts["reset"] for each in late}["SN7"] == 0


def test_a_gpu_is_back_with_its_node_also_if_the_repair_that_returned_it_was_for_another() -> None:
    events = [event("out", 1, unit="G1"), event("out", 2, unit="G2"), event("back", 3, unit="G2")]
    found = {each.key: (each.out_s / 3600, each.is_out) for each in worst(events, now=NOW)}
    assert found == {"SN7": (2.0, False), "G1": (2.0, False), "G2": (1.0, False)}


def test_nodes_that_repairs_left_out() -> None:
    events = [event("out", 1), event("back", 2), event("out", 3, node="gpu02"), event("out", 4, node="gpu03")]
    assert out_now(events, "/fleet.lock.yml") == {"gpu02": "run", "gpu03": "run"}
    assert out_now(events, "/other.lock.yml") == {}


def test_a_node_without_a_serial_number_is_known_by_its_name() -> None:
    assert machine_key("", "gpu01") == "name:gpu01"
    assert machine_key("SN7", "gpu01") == "SN7"


def test_a_run_that_is_recorded_again_replaces_its_events(tmp_path: Path) -> None:
    with History(tmp_path / "h.sqlite") as history:
        history.record_events([event("out", 1)], run="run")
        history.record_events([event("out", 1), event("back", 2)], run="run")
        assert [each.kind for each in history.events()] == ["out", "back"]
        assert history.events("SN8") == []
        assert len(history.events("SN7")) == 2


def test_a_history_of_an_earlier_version_gets_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    with History(path):
        pass
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE events")
        database.execute("PRAGMA user_version = 3")
    database.close()
    with History(path) as history:
        assert history.events() == []


@pytest.mark.parametrize("kind", ["gone", "accepted"])
def test_what_is_no_fault_makes_no_offender(kind: Kind) -> None:
    assert worst([event(kind, 1)], now=NOW) == []

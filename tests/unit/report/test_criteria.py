"""Criteria: pass, fail, no evidence, not our layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpuprov.accept.judge import Acceptance, judge
from gpuprov.accept.rates import Rate
from gpuprov.doctor.judge import Diagnosis, rules
from gpuprov.drift.judge import Difference, NodeDrift
from gpuprov.errors import InvalidInput
from gpuprov.history import History, Run
from gpuprov.history.ledger import Event, Kind
from gpuprov.history.record import of_acceptance, of_diagnoses
from gpuprov.model.documents import parse_document
from gpuprov.model.floors import NAMES
from gpuprov.report import criteria
from gpuprov.report.criteria import (
    PUBLIC,
    Criteria,
    Criterion,
    Evidence,
    Newest,
    criteria_lines,
    judge_criteria,
    read_criteria,
)
from tests import ROOT
from tests.unit.accept.recorded import recorded
from tests.unit.hostile.timing import seconds_of

NOW = datetime(2026, 1, 31, tzinfo=UTC)
AT, OLD = "2026-01-30T00:00:00+00:00", "2025-12-01T00:00:00+00:00"


def judged(result: str, *, at: str = AT, checks: tuple[str, ...] = ("a.b", "c.d")) -> Newest:
    """Return the results of two nodes; the second has this one."""
    differs = (Difference("a.b", 1, 2, "error", None, False),) if result == "differs" else ()
    second = NodeDrift(
        "n2", "drifted" if differs else "in_sync", differs, "no SSH" if result == "lost" else None
    )
    return {"n1": (AT, ("a.b", "c.d"), NodeDrift("n1", "in_sync")), "n2": (at, checks, second)}


def result(criterion: Criterion, **seen: object) -> tuple[str, str]:
    """Return result and value of a criterion for two nodes, by this evidence."""
    stated = Criteria(title="t", criteria=[criterion])
    [found] = judge_criteria(stated, Evidence(["n1", "n2"], **seen), NOW)  # type: ignore[arg-type]
    return found.result, found.value


CHECKS = Criterion(id="a", text="t", source="s", checks=["a.b", "c.d"])
RULES = Criterion(id="a", text="t", source="s", rules=["a.b"])
WEEKLY = Criterion(id="a", text="t", source="s", accepted_days=7)


@pytest.mark.parametrize(
    ("newest", "outcome"),
    [
        (judged("passes"), ("pass", "2 of 2 nodes")),
        (judged("differs"), ("fail", "1 of 2 nodes: n2 a.b")),
        (judged("passes", at=OLD), ("no evidence", "1 of 2 nodes without a recent result: n2")),
        (judged("lost"), ("no evidence", "1 of 2 nodes without a recent result: n2")),
        (judged("passes", checks=("a.b",)), ("no evidence", "1 of 2 nodes without a recent result: n2")),
        ({}, ("no evidence", "2 of 2 nodes without a recent result: n[1-2]")),
    ],
)
def test_every_node_needs_a_recent_result(newest: Newest, outcome: tuple[str, str]) -> None:
    assert result(CHECKS, runs={"verify": newest}) == outcome
    assert result(CHECKS, runs={"drift": newest}) == outcome
    if "c.d" in str(newest.get("n2", ("", ()))[1]):
        assert result(RULES, runs={"doctor": newest}) == outcome


def test_measurements_are_those_of_accept() -> None:
    slow = Criterion(id="a", text="t", source="s", measured=["bf16"])
    newest = {name: (AT, ("bf16.slow",), NodeDrift(name, "in_sync")) for name in ("n1", "n2")}
    assert result(slow, runs={"accept": newest}) == ("pass", "2 of 2 nodes")
    assert result(slow, runs={"verify": newest})[0] == "no evidence"


def event(node: str, kind: Kind, at: str = AT) -> Event:
    """Return an event of a machine in the ledger."""
    return Event(at, "f", node, "SN", "", kind)


@pytest.mark.parametrize(
    ("events", "outcome"),
    [
        ([event("n1", "accepted"), event("n2", "accepted")], "pass"),
        ([event("n1", "accepted"), event("n2", "accepted", OLD)], "fail"),
        ([event("n1", "accepted")], "fail"),
        ([event("n1", "accepted"), event("n2", "accepted"), event("n2", "rejected")], "fail"),
        ([event("n1", "accepted"), event("n2", "rejected"), event("n2", "accepted")], "pass"),
    ],
)
def test_a_test_of_each_node_in_the_stated_days(events: list[Event], outcome: str) -> None:
    assert result(WEEKLY, runs={}, events=events)[0] == outcome


def test_the_shipped_list_names_what_exists() -> None:
    """State a public source for each criterion, and checks, rules and measurements that gpuprov has."""
    stated = read_criteria(PUBLIC)
    roles = "".join(path.read_text() for path in (ROOT / "gpuprov/roles").glob("*.py"))
    known = {rule.name for rule in rules()}
    for each in stated.criteria:
        assert each.source.startswith("https://")
        assert set(each.rules) <= known
        assert set(each.measured) <= {*NAMES}, each.measured
        assert all(f'"{check}"' in roles for check in each.checks), each.checks


def test_lines() -> None:
    """Check the lines about criteria that pass, and about those that are not gpuprov's."""
    stated = Criteria(
        title="A list", criteria=[CHECKS, Criterion(id="b", text="t", source="s", not_ours="an audit")]
    )
    found = judge_criteria(stated, Evidence(["n1", "n2"], {"verify": judged("passes")}), NOW)
    lines = list(criteria_lines(stated.title, found))
    assert lines[0] == "A list"
    assert lines[2].split() == ["a", "pass", "2", "of", "2", "nodes", "gpuprov", "verify"]
    assert lines[-1] == "1 pass, 1 not our layer"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title: t\ncriteria:\n- {id: a, text: t, source: s}\n", "exactly one of checks"),
        ("title: t\ncriteria:\n- {id: a, text: t, source: s, checks: [x], rules: [y]}\n", "exactly one of"),
        ("title: t\ncriteria: []\n", "criteria"),
        ("title: t\ncriteria:" + 2 * "\n- {id: a, text: t, source: s, rules: [x]}" + "\n", "a twice"),
    ],
)  # fmt: skip
def test_mistakes_in_a_list(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "criteria.yml"
    path.write_text(text)
    with pytest.raises(InvalidInput) as refused:
        read_criteria(str(path))
    assert message in str(refused.value)


def test_a_long_list_takes_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read a list whose ids differ: each was compared with all."""
    text = "title: t\ncriteria:\n" + "".join(
        f"- {{id: a{n}, text: t, source: s, rules: [x]}}\n" for n in range(20_000)
    )
    long = parse_document(text, Criteria, name="long")
    monkeypatch.setattr(criteria, "read_document", lambda *_, **__: long)
    assert seconds_of(lambda: read_criteria("long")) < 1


def results(folder: Path, run: Run, criterion: Criterion) -> list[str]:
    """Return the result of a criterion for node n1 alone, and for n2 alone, after a run was recorded."""
    with History(folder / f"{run.id}.sqlite") as history:
        history.record(run)
        newest = history.newest(run.verb, "fleet")
    stated = Criteria(title="t", criteria=[criterion])
    later = datetime.now(UTC)
    return [
        judge_criteria(stated, Evidence([node], {run.verb: newest}), later)[0].result for node in ("n1", "n2")
    ]


def test_what_another_node_has_measured_is_no_evidence_of_a_node(tmp_path: Path) -> None:
    """Count only what was measured on the node itself."""
    rate = Rate("0", "bf16", 600.0, "TFLOP/s")
    both = [Acceptance("n1", rates=(rate, replace(rate, measure="h2d"))), Acceptance("n2", rates=(rate,))]
    run = of_acceptance("20260131-000000-accept-0000", both, "fleet")
    for measure, expected in (("h2d", ["pass", "no evidence"]), ("bf16", ["pass", "pass"])):
        stated = Criterion(id="a", text="t", source="s", measured=[measure])
        assert results(tmp_path, run, stated) == expected


SPOILED: dict[str, tuple[set[str], Callable[[dict[str, Any]], object]]] = {
    "nothing": (set(), lambda _: None),
    "a wrong product": ({"bf16"}, lambda row: row["matrix"]["bf16"].update(off=5.0)),
    "a product of another format": ({"bf16"}, lambda row: row["matrix"]["fp8"].update(repeats=False)),
    "no product": ({"bf16"}, lambda row: row["matrix"].update(bf16={"error": "the process ended"})),
    "no memory test": ({"memory_read"}, lambda row: row["pattern"].update(bytes=2**30)),
    "no memory": ({"memory_read"}, lambda row: row.update(memory={"error": "12 MiB of memory are free"})),
    "no copies": ({"h2d"}, lambda row: row.update(host={"error": "the data changes"})),
    "no GPU": (
        {"bf16", "memory_read", "h2d", "all_reduce"},
        lambda row: row.update(device={"error": ""}),
    ),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_measurement_that_is_wrong_or_lacks_a_gpu_fails(how: str, tmp_path: Path) -> None:
    """Fail the criteria that it concerns, and no other, though rates of the second GPU are good."""
    failing, spoil = SPOILED[how]
    measured = recorded("quick")
    spoil(measured["gpus"][0])
    run = of_acceptance("20260131-000000-accept-0000", judge({"n1": measured}), "fleet")
    for measure in ("bf16", "memory_read", "h2d", "all_reduce"):
        stated = Criterion(id="a", text="t", source="s", measured=[measure])
        folder = tmp_path / measure
        folder.mkdir()
        assert results(folder, run, stated)[0] == ("fail" if measure in failing else "pass"), measure


@pytest.mark.parametrize(
    ("measure", "rule"),
    [
        ("all_reduce", "all_reduce.wrong"),
        ("all_gather", "nccl.error"),
        ("peer", "peer.wrong"),
        ("nvme_read", "nvme.error"),
        ("bf16_burst", "bf16.error"),
        ("h2d", "findings.more"),
    ],
)
def test_faults_that_concern_a_measurement(measure: str, rule: str) -> None:
    fault = Difference(rule, 1, 2, "error", None, False)
    newest = {name: (AT, (f"{measure}.slow",), NodeDrift(name, "drifted", (fault,))) for name in ("n1", "n2")}
    stated = Criterion(id="a", text="t", source="s", measured=[measure])
    assert result(stated, runs={"accept": newest}) == ("fail", f"2 of 2 nodes: n[1-2] {rule}")


def test_a_node_whose_rules_cannot_judge_takes_no_evidence_from_others(tmp_path: Path) -> None:
    blind = Diagnosis("n1", unknown=tuple((rule.name, "no answer") for rule in rules()))
    run = of_diagnoses([blind, Diagnosis("n2")], "fleet")
    stated = Criterion(id="a", text="t", source="s", rules=["bus.lost"])
    assert results(tmp_path, run, stated) == ["no evidence", "pass"]

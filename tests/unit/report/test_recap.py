"""Last lines of an apply: the result of each node, and where to find more."""

from __future__ import annotations

from typing import Any

import pytest

from gpuprov.apply.converge import Convergence
from gpuprov.apply.playbook import NodeOutcome
from gpuprov.drift.judge import NodeDrift
from gpuprov.report.recap import recap_lines, unexplained


def failed(**event: Any) -> Convergence:
    """Return the result of an apply in which a task failed on n1 with this event."""
    return Convergence({"n1": NodeOutcome(changed=3, compiled="6.1.0-1", failed=[event])})


def test_a_failure_is_one_line_and_claims_no_compilation() -> None:
    result = failed(role="docker", msg="E: no room\nW: old")
    assert list(recap_lines(result, None)) == ["n1  changed=3  FAILED  docker: E: no room"]


def test_nodes_that_did_not_answer_come_last() -> None:
    away = [NodeDrift(name, "unreachable", reason="no route") for name in ("n2", "n3")]
    assert list(recap_lines(failed(role="docker", msg="E"), None, away)) == [
        "n1  changed=3  FAILED  docker: E",
        "n[2-3]  UNREACHABLE  nothing was done",
    ]


@pytest.mark.parametrize(
    ("role", "msg", "asked"),
    [
        ("docker", "E: no room", ["n1"]),
        ("preflight", "the GPUs are in use by python (7); end these programs", []),
        (
            "system_tuning",
            "tuning.sysctl is still 1, overruled by /etc/sysctl.d/a.conf:1; remove that setting",
            [],
        ),
    ],
)
def test_the_doctor_is_named_where_nobody_has_said_what_is_wrong(
    role: str, msg: str, asked: list[str]
) -> None:
    assert unexplained(failed(role=role, msg=msg), None) == asked

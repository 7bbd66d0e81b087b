"""Steps of an upgrade: each node that failed has a reason."""

from __future__ import annotations

from gpuprov.apply.converge import Convergence
from gpuprov.apply.playbook import NodeOutcome
from gpuprov.drift.judge import NodeDrift
from gpuprov.upgrade.steps import _wrong


def test_each_way_to_fail_has_its_reason() -> None:
    outcomes = {
        "role": NodeOutcome(failed=[{"msg": "no space left"}]),
        "lost": NodeOutcome(unreachable="timed out"),
        "taken": NodeOutcome(refused="leased by x@y"),
        "well": NodeOutcome(),
        "gone": NodeOutcome(),
    }
    drift = {"gone": NodeDrift("gone", "unreachable", reason="the port is closed")}
    assert _wrong(Convergence(outcomes, drift), outcomes) == {
        "role": "no space left",
        "lost": "timed out",
        "taken": "leased by x@y",
        "gone": "the port is closed",
    }

"""Steps of an upgrade: each node that failed has a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuprov.apply.context import Options
from gpuprov.apply.converge import Convergence
from gpuprov.apply.playbook import NodeOutcome
from gpuprov.drift.judge import NodeDrift
from gpuprov.model.lock import read_lock
from gpuprov.model.rollout import Rollout
from gpuprov.upgrade import acceptance, steps
from gpuprov.upgrade.context import UpgradeContext
from gpuprov.upgrade.steps import UNSEEN, _wrong
from gpuprov.verify import NodeVerdict, Verdict
from tests import RECORDED_LOCK


def test_each_way_to_fail_has_its_reason() -> None:
    outcomes = {
        "role": NodeOutcome(failed=[{"msg": "no space left"}]),
        "lost": NodeOutcome(unreachable="timed out"),
        "taken": NodeOutcome(refused="leased by x@y"),
        "well": NodeOutcome(),
        "gone": NodeOutcome(),
    }
    drift = {"gone": NodeDrift("gone", "unreachable", reason="the port is closed")}
    drift["well"] = NodeDrift("well", "in_sync")
    assert _wrong(Convergence(outcomes, drift), outcomes, read_lock(RECORDED_LOCK)) == {
        "role": "no space left",
        "lost": "timed out",
        "taken": "leased by x@y",
        "gone": "the port is closed",
    }


def test_a_node_that_was_not_surveyed_after_its_change_has_failed() -> None:
    outcomes = {"changed": NodeOutcome(changed=1)}
    failed = _wrong(Convergence(outcomes), ["changed", "absent"], read_lock(RECORDED_LOCK))
    assert failed == {"changed": UNSEEN, "absent": UNSEEN}


@pytest.fixture
def context(tmp_path: Path) -> UpgradeContext:
    """Return the context of an upgrade of the nodes a and b, which are tested before they return."""
    lock = read_lock(RECORDED_LOCK)
    [(name, group)] = lock.groups.items()
    group = group.model_copy(update={"hosts": {"a": "10.0.0.1", "b": "10.0.0.2"}})
    lock = lock.model_copy(update={"rollout": Rollout(accept="quick", settle_s=0), "groups": {name: group}})
    return UpgradeContext(lock=lock, folder=tmp_path, options=Options(), old=lock, source=tmp_path)


def test_a_node_without_a_survey_a_verdict_or_a_measurement_has_failed(
    monkeypatch: pytest.MonkeyPatch, context: UpgradeContext, tmp_path: Path
) -> None:
    def surveyed(*_: Any, **__: Any) -> list[NodeDrift]:
        return [NodeDrift("a", "in_sync")]

    def verified(*_: Any, **__: Any) -> Verdict:
        return Verdict("", [NodeVerdict("a", "passed")])

    monkeypatch.setattr(steps, "survey", surveyed)
    monkeypatch.setattr(steps, "converge", lambda *_: Convergence())
    assert steps.mend(context, ["a", "b"], tmp_path) == {"b": UNSEEN}
    monkeypatch.setattr(steps, "run_verification", verified)
    assert steps.confirm(context, ["a", "b"], tmp_path) == {"b": UNSEEN}
    monkeypatch.setattr(acceptance, "measure_there", lambda *_, **__: iter(()))
    assert acceptance.accepted(context, ["b"], tmp_path) == {"b": "accept: there is no result of this node"}

"""Proposals: what verify alone sees is planned too, and a reboot that cannot help is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuprov.apply import converge as converging
from gpuprov.apply import proposal as proposing
from gpuprov.apply.context import Consent, Options, RunContext
from gpuprov.apply.converge import Convergence, converge
from gpuprov.apply.plan import NodePlan, plan_node
from gpuprov.apply.proposal import Proposal, with_verification
from gpuprov.apply.verified import as_drift, tried
from gpuprov.drift.judge import Difference, NodeDrift
from gpuprov.model.lock import Lock, read_lock
from gpuprov.report.text import plan_lines
from gpuprov.verify.verdict import CheckResult, NodeVerdict, Verdict
from tests import RECORDED_LOCK

LIBRARY = ("driver.library", "535.309.01", "535.261.03")
FOUR = ("driver.four_versions", {"nvidia-smi": "535.309.01"}, {"nvidia-smi": None})
BOOT = ("reboot.not_required", [], ["libc6"])


@pytest.fixture
def lock() -> Lock:
    return read_lock(RECORDED_LOCK)


def verdict(lock: Lock, *failed: tuple[str, Any, Any], status: str = "failed") -> Verdict:
    """Return a verdict on the lock's only node, with failed checks: name, expected and actual value."""
    [name] = lock.hosts()
    checks = [CheckResult(check, "failed", expected, actual, "", 0.1) for check, expected, actual in failed]
    return Verdict("2026-01-31T14:25:01+00:00", [NodeVerdict(name, status, checks, "lost")])  # type: ignore[arg-type]


def proposed(lock: Lock, monkeypatch: pytest.MonkeyPatch, judged: Verdict) -> Proposal:
    """Proposal for a node without drift whose verification is `judged`."""
    monkeypatch.setattr(proposing, "run_verification", lambda *_, **__: judged)
    [name] = lock.hosts()
    silent = NodeDrift(name, "in_sync")
    return with_verification(Proposal([silent], [plan_node(silent)]), lock, [name], Options())


def test_a_failed_check_that_drift_does_not_see_is_planned(
    lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposal = proposed(lock, monkeypatch, verdict(lock, LIBRARY))
    [plan] = proposal.busy
    assert "nvidia_driver" in plan.roles
    assert [each.check for each in proposal.found[0].drift] == ["driver.library"]


def test_a_passed_verification_leaves_nothing_to_do(lock: Lock, monkeypatch: pytest.MonkeyPatch) -> None:
    assert proposed(lock, monkeypatch, verdict(lock, status="passed")).busy == []


def test_a_node_that_is_lost_during_its_verification_is_not_planned(
    lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposal = proposed(lock, monkeypatch, verdict(lock, status="unreachable"))
    assert (proposal.plans, [node.reason for node in proposal.unanswered]) == ([], ["lost"])


def test_no_reboot_is_proposed_for_what_another_library_causes(lock: Lock) -> None:
    [node] = as_drift(lock, verdict(lock, LIBRARY, FOUR))
    plan = plan_node(node)
    assert (plan.reboot, [each.check for each in plan.consequences]) == (False, ["driver.four_versions"])
    assert any("follows from the others: driver.four_versions" in line for line in plan_lines([plan]))
    [alone] = as_drift(lock, verdict(lock, FOUR))
    assert plan_node(alone).reboot


def test_a_verification_of_a_check_that_the_lock_does_not_have_is_an_error_of_its_node(lock: Lock) -> None:
    [node] = as_drift(lock, verdict(lock, ("no.such", 1, 2), LIBRARY))
    assert (node.status, node.drift) == ("error", ())
    assert node.reason == "the lock has no check 'no.such' for this node, which its verification names"


@pytest.mark.parametrize("because", [BOOT, None], ids=["verify", "nobody"])
def test_a_reboot_that_only_verify_asks_for_needs_consent(
    lock: Lock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, because: tuple[str, Any, Any] | None
) -> None:
    [name] = lock.hosts()
    monkeypatch.setattr(converging, "survey", lambda *_, **__: [NodeDrift(name, "in_sync")])
    found = (Difference(*because, "error", None, reboot=True),) if because else ()
    plan = NodePlan(name, (), reboot=True, because=found, beyond=())
    result = converge(RunContext(lock, tmp_path, Options(), Consent()), [plan])
    assert result.reboot_needed == ([name] if because else [])
    assert isinstance(result, Convergence)


def test_only_what_has_run_counts_as_tried(lock: Lock) -> None:
    [name] = lock.hosts()
    plan = NodePlan(name, ("preflight", "package_pins"), reboot=True, because=(), beyond=())
    assert "pins.hold" in tried(lock, [plan], [])[name]
    assert "driver.loaded" not in tried(lock, [plan], [])[name]
    assert "driver.loaded" in tried(lock, [plan], [name])[name]

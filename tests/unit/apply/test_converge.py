"""Apply: variables that the operator's consent decides, and the nodes to verify at the end."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov.apply.context import Consent, Options, RunContext
from gpuprov.apply.converge import Convergence, converge, reboot_nodes
from gpuprov.apply.kernel_modules import once
from gpuprov.apply.plan import NodePlan
from gpuprov.apply.playbook import REBOOTS, NodeOutcome
from gpuprov.drift.judge import Difference, NodeDrift
from gpuprov.errors import Exit
from gpuprov.model.connection import LOCAL
from gpuprov.model.lock import Lock, read_lock
from gpuprov.report.recap import conclusion
from gpuprov.upgrade.context import rebooting
from gpuprov.upgrade.steps import _wrong
from tests import RECORDED_LOCK, ROOT


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Variables of each node for which a playbook ran."""
    ran: list[dict[str, Any]] = []

    def run_playbook(playbook: str, nodes: dict[str, Any], *_: Any, **__: Any) -> dict[str, NodeOutcome]:
        ran.extend(nodes.values())
        return {name: NodeOutcome() for name in nodes}

    monkeypatch.setattr(once, "run_playbook", run_playbook)
    return ran


@pytest.mark.parametrize(
    ("consent", "given"),
    [
        (Consent(), set()),
        (Consent(reboot=True), set()),
        (Consent(downgrade=True), {"packages_allow_downgrade"}),
        (Consent(force=True), {"preflight_force", "docker_disturb", "containerd_disturb", "podman_disturb"}),
    ],
)
def test_roles_disturb_only_what_the_operator_consents_to(
    tmp_path: Path, played: list[dict[str, Any]], consent: Consent, given: set[str]
) -> None:
    lock = read_lock(RECORDED_LOCK)
    run = RunContext(lock, tmp_path, Options(check=True), consent)
    converge(run, [NodePlan(name, ("docker",), False, (), ()) for name in lock.hosts()])
    [variables] = played
    assert {name for name, value in variables.items() if value is True} - {"firewall_install_only"} == given


@pytest.mark.parametrize("consent", [Consent(), Consent(downgrade=True)], ids=["none", "downgrade"])
def test_a_node_with_newer_packages_is_not_changed_without_consent(
    played: list[dict[str, Any]], tmp_path: Path, consent: Consent
) -> None:
    """Refuse before any role runs: the transaction would fail after others have changed the node."""
    lock = read_lock(RECORDED_LOCK)
    [name] = lock.hosts()
    wanted, there = {"libcuda1": "535.261.03-1"}, {"libcuda1": "535.309.01-1"}
    newer = Difference("driver.packages", wanted, there, "error", "nvidia_driver", reboot=False)
    plan = NodePlan(name, ("docker", "nvidia_driver"), False, (newer,), ())
    result = converge(RunContext(lock, tmp_path, Options(check=True), consent), [plan])
    if consent.downgrade:
        assert (len(played), result.outcomes[name].refused) == (1, None)
    else:
        assert (played, conclusion([], result, None)) == ([], Exit.REFUSED)
        assert result.outcomes[name].refused == (
            "it has libcuda1 535.309.01-1, newer than the lock's 535.261.03-1;"
            " nothing was changed; to go back: gpuprov apply --allow-downgrade"
        )


def in_sync(names: Iterable[str]) -> dict[str, NodeDrift]:
    return {name: NodeDrift(name, "in_sync") for name in names}


def test_a_node_that_failed_or_waits_for_a_boot_or_is_silent_is_not_verified() -> None:
    failed = NodeOutcome(unreachable="timed out")
    silent = {"silent": NodeDrift("silent", "unreachable", reason="timed out")}
    result = Convergence(
        outcomes={"good": NodeOutcome(), "failed": failed},
        drift=in_sync(["good", "failed", "waiting"]) | silent,
        reboot_needed=["waiting"],
    )
    assert result.standing == ["good"]


def test_nodes_after_a_failed_reboot_are_not_counted_as_rebooted(tmp_path: Path) -> None:
    """Ansible ends the play at the first node, which is this machine, and counts no failure of the second."""
    recorded = read_lock(RECORDED_LOCK)
    [(name, group)] = recorded.groups.items()
    hosts = dict.fromkeys(("n1", "n2"), LOCAL)
    lock = Lock(inputs="", groups={name: group.model_copy(update={"hosts": hosts})})
    narrated: list[str] = []
    result = reboot_nodes(RunContext(lock, tmp_path, narrate=narrated.append), hosts)
    assert (result.failed, result.rebooted, result.reboot_needed) == (["n1"], [], ["n2"])
    assert narrated == ["not rebooted, because the reboot of n1 failed: n2"]
    result.drift = in_sync(["n2"])
    allowed = rebooting(lock, together=2)
    assert _wrong(result, ["n2"], allowed) == {"n2": "it needs a reboot and was not rebooted"}
    assert _wrong(result, ["n2"], rebooting(lock, together=0)) == {}


def test_a_reboot_is_recognised_by_the_task_of_the_playbook() -> None:
    [_, play] = yaml.safe_load((ROOT / "playbooks/reboot.yml").read_text())
    assert [each["name"] for each in play["tasks"] if "ansible.builtin.reboot" in each] == [REBOOTS]

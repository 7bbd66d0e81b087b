"""Guarded changes of access on fake nodes: which nodes are changed, and which are not."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import gpuprov.apply.guarded
from gpuprov.access.deadman import Guard, refuse_if_shut_out
from gpuprov.apply.context import Consent, Options, RunContext
from gpuprov.apply.guarded import run_guarded
from gpuprov.apply.playbook import NodeOutcome
from gpuprov.drift.judge import judge
from gpuprov.errors import GpuprovError, NodeFailed, Refused, Unreachable
from gpuprov.model.lock import Lock, LockedGroup, Setting, read_lock
from gpuprov.probe.facts import Facts
from gpuprov.roles.firewall import expectations
from gpuprov.ssh import client_config
from gpuprov.ssh.dispatch import Dispatch
from gpuprov.ssh.route import forget_routes
from tests import RECORDED_LOCK


def group(*hosts: str, **settings: Any) -> LockedGroup:
    """Return the recorded group with these hosts and settings."""
    (recorded,) = read_lock(RECORDED_LOCK).groups.values()
    stated = {name: Setting(value=value, reason="", source="") for name, value in settings.items()}
    return recorded.model_copy(update={"hosts": dict.fromkeys(hosts, "127.0.0.1"), "settings": stated})


class Fleet:
    """Fake nodes that fail to arm, in a role, or to prove a login; `ran` and `undone` record the calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **fails: set[str]) -> None:
        self.fails = {"arm": set(), "role": set(), "prove": set(), "answer": set(), **fails}
        self.ran: list[list[str]] = []
        self.undone: list[str] = []
        for name in ("open_session", "source_address", "arm", "run_playbook", "prove_and_disarm", "undo"):
            monkeypatch.setattr(gpuprov.apply.guarded, name, getattr(self, f"_{name}"))

    def apply(self, tmp_path: Path, leases: Any = None, **groups: LockedGroup) -> dict[str, str]:
        """Apply to every node; return node → reason of its failure, or ""."""
        lock = Lock(inputs="", groups=groups)
        run = RunContext(lock, tmp_path, Options(Dispatch(forks=2)), Consent(guard_s=180), leases=leases)
        outcomes = run_guarded(run, {name: {} for name in lock.hosts()})
        return {name: each.failed[-1]["msg"] if each.failed else "" for name, each in outcomes.items()}

    @contextmanager
    def _open_session(self, target: Any, limits: Any) -> Any:
        yield target

    def _source_address(self, session: Any) -> str:
        return "127.0.0.1"

    def _arm(self, session: Any, guard: Guard, token: str) -> None:
        """Raise NodeFailed on a node whose switch cannot be armed."""
        if session.name in self.fails["arm"]:
            raise NodeFailed("no room")

    def _run_playbook(self, playbook: str, nodes: dict[str, Any], run: RunContext, **how: Any) -> Any:
        """Record the nodes of a playbook; return a failure for those on which a role fails."""
        self.ran.append(sorted(nodes))
        assert how["task_s"] == 90  # half of the guard
        assert {each["ssh_hardening_guard"] for each in nodes.values()} == {run.id}
        failed = [{"msg": "a role failed"}]
        return {name: NodeOutcome(failed=failed * (name in self.fails["role"])) for name in nodes}

    def _prove_and_disarm(self, target: Any, ports: list[int], guard: Guard, token: str) -> None:
        """Raise Unreachable for a node whose new login fails, or whose answer is lost."""
        if target.name in self.fails["prove"] | self.fails["answer"]:
            raise Unreachable("timed out")

    def _undo(
        self, session: Any, target: Any, guard: Guard, token: str, why: GpuprovError
    ) -> GpuprovError | None:
        """Return None for a node that kept the change; record any other as undone."""
        if target.name in self.fails["answer"]:
            return None
        self.undone.append(target.name)
        return NodeFailed(f"undone: {why.seen}")


def test_each_group_is_tried_on_one_node_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fleet = Fleet(monkeypatch)
    result = fleet.apply(tmp_path, one=group("a1", "a2", "a3", "a4"), two=group("b1", "b2"))
    assert fleet.ran == [["a1", "b1"], ["a2", "a3"], ["a4", "b2"]]
    assert set(result.values()) == {""}


@pytest.mark.parametrize("step", ["arm", "role", "prove"])
def test_where_the_first_fails_the_others_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str
) -> None:
    fleet = Fleet(monkeypatch, **{step: {"a1"}})
    result = fleet.apply(tmp_path, one=group("a1", "a2", "a3"), two=group("b1", "b2"))
    assert result["a2"].startswith("not changed, because a1 failed")
    assert result["b1"] == result["b2"] == ""
    assert not [names for names in fleet.ran if {"a2", "a3"} & set(names)]
    assert fleet.undone == ([] if step == "arm" else ["a1"])


def test_a_node_that_is_not_armed_is_not_touched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fleet = Fleet(monkeypatch, arm={"a2"})
    result = fleet.apply(tmp_path, one=group("a1", "a2", "a3"))
    assert result == {"a1": "", "a2": "no room", "a3": ""}
    assert fleet.ran == [["a1"], ["a3"]]


def test_a_node_that_was_lost_to_another_run_is_not_touched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class LeaseManager:
        file, handle = tmp_path / "leases.json", None

        def require(self, name: str) -> None:
            """Raise NodeFailed for a2."""
            if name == "a2":
                raise NodeFailed("another run took its lease")

    fleet = Fleet(monkeypatch)
    result = fleet.apply(tmp_path, leases=LeaseManager(), one=group("a1", "a2", "a3"))
    assert result == {"a1": "", "a2": "another run took its lease", "a3": ""}
    assert fleet.ran == [["a1"], ["a3"]]


def test_a_change_that_the_node_says_it_kept_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fleet = Fleet(monkeypatch, answer={"a1"})
    assert fleet.apply(tmp_path, one=group("a1", "a2")) == {"a1": "", "a2": ""}


@pytest.mark.parametrize("error", [KeyboardInterrupt, GpuprovError("no Ansible"), OSError("disk full")])
def test_changes_are_reverted_if_the_roles_are_interrupted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Any
) -> None:
    fleet = Fleet(monkeypatch, arm={"c1"})
    monkeypatch.setattr(gpuprov.apply.guarded, "run_playbook", Mock(side_effect=error))
    with pytest.raises(error if isinstance(error, type) else type(error)):
        fleet.apply(tmp_path, one=group("a1", "a2"), two=group("b1"), three=group("c1"))
    assert sorted(fleet.undone) == ["a1", "b1"]


def test_nodes_are_disarmed_if_arming_others_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fleet = Fleet(monkeypatch)

    def arm(session: Any, guard: Guard, token: str) -> None:
        """Raise KeyboardInterrupt for b1."""
        if session.name == "b1":
            raise KeyboardInterrupt

    monkeypatch.setattr(gpuprov.apply.guarded, "arm", arm)
    with pytest.raises(KeyboardInterrupt):
        fleet.apply(tmp_path, one=group("a1"), two=group("b1"))
    assert (fleet.ran, sorted(fleet.undone)) == ([], ["a1", "b1"])


def rules(**networks: list[str]) -> dict[str, Any]:
    """Return the setting `firewall` with sets of networks and without rules."""
    return {"trusted_interfaces": [], "ruleset": {"networks": networks, "input": [], "forward": []}}


def test_a_firewall_without_room_for_us_is_refused() -> None:
    with pytest.raises(Refused, match=r"would reject 198\.18\.0\.1"):
        refuse_if_shut_out(group("a", firewall=rules(ssh4=["10.0.0.0/8"])), "198.18.0.1")


@pytest.mark.parametrize(
    "firewall",
    [
        rules(ssh4=["198.18.0.0/16"]),
        rules(ssh6=["fd00::/8"], fleet4=["198.18.0.1"]),
        rules(fleet4=["10.0.0.1"]),
    ],
    ids=["ssh-from", "of-the-fleet", "ssh-from-anywhere"],
)
def test_a_firewall_with_room_for_us_is_not(firewall: dict[str, Any]) -> None:
    refuse_if_shut_out(group("a", firewall=firewall), "198.18.0.1")


@pytest.mark.parametrize(
    ("address", "seen"),
    [
        ("198.18.0.1", ["198.18.0.1"]),
        ("10.1.2.3", None),
        ("10.200.0.1", None),
        ("127.0.0.1", None),
        ("::1", None),
        ("fe80::1%eth0", ["fe80::1%eth0"]),
    ],
)
def test_a_controller_that_would_be_rejected_is_a_difference_that_no_role_corrects(
    address: str, seen: list[str] | None
) -> None:
    firewall = rules(ssh4=["10.0.0.0/9"], fleet4=["10.200.0.0/24"], monitor4=["198.18.0.0/16"])
    [expected] = expectations(group("a", firewall=firewall))[:1]
    found = judge("a", Facts("a", "", 0.0, {"origin": address}), [expected]).drift
    assert [(each.actual, each.role) for each in found] == ([(seen, None)] if seen else [])


def test_networks_behind_a_trusted_interface_are_not_shut_out() -> None:
    firewall = rules(ssh4=["10.0.0.0/8"]) | {"trusted_interfaces": ["eth1"]}
    refuse_if_shut_out(group("a", firewall=firewall), "198.18.0.1")


@pytest.mark.parametrize(
    ("stated", "listens", "refused"), [(None, "22", True), (None, "22 2222", False), (2222, "22", False)]
)
def test_a_port_that_only_the_configuration_of_ssh_states(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stated: int | None, listens: str, *, refused: bool
) -> None:
    """Refuse the change of a node whose port sshd would no longer listen on."""
    config = tmp_path / "ssh_config"
    config.write_text("Host *\n  Port 2222\n")
    monkeypatch.setattr(client_config, "FILES", (str(config),))
    monkeypatch.setattr(client_config, "SSH", ("ssh", "-F", str(config)))
    forget_routes()
    fleet = Fleet(monkeypatch)
    own = group("a1", ssh={"options": {"Port": listens}})
    way = own.connection.model_copy(update={"port": stated})
    result = fleet.apply(tmp_path, one=own.model_copy(update={"connection": way}))
    forget_routes()
    said = f"~/.ssh/config says port 2222, and the lock has sshd listen on {listens}"
    assert (said in result["a1"], fleet.ran) == (refused, [] if refused else [["a1"]])

"""Start of the Ansible process: arguments, environment and variables."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.plugins import loader

from gpuprov.apply import playbook
from gpuprov.apply.context import RunContext
from gpuprov.apply.lease_manager import LeaseManager
from gpuprov.apply.remote import _result
from gpuprov.errors import NodeFailed
from gpuprov.model.lock import read_lock
from gpuprov.roles import ROLES
from gpuprov.ssh.route import with_absolute_paths
from tests import RECORDED_LOCK

TELL = (
    "import json, os, sys; print(json.dumps([os.environ.get('GPUPROV_LEASES'), os.listdir('/proc/self/fd')]))"
)


@pytest.mark.parametrize("leased", [True, False])
def test_ansible_knows_the_runs_leases_and_keeps_the_run_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leased: bool
) -> None:
    lock = read_lock(RECORDED_LOCK)
    leases = LeaseManager([lock], tmp_path) if leased else None
    if leases:
        leases.handle = os.open(tmp_path, os.O_RDONLY)
    monkeypatch.setattr(playbook, "_command", lambda *_: [sys.executable, "-c", TELL])
    run = RunContext(lock, tmp_path, leases=leases)
    playbook.run_playbook("site", {name: {} for name in lock.hosts()}, run)
    result: list[Any] = json.loads((tmp_path / "site-ansible.log").read_text())
    assert result[0] == (str(tmp_path / "leases.json") if leased else None)
    if leases:
        assert str(leases.handle) in result[1]
        os.close(leases.handle or -1)


TEMPLATE = "6.1.0 {{{{ lookup('pipe', 'touch {}') }}}}"
PLAY = """
- hosts: all
  connection: local
  gather_facts: false
  tasks:
    - name: Use text in every way that roles do
      ansible.builtin.set_fact:
        again: "{{ of_group | map(attribute='word') | map('regex_replace', 'x', 'x') | list }}"
        read: "{{ of_group[0] | dict2items }}{{ of_run }}"
      when: of_group[0].word != of_run and number == 3 and flag
    - name: Show
      ansible.builtin.debug:
        msg: "{{ again[0] }} and {{ of_run }} and {{ read }}"
"""


def test_ansible_evaluates_nothing_that_gpuprov_writes_into_its_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = read_lock(RECORDED_LOCK)
    [name, *_] = lock.hosts()
    in_group, in_run = (TEMPLATE.format(tmp_path / each) for each in ("group", "run"))
    (tmp_path / "play.yml").write_text(PLAY)
    (tmp_path / "run").mkdir()
    command, variables_of = playbook._command, playbook.variables_of
    shared = {"of_group": [{"word": in_group}], "number": 3, "flag": True}
    monkeypatch.setattr(playbook, "_command", lambda *_: [*command(*_)[:-1], str(tmp_path / "play.yml")])
    monkeypatch.setattr(playbook, "variables_of", lambda *_: (variables_of(*_)[0] | shared, {}))
    run = RunContext(lock, tmp_path / "run")
    own = {"ansible_become": False}
    outcomes = playbook.run_playbook("site", {name: own}, run, variables={"of_run": in_run})
    events = (tmp_path / "run/site-events.jsonl").read_text()
    assert outcomes[name].ok, (tmp_path / "run/site-ansible.log").read_text()
    assert json.dumps(in_group)[1:-1] in events
    assert sorted(each.name for each in tmp_path.iterdir()) == ["play.yml", "run"]


def test_a_node_whose_text_looks_like_a_template_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = read_lock(RECORDED_LOCK)
    [good, bad, *_] = [*lock.hosts(), "gpu999"]
    monkeypatch.setattr(playbook, "_command", lambda *_: [sys.executable, "-c", "pass"])
    builds = [{"vermagic": TEMPLATE.format(tmp_path / "x")}]
    nodes: dict[str, dict[str, Any]] = {good: {}, bad: {"nvidia_driver_builds": builds}}
    outcomes = playbook.run_playbook("site", nodes, RunContext(lock, tmp_path))
    assert outcomes[good].ok
    [event] = outcomes[bad].failed
    assert "variables of the node.nvidia_driver_builds.vermagic: '6.1.0 {{ lookup(" in event["msg"]
    assert "looks like a template" in event["msg"]
    assert "lookup" not in (tmp_path / "site-inventory.json").read_text()


def test_what_ssh_says_of_a_lost_node_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = read_lock(RECORDED_LOCK)
    [name, *_] = lock.hosts()
    event = {
        "event": "task",
        "host": name,
        "status": "unreachable",
        "msg": "Broken pipe\r\nport 22 timed out",
    }
    write = f"open({str(tmp_path / 'site-events.jsonl')!r}, 'w').write({json.dumps(event)!r} + '\\n')"
    monkeypatch.setattr(playbook, "_command", lambda *_: [sys.executable, "-c", write])
    outcomes = playbook.run_playbook("site", {name: {}}, RunContext(lock, tmp_path))
    assert outcomes[name].unreachable == "Broken pipe port 22 timed out"


def test_nothing_of_the_current_folder_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ansible looks for plugins of shells in the current folder, which may be another user's."""
    here = tmp_path / "here"
    for folder in {each.subdir for each in vars(loader).values() if isinstance(each, loader.PluginLoader)}:
        (here / folder).mkdir(parents=True, exist_ok=True)
        for name in ("sh", "setup", "linear", "host_group_vars", "gpuprov_ssh", "other"):
            (here / folder / f"{name}.py").write_text(f"open({str(here / 'ran')!r}, 'a').write(__file__)\n")
    monkeypatch.chdir(here)
    lock = with_absolute_paths(read_lock(RECORDED_LOCK))
    [name] = lock.hosts()
    nodes = {name: {"ansible_host": "127.0.0.1", "ansible_port": 9}}
    outcomes = playbook.run_playbook("site", nodes, RunContext(lock, tmp_path / "run"))
    assert not (here / "ran").exists(), (here / "ran").read_text()
    assert "Connection refused" in (outcomes[name].unreachable or "")


def test_paths_of_a_lock_are_those_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lock = read_lock(RECORDED_LOCK)
    [group] = lock.groups.values()
    group.connection.__dict__["identity_file"] = "keys/id"
    monkeypatch.setattr(playbook, "_command", lambda *_: [sys.executable, "-c", ""])
    playbook.run_playbook("site", {name: {} for name in lock.hosts()}, RunContext(lock, Path("run")))
    assert f'"{tmp_path}/keys/id"' in (tmp_path / "run/site-inventory.json").read_text()


def test_facts_of_a_node_replace_no_variable(tmp_path: Path) -> None:
    assert playbook._environment(tmp_path / "events", tmp_path, 900)["ANSIBLE_INJECT_FACT_VARS"] == "0"


CONNECT = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.raw: "true"
"""


@pytest.mark.parametrize("name", ["ANSIBLE_HOST_KEY_CHECKING", "ANSIBLE_SSH_HOST_KEY_CHECKING"])
def test_ansible_checks_host_keys_also_if_the_operator_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Run Ansible with an `ssh` that writes its effective options instead of connecting."""
    [ssh, programs, home] = [shutil.which("ssh"), tmp_path / "bin", tmp_path / "home"]
    for folder in (programs, home, tmp_path / "run"):
        folder.mkdir()
    (programs / "ssh").write_text(f'#!/bin/sh\n{ssh} -G "$@" >>{tmp_path}/options\nexit 255\n')
    (programs / "ssh").chmod(0o755)
    (tmp_path / "play.yml").write_text(CONNECT)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv(name, "False")
    command = playbook._command
    monkeypatch.setattr(playbook, "_command", lambda *_: [*command(*_)[:-1], str(tmp_path / "play.yml")])
    lock = read_lock(RECORDED_LOCK)
    [(node, group)] = lock.hosts().items()
    outcomes = playbook.run_playbook("site", {node: {}}, RunContext(lock, tmp_path / "run"))
    assert outcomes[node].unreachable
    options = dict(line.split(" ", 1) for line in (tmp_path / "options").read_text().splitlines())
    assert options["stricthostkeychecking"] in ("true", "yes", "ask")
    assert options["userknownhostsfile"] == group.connection.known_hosts


def test_a_failure_without_a_readable_result_is_that_nodes(tmp_path: Path) -> None:
    """Without it, a failed node would count as changed, or its failure as the whole run's."""
    counts = {"failed": 1, "ok": 0, "changed": 0, "skipped": 0, "rescued": 0, "unreachable": 0}
    good = {**counts, "failed": 0}
    outcomes = {name: playbook.NodeOutcome() for name in ("bad", "good", "known")}
    outcomes["known"].fail("known", "Install", "the disk is full")
    run = RunContext(read_lock(RECORDED_LOCK), tmp_path)
    stats = {"event": "stats", "hosts": {"bad": counts, "good": good, "known": counts, "other": counts}}
    playbook._hear([stats], outcomes, run)
    assert {name: [each["msg"] for each in outcome.failed] for name, outcome in outcomes.items()} == {
        "bad": ["Ansible counts a failure of it without a readable result"],
        "good": [],
        "known": ["the disk is full"],
    }


def test_half_characters_of_a_node_can_be_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = read_lock(RECORDED_LOCK)
    [name] = lock.hosts()
    event = {"event": "task", "host": name, "role": "a", "task": "b", "status": "failed", "msg": "caf\udce9"}
    write = f"open(__import__('os').environ['GPUPROV_EVENTS'], 'w').write({json.dumps(event)!r} + chr(10))"
    monkeypatch.setattr(playbook, "_command", lambda *_: [sys.executable, "-c", write])
    outcomes = playbook.run_playbook("site", {name: {}}, RunContext(lock, tmp_path))
    assert [each["msg"] for each in outcomes[name].failed] == ["caf\N{REPLACEMENT CHARACTER}"]


@pytest.mark.parametrize("over", [False, True])
def test_a_playbook_that_was_killed_is_a_failure_of_each_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: bool
) -> None:
    """Count no node as finished because another one had failed before."""
    recorded = read_lock(RECORDED_LOCK)
    [(name, group)] = recorded.hosts().items()
    both = group.model_copy(update={"hosts": {name: "192.0.2.1", "other": "192.0.2.2"}})
    lock = recorded.model_copy(update={"groups": {"debian12": both}})
    event = {"event": "task", "host": name, "role": "a", "task": "b", "status": "failed", "msg": "no room"}
    counts = {"event": "stats", "hosts": {}}
    lines = "".join(json.dumps(each) + "\n" for each in (event, *([counts] if over else [])))
    write = f"open(__import__('os').environ['GPUPROV_EVENTS'], 'w').write({lines!r})"
    end = "exit(2)" if over else "__import__('os').kill(__import__('os').getpid(), 9)"
    monkeypatch.setattr(playbook, "_command", lambda *_: [sys.executable, "-c", f"{write}; {end}"])
    outcomes = playbook.run_playbook("site", {name: {}, "other": {}}, RunContext(lock, tmp_path))
    cut = "ansible-playbook ended with -9 before it had finished"
    assert {each: outcome.reason for each, outcome in outcomes.items()} == {
        name: "no room",
        "other": None if over else cut,
    }


def test_messages_of_a_node_name_no_mirror_with_its_token() -> None:
    url = "https://ci:hunter2@mirror.example.org/d41d8cd98f00b204e980/ubuntu/dists/noble/InRelease"
    shown = "E: Failed to fetch https://mirror.example.org/(hidden)/ubuntu/dists/noble/InRelease 403"
    said = f"E: Failed to fetch {url} 403"
    assert playbook._event(json.dumps({"event": "task", "msg": said})) == {"event": "task", "msg": shown}
    payload: Any = SimpleNamespace(command="", stdin=b"", answer=lambda *_: {"error": said})
    session: Any = SimpleNamespace(run=lambda *_: SimpleNamespace(stdout="", stderr=""))
    with pytest.raises(NodeFailed, match=re.escape(shown)):
        _result(payload, session)


def test_a_node_with_the_name_of_a_group_states_nothing_for_the_others() -> None:
    """Ansible gives variables of `train` to the group if there is one, and so to all of its hosts."""
    lock = read_lock(RECORDED_LOCK)
    [group] = lock.groups.values()
    hosts = {"train": "10.0.0.66", "gpu1": "10.0.0.1"}
    lock = lock.model_copy(update={"groups": {"train": group.model_copy(update={"hosts": hosts})}})
    children = playbook._inventory(lock, {name: {} for name in hosts})["all"]["children"]
    assert {name: sorted(each["hosts"]) for name, each in children.items()} == {
        "train_hosts": ["gpu1", "train"]
    }


def test_roles_that_no_node_runs_are_left_out() -> None:
    nodes = {
        "a1": {"gpuprov_roles": ["preflight", "docker"]},
        "a2": {"gpuprov_roles": ["docker", "firewall"]},
    }
    flag, names = playbook._without_roles(nodes)
    assert flag == "--skip-tags"
    assert set(names.split(",")) == {role.name for role in ROLES} - {"preflight", "docker", "firewall"}


def test_no_role_is_left_out_if_a_node_states_none() -> None:
    assert playbook._without_roles({"a1": {"gpuprov_roles": ["docker"]}, "a2": {}}) == []

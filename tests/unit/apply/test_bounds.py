"""Bounds on what a node answers to Ansible, with programs in place of `ssh`: only its own line fails."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

from gpuprov.apply import playbook
from gpuprov.apply.context import RunContext
from gpuprov.apply.playbook import NodeOutcome
from gpuprov.model.lock import read_lock
from gpuprov.ssh.masters import end_masters
from tests import RECORDED_LOCK, ROOT
from tests.unit.programs import write_program

SSH = """
case "$*" in *"-G "*) exec {ssh} "$@";; *-V*) exec {ssh} -V;; *"-O "*) exit 1;; esac
for last; do :; done
case "$*" in *bad.example*) echo $$ >>"$PIDS"; {bad};; esac
exec sh -c "$last"
"""
TRUE = {"gpuprov.gpuprov.gpuprov_command": {"argv": ["true"]}}
ONE, TWO = {"name": "one", **TRUE}, {"name": "two", **TRUE}
Run = Callable[..., dict[str, NodeOutcome]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A function that runs tasks on the nodes `good` and `bad`; on the latter `ssh` is a shell command."""

    def run(
        bad: str, tasks: list[dict[str, Any]], task_s: int | None = None, **own: Any
    ) -> dict[str, NodeOutcome]:
        """Run the tasks; return each node's outcome."""
        for folder in ("bin", "run", "home"):
            (tmp_path / folder).mkdir()
        write_program(tmp_path / "bin/ssh", SSH.format(bad=bad, ssh=shutil.which("ssh")))
        (tmp_path / "play.yml").write_text(
            json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}])
        )
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
        command = playbook._command
        monkeypatch.setattr(playbook, "_command", lambda *_: [*command(*_)[:-1], str(tmp_path / "play.yml")])
        monkeypatch.setattr(playbook.strategy, "settings", dict)
        lock = read_lock(RECORDED_LOCK)
        [(name, group)] = lock.groups.items()
        group = group.model_copy(update={"hosts": {each: f"{each}.example" for each in ("good", "bad")}})
        lock = lock.model_copy(update={"groups": {name: group}})
        own = {"ansible_become": False, **own}
        nodes = {"good": own, "bad": own}
        return playbook.run_playbook("site", nodes, RunContext(lock, tmp_path / "run"), task_s=task_s)

    return run


def message(outcome: NodeOutcome) -> str:
    """Return the message of an outcome's only failure."""
    assert outcome.unreachable is None
    [event] = outcome.failed
    return str(event["msg"])


def running(pids: Path) -> list[int]:
    """Return the programs in place of `ssh` that have not ended."""
    return [pid for pid in map(int, pids.read_text().split()) if Path(f"/proc/{pid}/cmdline").exists()
            and Path(f"/proc/{pid}/cmdline").read_bytes()]  # fmt: skip


@pytest.mark.timeout(60)
def test_a_silent_node_fails_alone_and_the_others_go_on(run: Run, tmp_path: Path) -> None:
    found = run("exec sleep 500", [ONE, TWO], task_s=3)
    assert found["good"] == NodeOutcome(changed=2)
    assert re.search(r"Timed out after 3 second|expected time frame \(3\)", message(found["bad"]))
    assert running(tmp_path / "pids") == []


@pytest.mark.thorough
@pytest.mark.timeout(60)
@pytest.mark.parametrize("become", [False, True])
@pytest.mark.parametrize("output", [1, 2])
def test_an_endless_answer_fails_its_node_alone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: int, become: bool
) -> None:
    monkeypatch.setattr(playbook, "ANSWER_BYTES", 1 << 20, raising=False)
    own = {"bad": f"exec cat /dev/zero >&{output}", "tasks": [ONE, TWO]}
    found = run(**own, **({"ansible_become": True, "ansible_become_user": "nobody"} if become else {}))
    assert "the node answered more than 1 MB" in message(found["bad"])
    if not become:
        assert found["good"] == NodeOutcome(changed=2)
    assert running(tmp_path / "pids") == []


@pytest.mark.timeout(60)
def test_an_answer_within_the_bounds_arrives_whole(run: Run, tmp_path: Path) -> None:
    """Compare 1 MB of each output, and the exit status, with what a program wrote."""
    program = "head -c 1000000 /dev/zero | tr '\\0' a; head -c 1000000 /dev/zero | tr '\\0' b >&2; exit 7"
    result = {"gpuprov.gpuprov.gpuprov_command": {"argv": ["sh", "-c", program]}, "register": "output"}
    held = "output.rc == 7 and output.stdout == 'a' * 1000000 and output.stderr == 'b' * 1000000"
    assertion = {"ansible.builtin.assert": {"that": held, "quiet": True}}
    found = run('exec sh -c "$last"', [{**result, "failed_when": False}, assertion])
    assert all(outcome.ok for outcome in found.values())


@pytest.mark.timeout(60)
def test_a_result_of_a_node_does_not_end_the_play(run: Run) -> None:
    """Answer a module of Ansible's with a key that Ansible reads for all nodes, in another form."""
    slurp = {"name": "slurp", "ansible.builtin.slurp": {"src": "/etc/hostname"}}
    answer = json.dumps({"changed": False, "ansible_stats": {"data": "x"}})
    found = run(
        f"cat >/dev/null; echo '{answer}'; exit 0",
        [slurp, {**ONE, "when": "inventory_hostname == 'good'"}],
        ansible_python_interpreter=sys.executable,
    )
    assert found["good"] == NodeOutcome(changed=1)


@pytest.mark.timeout(60)
def test_warnings_of_a_node_do_not_fill_the_disk(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answer each task with a long warning, which Ansible prints; the results arrive nevertheless."""
    monkeypatch.setattr(playbook, "LOG_BYTES", 1 << 20)
    slurp = {"name": "slurp", "ansible.builtin.slurp": {"src": "/etc/hostname"}}
    answer = """import json, random
print(json.dumps({"changed": True, "warnings": [str(random.random()) + "w" * 1_000_000]}))"""
    (tmp_path / "answer.py").write_text(answer)
    found = run(
        f"cat >/dev/null; {sys.executable} {tmp_path}/answer.py; exit 0",
        [slurp] * 5,
        ansible_python_interpreter=sys.executable,
    )
    assert (found["good"], found["bad"]) == (NodeOutcome(), NodeOutcome(changed=5))
    assert 1 << 20 <= (tmp_path / "run/site-ansible.log").stat().st_size < 4 << 20


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("value", "many", "limit"),
    [
        ('"x": [{}0]', "[],", "131072 values or lines"),
        ('"stdout": "{}"', r"\n", "131072 values or lines"),
        ('"stdout": "{}"', "wide " * 2, "1048576 characters"),
    ],
    ids=["values", "lines", "characters"],
)
def test_a_large_result_fails_its_node_alone(
    run: Run, tmp_path: Path, value: str, many: str, limit: str
) -> None:
    """Ansible keeps the results of all tasks, each value apart."""
    (tmp_path / "answer").write_text(f'{{"changed": false, {value.replace("{}", many * 140_000)}}}')
    slurp = {"name": "slurp", "ansible.builtin.slurp": {"src": "/etc/hostname"}}
    bad = f"cat >/dev/null; cat {tmp_path}/answer; exit 0"
    found = run(bad, [slurp, ONE], ansible_python_interpreter=sys.executable)
    assert f"the node answered with more than {limit}" in message(found["bad"])
    assert found["good"] == NodeOutcome(changed=1)


KEPT_MB = {"gpuprov_command": 16, "slurp": 8, "command": 8}
"""Largest memory of a registered result of a module: 1 MiB of its output has 4 MiB, and as many as lines, for
each of `gpuprov_command`'s two. A document of other modules has 4 MiB.
"""


def test_results_that_a_playbook_keeps_are_as_small_as_stated() -> None:
    """Sum up those that tasks register; a node can have each as large as it may be."""
    found = 0
    for path in [*(ROOT / "roles").glob("*/tasks/*.yml"), *(ROOT / "playbooks").glob("*.yml")]:
        for task in tasks_of(yaml.safe_load(path.read_text("utf-8")) or []):
            modules = {name.rpartition(".")[2] for name in task}
            found += max(KEPT_MB.get(module, 4) for module in modules) if "register" in task else 0
    [stated] = re.findall(
        r"until its end: [^;]*?, (\d+) MB of one node", (ROOT / "SECURITY.md").read_text("utf-8")
    )
    assert 100 < found < int(stated)


def tasks_of(document: Any) -> list[dict[str, Any]]:
    """Return all mappings in a playbook or a file of tasks."""
    inside = document.values() if isinstance(document, dict) else document
    below = [task for each in inside if isinstance(each, dict | list) for task in tasks_of(each)]
    return [*below, *([document] if isinstance(document, dict) else [])]


@pytest.mark.thorough
@pytest.mark.timeout(60)
@pytest.mark.parametrize("bad", ["exec sleep 500", "sleep 2"])
def test_a_loop_has_the_time_of_one_task(run: Run, monkeypatch: pytest.MonkeyPatch, bad: str) -> None:
    """Loop over a list whose length a node could state, with no answers, and with late ones."""
    monkeypatch.setattr(playbook, "TASK_S", 6, raising=False)
    begun = time.monotonic()
    found = run(bad, [{**ONE, "loop": [*range(20)]}, TWO])
    assert time.monotonic() - begun < 35
    assert found["good"].ok
    assert message(found["bad"])


@pytest.mark.thorough
@pytest.mark.timeout(60)
def test_the_removal_of_temporary_files_has_the_time_of_its_task(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let `ssh` answer until Ansible removes the task's temporary folder, for which it has no limit."""
    monkeypatch.setattr(playbook, "TASK_S", 10, raising=False)
    copied = {"content": "x", "dest": f"{tmp_path}/{{{{ inventory_hostname }}}}"}
    copy = {"name": "copy", "ansible.builtin.copy": copied}
    own = {"ansible_ssh_transfer_method": "piped", "ansible_python_interpreter": sys.executable}
    found = run('case "$last" in *"rm -f -r"*) exec sleep 500;; esac', [copy, TWO], **own)
    assert found["good"] == NodeOutcome(changed=2)
    assert "the node did not finish its answer within 10 s" in message(found["bad"])
    assert running(tmp_path / "pids") == []


@pytest.mark.timeout(60)
def test_no_file_of_a_node_is_fetched(run: Run, tmp_path: Path) -> None:
    fetch = {"ansible.builtin.fetch": {"src": "/etc/hostname", "dest": f"{tmp_path}/fetched/"}}
    found = run('exec sh -c "$last"', [fetch], ansible_python_interpreter=sys.executable)
    assert "gpuprov_ssh does not fetch files" in message(found["bad"])
    assert not any(path.is_file() for path in (tmp_path / "fetched").rglob("*"))


FOLLOWED = """
import json, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open({path!r}, "w") as events:
    for event in {events!r}:
        print(json.dumps(event), file=events, flush=True)
time.sleep(500)
"""


@pytest.mark.timeout(60)
def test_ansible_without_events_is_ended_and_the_nodes_that_it_waits_for_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(playbook, "QUIET_S", 1, raising=False)
    monkeypatch.setattr(playbook, "END_S", 1, raising=False)
    lock = read_lock(RECORDED_LOCK)
    [(name, group)] = lock.groups.items()
    group = group.model_copy(update={"hosts": {f"gpu0{n}": f"gpu0{n}.example" for n in range(1, 5)}})
    lock = lock.model_copy(update={"groups": {name: group}})
    events = [{"event": "begin", "host": host, "task": "Install"} for host in group.hosts]
    events += [{"event": "task", "host": "gpu01", "task": "Install", "status": "changed"}]
    events += [{"event": "task", "host": "gpu04", "task": "Install", "status": "failed", "msg": "no room"}]
    program = FOLLOWED.format(path=str(tmp_path / "site-events.jsonl"), events=events)
    monkeypatch.setattr(playbook, "_command", lambda *_: [sys.executable, "-c", program])
    heard: list[Any] = []
    run = RunContext(lock, tmp_path, listen=heard.append)
    found = playbook.run_playbook("site", {host: {} for host in group.hosts}, run)
    assert [event["event"] for event in heard] == ["task", "task"]
    for silent in ("gpu02", "gpu03"):
        assert message(found[silent]) == "no answer for 1 s; ansible-playbook was ended"
        assert found[silent].failed[0]["task"] == "Install"
    ended = "ansible-playbook was ended before it had finished: no answer for 1 s from gpu[02-03]"
    assert message(found["gpu01"]) == ended
    assert message(found["gpu04"]) == "no room"


def defaults(path: Path) -> dict[str, Any]:
    """Return the defaults of the role to which a task file belongs; empty if it has none."""
    found = path.parents[1] / "defaults/main.yml"
    return yaml.safe_load(found.read_text()) if found.exists() else {}


def test_no_task_may_take_longer_than_ansible_is_waited_for() -> None:
    stated = [
        (path, match[1])
        for folder in ("roles", "playbooks")
        for path in (ROOT / folder).rglob("*.yml")
        for match in re.finditer(r"(?m)^ +timeout: (.+)$", path.read_text())
    ]
    assert len(stated) > 5
    for path, text in stated:
        value = jinja2.Template(str(yaml.safe_load(text))).render(defaults(path))
        assert playbook.TASK_S <= int(value) <= playbook.LONGEST_S, path
    assert playbook.LONGEST_S + playbook.TASK_S <= playbook.QUIET_S


def test_masters_of_ssh_are_ended_with_the_run(tmp_path: Path) -> None:
    """Send the bytes of PROTOCOL.mux to a master that does not exit; pass over a file that is no socket."""
    (tmp_path / "other").touch()
    with socket.socket(socket.AF_UNIX) as master:
        master.bind(str(tmp_path / "master"))
        master.listen()
        end_masters(tmp_path)
        with master.accept()[0] as control:
            assert control.recv(100).hex(" ", 4) == "00000008 00000001 00000004 00000008 10000005 00000000"


@pytest.mark.timeout(60)
def test_a_folder_that_is_a_command_of_sftp_fails_its_node_alone(run: Run, tmp_path: Path) -> None:
    """sftp reads a line of more than 2,047 bytes as several commands, and `!` starts a shell."""
    (tmp_path / "folder").write_text("/tmp/x\\'\"" + " " * 2100 + f"!touch {tmp_path}/touched #/\n")
    bad = f"case $* in *ansible-tmp-*) printf 'x='; exec cat {tmp_path}/folder;; esac"
    copy = {
        "name": "copy",
        "ansible.builtin.copy": {"content": "x", "dest": f"{tmp_path}/{{{{ inventory_hostname }}}}"},
    }
    found = run(bad, [ONE, copy], ansible_python_interpreter=sys.executable)
    assert "the node names a folder for temporary files that none can be" in message(found["bad"])
    assert found["good"] == NodeOutcome(changed=2)
    assert not (tmp_path / "touched").exists()

"""Runs of `ansible-playbook` as a subprocess: inventory and settings in, one event per task out.

Ansible is never imported. Its own output goes to the run's folder. gpuprov's output is derived from the
events that gpuprov's callback writes there as JSON lines.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gpuprov.apply import strategy
from gpuprov.apply.attempts import change
from gpuprov.apply.context import Event, Options, RunContext
from gpuprov.apply.worker_messages import Failures
from gpuprov.errors import GpuprovError, NodeFailed, Refused, Unreachable
from gpuprov.files.resources import ansible_environment, link_collection, share
from gpuprov.files.writing import make_folders, replace_file
from gpuprov.inventory.ansible import group_names
from gpuprov.inventory.variables import reached, variables_of
from gpuprov.model.connection import LOCAL
from gpuprov.model.lock import Lock
from gpuprov.model.nodeset import fold
from gpuprov.probe.here import SYSTEM_PATH
from gpuprov.roles import BY_NAME, first_packages
from gpuprov.roles.manager import manager
from gpuprov.ssh.connect import ConnectionLimits
from gpuprov.ssh.masters import end_masters
from gpuprov.ssh.route import with_absolute_paths
from gpuprov.untrusted import ansible_json, without_templates
from gpuprov.untrusted.parsing import without_surrogates
from gpuprov.untrusted.urls import public_urls

# curve25519 saves 0.1 s of CPU per connection, compared with Debian 12's default key exchange (sntrup761).
# Keepalives detect a node that vanishes during a task after 2 minutes; without them TCP waits for up to 15.
SSH_ARGUMENTS = (
    "-o ControlMaster=auto -o ControlPersist=60s -o KexAlgorithms=^curve25519-sha256"
    " -o ServerAliveInterval=20 -o ServerAliveCountMax=6"
)

ANSWER_BYTES = ConnectionLimits.answer_bytes
"""Maximum size of a node's answers to a task."""
TASK_S, LONGEST_S = 900, 10800
"""Time limits of a task: the default, and the longest that a role states, for a transaction of packages."""
QUIET_S = LONGEST_S + 1800
"""Time without an event of Ansible, after which it is ended."""
LOG_BYTES = 64 << 20
"""Size of Ansible's own output that is kept; the file has at most about twice that size."""
END_S = 30
"""Time for ansible-playbook to end after SIGTERM."""

COMPILES = "Report which kernels the shared module is compiled for here"
"""Name of a task of the role nvidia_driver."""
REBOOTS = "Reboot and wait for the node to come back"
"""Name of a task of the playbook reboot."""


@dataclass
class NodeOutcome:
    """Outcome of a playbook on one node.

    Attributes:
        changed: number of tasks that changed the node.
        compiled: the kernels for which it compiled a shared module, as text; None if it compiled none.
        rebooted: whether it was rebooted and came back.
        failed: events of failed tasks.
        unreachable: the reason if the node could not be reached.
        refused: the reason if the node was not changed.
    """

    changed: int = 0
    compiled: str | None = None
    rebooted: bool = False
    failed: Failures = field(default_factory=list)
    unreachable: str | None = None
    refused: str | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing failed, and the node was neither unreachable nor refused."""
        return not self.failed and self.unreachable is None and self.refused is None

    @property
    def reason(self) -> str | None:
        """Message of the first failed task, or why the node was unreachable or refused; None if `ok`."""
        return str(self.failed[0].get("msg")) if self.failed else self.unreachable or self.refused

    def add(self, later: NodeOutcome) -> None:
        """Add the outcome of a later playbook on the same node; earlier reasons are kept."""
        self.changed += later.changed
        self.compiled = self.compiled or later.compiled
        self.rebooted = self.rebooted or later.rebooted
        self.failed += later.failed
        self.unreachable = self.unreachable or later.unreachable
        self.refused = self.refused or later.refused

    @classmethod
    def of(cls, node: str, answer: NodeOutcome | GpuprovError) -> NodeOutcome:
        """Return the outcome of a node from a worker's answer; its failures get the name of this node.

        From an error, return the outcome of a node that was not changed.
        """
        if isinstance(answer, GpuprovError):
            return cls.of_error(node, answer)
        answer.failed = [{**event, "host": node} for event in answer.failed]
        return answer

    @classmethod
    def of_error(cls, node: str, error: GpuprovError) -> NodeOutcome:
        """Return the outcome of a node that was not changed: refused, unreachable, or failed."""
        if isinstance(error, Refused):
            return cls(refused=str(error))
        if isinstance(error, Unreachable):
            return cls(unreachable=str(error))
        outcome = cls()
        outcome.fail(node, "Take the lease", str(error))
        return outcome

    def fail(self, node: str, task: str, why: str) -> None:
        """Record a failure outside Ansible as if it were a task's."""
        self.failed.append({"host": node, "role": "", "task": task, "status": "failed", "msg": why})


def run_playbook(
    playbook: str,
    nodes: dict[str, dict[str, Any]],
    run: RunContext,
    *,
    part: str = "",
    variables: dict[str, Any] | None = None,
    task_s: int | None = None,
) -> dict[str, NodeOutcome]:
    """Run one of gpuprov's playbooks on some nodes.

    Args:
        playbook: its name, `site` or `reboot`.
        nodes: host name → variables of this host only.
        run: the run; the inventory, the events and Ansible's own output are written to its folder.
        part: a subfolder to use instead, for a playbook that runs several times.
        variables: variables for every host and for the plays themselves.
        task_s: time limit in seconds of a task that states none; None: `TASK_S`.

    Raises:
        GpuprovError: Ansible itself could not run.
        CrewLost: as `change`.
    """
    play = partial(_play, playbook, part=part, variables=variables, task_s=task_s or TASK_S)
    found = change(play, run, nodes, answer=NodeOutcome)
    return {name: NodeOutcome.of(name, outcome) for name, outcome in found.items()}


def _play(
    playbook: str,
    run: RunContext,
    nodes: Mapping[str, dict[str, Any]],
    *,
    part: str,
    variables: dict[str, Any] | None,
    task_s: int,
) -> dict[str, NodeOutcome]:
    """Run a playbook on nodes with `ansible-playbook` on this machine; return node → outcome.

    Ansible is ended after `QUIET_S` seconds without an event, more for reboots. Nodes without a failure get
    one then. A node with a template in its variables fails without a play.

    Raises:
        GpuprovError: ansible-playbook failed without a failure of a node.
    """
    folder = (run.folder / part).absolute()
    make_folders(folder)
    outcomes = {name: NodeOutcome() for name in nodes}
    nodes = dict(_without_templates(nodes, outcomes))
    if not nodes:
        return outcomes
    inventory = folder / f"{playbook}-inventory.json"
    replace_file(inventory, ansible_json(_inventory(with_absolute_paths(run.lock), nodes)))
    events = folder / f"{playbook}-events.jsonl"
    log = folder / f"{playbook}-ansible.log"
    own = _here(run.lock, nodes)
    if playbook == "site" and not own:
        own = strategy.settings()
    with tempfile.TemporaryDirectory(prefix="gpuprov-") as scratch, log.open("ab") as output:
        process = subprocess.Popen(
            [*_command(playbook, inventory, variables or {}, run.options), *_without_roles(nodes)],
            cwd=scratch,  # Ansible runs plugins of shells in the current folder, which may be another user's
            env=_environment(events, Path(scratch), task_s) | _leases(run) | own,
            stdin=subprocess.PIPE,  # not the terminal: no program may wait for input there
            pass_fds=[run.leases.handle] if run.leases and run.leases.handle is not None else [],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            with process.stdin as stdin:  # type: ignore[union-attr]
                stdin.write((run.options.dispatch.password or "").encode())
            quiet_s = QUIET_S + 2 * (variables or {}).get("gpuprov_reboot_timeout", 0)
            begun, over = _hear(_follow(events, process, quiet_s, log), outcomes, run)
            if process.poll() is None:
                _give_up(outcomes, begun, quiet_s)
        finally:
            _end(process)
            end_masters(Path(scratch) / "cp")
    if process.returncode and all(outcome.ok for outcome in outcomes.values()):
        raise GpuprovError(f"ansible-playbook ended with {process.returncode}", do=f"read {log}")
    if process.returncode and not over:
        _cut_short(outcomes, begun, process.returncode)
    return outcomes


def _without_templates(
    nodes: Mapping[str, dict[str, Any]], outcomes: Mapping[str, NodeOutcome]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and variables of the nodes whose variables have no templates; the others get a failure.

    Variables may contain text from nodes, which Ansible would evaluate.
    """
    for name, stated in nodes.items():
        try:
            yield name, without_templates(stated, "variables of the node")
        except NodeFailed as error:
            outcomes[name].fail(name, "Write the inventory", str(error))


def _inventory(lock: Lock, nodes: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return Ansible's inventory: the groups of the lock that have some of the nodes, with all variables.

    A node's variables in `nodes` take precedence over those of the lock. A group is renamed if a node has its
    name: Ansible would give the node's variables to the group.
    """
    children = {}
    names = group_names(lock.groups, lock.hosts())
    for name, group in lock.groups.items():
        stated, own = variables_of(reached(group), group)
        hosts = {
            host: {
                "ansible_host": address,
                **own.get(host, {}),
                **first_packages(stated, nodes[host].get("gpuprov_roles", ()), manager(group)),
                **nodes[host],
            }
            for host, address in group.hosts.items()
            if host in nodes
        }
        if hosts:
            children[names[name]] = {"hosts": hosts, "vars": stated}
    return {"all": {"children": children}}


def _command(playbook: str, inventory: Path, variables: dict[str, Any], options: Options) -> list[str]:
    """Return the command line of ansible-playbook, which reads a password of sudo from its standard input."""
    program = Path(sys.executable).with_name("ansible-playbook")
    command = [str(program), "--inventory", str(inventory), "--forks", str(options.dispatch.forks)]
    command += ["--check"] * options.check + ["--diff"] * options.diff
    if variables:
        command += ["--extra-vars", ansible_json(variables)]
    if options.verbosity > 1:
        command.append("-" + "v" * (options.verbosity - 1))
    if options.dispatch.password is not None:
        command += ["--become-password-file", "-"]
    return [*command, f"gpuprov.gpuprov.{playbook}"]


def _without_roles(nodes: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return the arguments with which Ansible leaves out the roles that no node runs.

    Otherwise it starts a process for each role and node, to evaluate the role's condition.
    """
    stated = {role for variables in nodes.values() for role in variables.get("gpuprov_roles", BY_NAME)}
    unused = [name for name in BY_NAME if name not in stated]
    return ["--skip-tags", ",".join(unused)] if unused else []


def _environment(events: Path, scratch: Path, task_s: int) -> dict[str, str]:
    """Return the environment of ansible-playbook: a lock gives the same run everywhere."""
    return {
        **ansible_environment(scratch),
        "ANSIBLE_COLLECTIONS_PATH": str(link_collection(scratch / "collections")),
        "ANSIBLE_CALLBACKS_ENABLED": "gpuprov.gpuprov.gpuprov_jsonl",
        "ANSIBLE_INJECT_FACT_VARS": "0",  # a fact from a node would override a variable of the lock
        "ANSIBLE_PIPELINING": "1",
        # With this path Ansible reads the plugin's options once; from the collection, once for each task.
        "ANSIBLE_CONNECTION_PLUGINS": str(share("plugins") / "connection"),
        "ANSIBLE_TRANSPORT": "gpuprov_ssh",
        "ANSIBLE_BECOME_PLUGINS": str(share("plugins") / "become"),
        "ANSIBLE_BECOME_METHOD": "gpuprov_sudo",
        "ANSIBLE_TASK_TIMEOUT": str(task_s),
        "GPUPROV_ANSWER_BYTES": str(ANSWER_BYTES),
        "ANSIBLE_SSH_ARGS": SSH_ARGUMENTS,
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(scratch / "cp"),
        "ANSIBLE_LOCAL_TEMP": str(scratch / "tmp"),
        "ANSIBLE_HOST_KEY_CHECKING": "1",
        "ANSIBLE_INTERPRETER_PYTHON": "auto_silent",
        "ANSIBLE_NOCOLOR": "1",
        "GPUPROV_EVENTS": str(events),
    }


def _leases(run: RunContext) -> dict[str, str]:
    """Return the variable with the path of the file that shows Ansible the run's leases; {} without any."""
    return {"GPUPROV_LEASES": str(run.leases.file)} if run.leases else {}


def _here(lock: Lock, nodes: Iterable[str]) -> dict[str, str]:
    """Return variables for tasks on this machine: the system's programs precede gpuprov's environment.

    {} if none of the nodes is this machine.
    """
    hosts = lock.hosts()
    if all(hosts[name].hosts[name] != LOCAL for name in nodes):
        return {}
    own = {name: "" for name in ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH") if name in os.environ}
    return {**own, "PATH": f"{SYSTEM_PATH}:{os.environ.get('PATH', '')}"}


def _limit(log: Path) -> None:
    """Remove what exceeds `LOG_BYTES` of a log with twice that size: nodes choose the warnings in it. Each
    write has to go to its end.
    """
    if log.stat().st_size > 2 * LOG_BYTES:
        os.truncate(log, LOG_BYTES)


def _follow(events: Path, process: subprocess.Popen[bytes], quiet_s: float, log: Path) -> Iterator[Event]:
    """Yield the events as they are written, until the process has ended and the last one is read; limit the
    size of its log meanwhile.

    End also if there is no event for `quiet_s` seconds.
    """
    last = time.monotonic()
    while not events.exists():
        ended = process.poll() is not None or time.monotonic() - last > quiet_s
        if ended and not events.exists():
            return
        time.sleep(0.05)
    with events.open(encoding="utf-8") as lines:
        half = ""
        while True:
            ended = process.poll() is not None
            _limit(log)
            half += lines.read()
            *whole, half = half.split("\n")
            yield from map(_event, whole)
            last = time.monotonic() if whole else last
            if ended or time.monotonic() - last > quiet_s:
                return
            time.sleep(0.1)


def _event(line: str) -> Event:
    """Return an event, whose message names no mirror with tokens in its URL."""
    event: Event = without_surrogates(json.loads(line))
    return {**event, "msg": public_urls(str(event["msg"]))} if "msg" in event else event


def _hear(
    events: Iterable[Event], outcomes: dict[str, NodeOutcome], run: RunContext
) -> tuple[dict[str, str], bool]:
    """Add the results of tasks to `outcomes`, and pass them to `run.listen`.

    Returns:
        node → task that it has begun and not finished; and whether Ansible has ended the playbook itself.
    """
    begun: dict[str, str] = {}
    over = False
    for event in events:
        if event.get("event") == "begin":
            begun[event["host"]] = event["task"]
            continue
        begun.pop(event.get("host") or "", None)
        if event.get("event") == "stats":
            over = True
            _note_counts(outcomes, event["hosts"])
        _note(outcomes, event)
        run.listen(event)
    return begun, over


def _give_up(outcomes: dict[str, NodeOutcome], begun: dict[str, str], quiet_s: float) -> None:
    """Record that Ansible is ended, as failures of the nodes in `begun` and of those without a failure."""
    silence = f"no answer for {quiet_s} s"
    ended = f"ansible-playbook was ended before it had finished: {silence} from {fold(begun) or 'itself'}"
    for name, outcome in outcomes.items():
        if name in begun:
            outcome.fail(name, begun[name], f"{silence}; ansible-playbook was ended")
        elif outcome.ok:
            outcome.fail(name, "Run the playbook", ended)


def _cut_short(outcomes: dict[str, NodeOutcome], begun: Mapping[str, str], code: int) -> None:
    """Record that Ansible was ended, as by the kernel without memory, as failures of nodes without one."""
    for name, outcome in outcomes.items():
        if outcome.ok:
            said = f"ansible-playbook ended with {code} before it had finished"
            outcome.fail(name, begun.get(name, "Run the playbook"), said)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for Ansible's end; terminate it first if the run is aborted, and kill it after `END_S`."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _note_counts(outcomes: dict[str, NodeOutcome], hosts: Mapping[str, Mapping[str, int]]) -> None:
    """Record a failure for each node that Ansible counts as failed although no event of it did."""
    for name, counts in hosts.items():
        outcome = outcomes.get(name)
        if outcome and outcome.ok and (counts["failed"] or counts["unreachable"]):
            outcome.fail(name, "Run the playbook", "Ansible counts a failure of it without a readable result")


def _note(outcomes: dict[str, NodeOutcome], event: Event) -> None:
    """Add a task's result to its node's outcome: a change, a failure, no connection, compiled kernels, or a
    reboot.
    """
    outcome = outcomes.get(event.get("host") or "")
    if outcome is None:
        return
    match event.get("status"):
        case "changed":
            outcome.changed += 1
            outcome.rebooted = outcome.rebooted or event.get("task") == REBOOTS
        case "ok" if event.get("task") == COMPILES:
            outcome.compiled = str(event.get("msg"))
        case "failed":
            outcome.failed.append(event)
        case "unreachable":
            outcome.unreachable = " ".join(str(event.get("msg")).split())

"""Roles that could lock all users out: applied under the dead man's switch, and to one node first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gpuprov.access.deadman import (
    LIMITS,
    Guard,
    arm,
    prove_and_disarm,
    refuse_if_shut_out,
    source_address,
    undo,
)
from gpuprov.access.sshd import ports_of
from gpuprov.apply.attempts import change
from gpuprov.apply.context import RunContext
from gpuprov.apply.loopback import Loopback, own_sshd
from gpuprov.apply.playbook import NodeOutcome, run_playbook
from gpuprov.errors import GpuprovError, Refused
from gpuprov.model.lock import LockedGroup
from gpuprov.model.nodeset import fold
from gpuprov.ssh.answers import Failure
from gpuprov.ssh.contained import contained
from gpuprov.ssh.transport import Session, Target, open_session, targets

Changed = tuple[NodeOutcome, Failure | None]
"""A node's outcome, and the reason if its change was not kept."""


@dataclass
class _Node:
    """A node during its change; `failure` is the reason if the change was not kept, and `ended` states
    whether its roles were run to their end, with this `outcome`.
    """

    target: Target
    group: LockedGroup
    variables: dict[str, Any]
    session: Session | None = None
    own: Loopback | None = None
    failure: GpuprovError | None = None
    outcome: NodeOutcome = field(default_factory=NodeOutcome)
    ended: bool = False

    @property
    def armed(self) -> bool:
        """Whether the switch was armed, once `_arm` has returned."""
        return self.session is not None and self.failure is None

    @property
    def ports(self) -> list[int]:
        """Ports on which a new login has to work: those of the group's SSH settings, or that of the route."""
        ssh = self.group.setting("ssh")
        return ports_of(ssh["options"]) if ssh else [self.target.route.port]

    def merge(self, changed: tuple[NodeOutcome, GpuprovError | None] | GpuprovError) -> None:
        """Store the outcome of the change, and the reason if it was not kept; or the error as a failure."""
        if isinstance(changed, GpuprovError):
            self.fail(changed)
        else:
            self.outcome, self.failure = NodeOutcome.of(self.target.name, changed[0]), changed[1]

    def fail(self, error: GpuprovError) -> None:
        """Record that the change was not kept, also as a failure in the outcome."""
        self.failure = error
        self.outcome.fail(self.target.name, "Prove a new login", str(error))


def run_guarded(run: RunContext, nodes: dict[str, dict[str, Any]]) -> dict[str, NodeOutcome]:
    """Apply the guarded roles to each group's first node, and to the others only if that succeeds.

    With the option `check`, they run on all nodes at once in Ansible's check mode, and nothing is changed.

    Args:
        run: the run; its id is the switch's token.
        nodes: host name → variables of this host only, including `gpuprov_roles`.

    Returns:
        node → its outcome.

    Raises:
        GpuprovError: Ansible itself could not run.
    """
    if run.options.check:
        return run_playbook("site", nodes, run, part="access-check")
    known = _known(run, nodes)
    for number, batch in enumerate(_batches(known, run.options.dispatch.forks), start=1):
        tried = {node.target.name: node for node in batch if not _first_failed(node, known)}
        variables = {name: node.variables for name, node in tried.items()}
        work = partial(_change_batch, f"access-{number}")
        for name, changed in change(work, run, variables, answer=Changed).items():
            tried[name].merge(changed)
    return {node.target.name: node.outcome for node in known}


def _known(run: RunContext, nodes: Mapping[str, dict[str, Any]]) -> list[_Node]:
    """Return the nodes with their connections, groups and variables."""
    groups = run.lock.hosts()
    return [_Node(each, groups[each.name], nodes[each.name]) for each in targets(run.lock, nodes)]


def _change_batch(
    part: str, run: RunContext, nodes: Mapping[str, dict[str, Any]]
) -> dict[str, tuple[NodeOutcome, GpuprovError | None]]:
    """Change nodes; return for each its outcome, and the reason if its change was not kept."""
    known = _known(run, nodes)
    _change(run, known, part)
    return {node.target.name: (node.outcome, node.failure) for node in known}


def _batches(nodes: list[_Node], size: int) -> Iterator[list[_Node]]:
    """Yield the first node of every group, then the others in batches of `size`."""
    first = list({id(node.group): node for node in reversed(nodes)}.values())
    yield first
    others = [node for node in nodes if node not in first]
    for start in range(0, len(others), size):
        yield others[start : start + size]


def _first_failed(node: _Node, known: list[_Node]) -> bool:
    """Return whether the first node of the group failed; if so, record the failure of this one."""
    first = next(each for each in known if each.group is node.group)
    if first is node or first.failure is None:
        return False
    node.fail(GpuprovError(f"not changed, because {first.target.name} failed: {first.failure.seen}"))
    return True


def _change(run: RunContext, nodes: list[_Node], part: str) -> None:
    """Change nodes under the dead man's switch: arm it, run the roles, keep or revert each node's change.

    Failures are recorded in the nodes. A node on which the switch could not be armed is not changed. If the
    roles are interrupted, also by Ctrl-C, each change is reverted, and what interrupted them is raised again.
    """
    guard = Guard(run.consent.guard_s, run.options.dispatch.password)
    with ExitStack() as sessions:
        try:
            _each(lambda node: _arm(run, node, sessions, guard), nodes)
            _play(run, {node.target.name: node for node in nodes if node.armed}, part)
        finally:
            _each(lambda node: _conclude(run, node, guard), [node for node in nodes if node.armed])


def _each(work: Callable[[_Node], None], nodes: list[_Node]) -> None:
    """Do the work on all nodes at once. It is waited for on each node on which it began, also if this is
    interrupted.
    """
    with ThreadPoolExecutor(max_workers=max(1, len(nodes))) as pool:
        list(pool.map(work, nodes))


def _play(run: RunContext, armed: dict[str, _Node], part: str) -> None:
    """Run the roles on the armed nodes, and store the outcomes in them; raises as `run_playbook`."""
    if not armed:
        return
    seconds = run.consent.guard_s
    run.narrate(f"{fold(armed)}: the old SSH and firewall return in {seconds} s unless a new login works")
    tokens = {"ssh_hardening_guard": run.id, "firewall_guard": run.id}
    variables = {name: {**node.variables, **tokens} for name, node in armed.items()}
    # A node that does not answer fails before the switches of the others, which wait for it, have fired.
    outcomes = run_playbook("site", variables, run, part=part, task_s=seconds // 2)
    for name, outcome in outcomes.items():
        armed[name].outcome, armed[name].ended = outcome, True


def _arm(run: RunContext, node: _Node, sessions: ExitStack, guard: Guard) -> None:
    """Check that the change cannot lock out known addresses, and arm the switch.

    If that fails, or the lease is lost, the failure is recorded in the node.
    """

    def take() -> None:
        _refuse_another_port(node)
        if run.leases:
            run.leases.require(node.target.name)
        node.session = sessions.enter_context(open_session(node.target, LIMITS))
        for source in _sources(run, node, sessions, guard):
            refuse_if_shut_out(node.group, source)
        arm(node.session, guard, run.id)

    if failure := contained(node.target.name, take):
        node.fail(failure)


def _sources(run: RunContext, node: _Node, sessions: ExitStack, guard: Guard) -> tuple[str, ...]:
    """Return the source addresses that the change must not lock out.

    These are the controller's, or on this machine those of its SSH logins, without which a message is
    narrated. Raises as `source_address` and `own_sshd`.
    """
    assert node.session is not None  # noqa: S101
    if not node.target.route.local:
        return (source_address(node.session),)
    node.own = sessions.enter_context(own_sshd(node.session, guard))
    if not node.own.sources:
        run.narrate(
            f"{node.target.name}: no SSH connection is open whose address can be tested with the new firewall"
        )
    return node.own.sources


def _refuse_another_port(node: _Node) -> None:
    """Refuse a port that only ~/.ssh/config states: under the lock sshd would no longer listen on it.

    Raises:
        Refused: there is such a port.
    """
    port = node.target.route.port
    if node.target.connection.port is None and port not in node.ports:
        ports = ", ".join(map(str, node.ports))
        raise Refused(
            f"~/.ssh/config says port {port}, and the lock has sshd listen on {ports}",
            do="state the port in fleet.yml, ssh: {port: …}, and lock again",
        )


def _conclude(run: RunContext, node: _Node, guard: Guard) -> None:
    """Keep the change if its roles succeeded and a new login works; otherwise revert it.

    A reverted change is recorded as a failure, unless the node reports that it was kept.
    """
    if not node.ended:
        failure: GpuprovError | None = GpuprovError("the roles were interrupted")
    elif node.outcome.ok:
        failure = _prove(node, guard, run.id)
    else:
        failure = GpuprovError("a role failed")
    if failure:
        name = node.target.name
        run.narrate(f"{name}: {failure.seen}; waiting until it has its old SSH and firewall again")
        undone = contained(name, lambda: undo(node.session, node.target, guard, run.id, failure))
        if undone:
            node.fail(undone)
        else:
            run.narrate(f"{name}: a new login had worked, and the change was kept")


def _prove(node: _Node, guard: Guard, token: str) -> GpuprovError | None:
    """Log in again on each port and disarm the switch; return the error, or None if that succeeded."""

    def prove() -> None:
        if node.own:
            node.own.read_host_keys(guard.password)
        way = node.own.target if node.own else node.target
        prove_and_disarm(way, node.ports, guard, token)

    return contained(node.target.name, prove)

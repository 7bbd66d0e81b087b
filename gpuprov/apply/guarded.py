"""The roles that could shut everybody out, applied under the dead man's switch, and to one node first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuprov.apply.deadman import (
    LIMITS,
    Guard,
    arm,
    prove_and_disarm,
    refuse_if_shut_out,
    source_address,
    undo,
)
from gpuprov.apply.playbook import Listener, NodeOutcome, Options, run_playbook
from gpuprov.errors import GpuprovError
from gpuprov.model.lock import Lock, LockedGroup
from gpuprov.nodeset import fold
from gpuprov.ssh.transport import Session, Target, open_session, targets

Narrate = Callable[[str], None]


@dataclass
class _Node:
    """One node while it is being changed; `failure` is why it is as it was before."""

    target: Target
    group: LockedGroup
    variables: dict[str, Any]
    session: Session | None = None
    failure: GpuprovError | None = None
    outcome: NodeOutcome = field(default_factory=NodeOutcome)

    @property
    def ports(self) -> list[int]:
        """Ports that a new login has to work on."""
        ssh = self.group.setting("ssh")
        return (
            [int(port) for port in ssh["options"]["Port"].split()] if ssh else [self.target.connection.port]
        )

    def fail(self, error: GpuprovError) -> None:
        """Account for a change that was not kept."""
        self.failure = error
        event = {"host": self.target.name, "role": "", "task": "Prove a new login", "status": "failed"}
        self.outcome.failed.append({**event, "msg": str(error)})


def run_guarded(
    lock: Lock,
    nodes: dict[str, dict[str, Any]],
    run: Path,
    *,
    options: Options,
    guard: Guard,
    listen: Listener,
    narrate: Narrate,
) -> dict[str, NodeOutcome]:
    """Apply the guarded roles, each group's first node alone; where that one fails the others are left alone.

    Args:
        nodes: host name → variables of that host alone, `gpuprov_roles` among them.
        run: the run's folder; its name is the switch's token.

    Raises:
        GpuprovError: Ansible itself could not run.
    """
    if options.check:
        return _play(lock, nodes, run, "access-check", options, listen)
    groups = lock.hosts()
    known = [_Node(each, groups[each.name], nodes[each.name]) for each in targets(lock, nodes)]
    for number, batch in enumerate(_batches(known, options.forks), start=1):
        tried = [node for node in batch if not _first_failed(node, known)]
        if tried:
            _change(lock, tried, run, f"access-{number}", options, guard, listen, narrate)
    return {node.target.name: node.outcome for node in known}


def _batches(nodes: list[_Node], size: int) -> Iterator[list[_Node]]:
    """The first node of every group, then the others by so many."""
    first = list({id(node.group): node for node in reversed(nodes)}.values())
    yield first
    others = [node for node in nodes if node not in first]
    for start in range(0, len(others), size):
        yield others[start : start + size]


def _first_failed(node: _Node, known: list[_Node]) -> bool:
    """Leave a node alone whose group's first one could not be changed."""
    first = next(each for each in known if each.group is node.group)
    if first is node or first.failure is None:
        return False
    node.fail(GpuprovError(f"left as it is, because {first.target.name} failed: {first.failure.seen}"))
    return True


def _change(
    lock: Lock,
    nodes: list[_Node],
    run: Path,
    part: str,
    options: Options,
    guard: Guard,
    listen: Listener,
    narrate: Narrate,
) -> None:
    token = run.name
    with ExitStack() as sessions, ThreadPoolExecutor(max_workers=max(1, len(nodes))) as pool:
        list(pool.map(lambda node: _arm(node, sessions, guard, token), nodes))
        armed = {node.target.name: node for node in nodes if node.failure is None}
        if not armed:
            return
        narrate(f"{fold(armed)}: back to old SSH and firewall in {guard.seconds} s unless a new login works")
        tokens = {"ssh_hardening_guard": token, "firewall_guard": token}
        variables = {name: {**node.variables, **tokens} for name, node in armed.items()}
        outcomes = _play(lock, variables, run, part, options, listen)
        for name, outcome in outcomes.items():
            armed[name].outcome = outcome
        list(pool.map(lambda node: _conclude(node, guard, token, narrate), armed.values()))


def _arm(node: _Node, sessions: ExitStack, guard: Guard, token: str) -> None:
    try:
        node.session = sessions.enter_context(open_session(node.target, LIMITS))
        refuse_if_shut_out(node.group, source_address(node.session))
        arm(node.session, guard, token)
    except GpuprovError as error:
        node.fail(error)


def _conclude(node: _Node, guard: Guard, token: str, narrate: Narrate) -> None:
    """Keep the change where its roles ended well and a new login works; take it back elsewhere."""
    failure = _prove(node, guard, token) if node.outcome.ok else GpuprovError("a role failed")
    if failure:
        narrate(f"{node.target.name}: {failure.seen}; waiting until it has its old SSH and firewall again")
        node.fail(undo(node.session, node.target, guard, token, failure))


def _prove(node: _Node, guard: Guard, token: str) -> GpuprovError | None:
    try:
        prove_and_disarm(node.target, node.ports, guard, token)
    except GpuprovError as error:
        return error
    return None


def _play(
    lock: Lock, nodes: dict[str, dict[str, Any]], run: Path, part: str, options: Options, listen: Listener
) -> dict[str, NodeOutcome]:
    """Run the roles, with a folder of their own; what Ansible gathered earlier in the run serves them."""
    folder = run / part
    folder.mkdir()
    return run_playbook("site", lock, nodes, folder, options=options, facts=run / "facts", listen=listen)

"""Facts of many nodes at once, and their drift."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial

from gpuprov.drift.judge import NodeDrift, judge_answer, without_facts
from gpuprov.drift.probe_request import as_root, drift_parameters, parameters
from gpuprov.errors import GpuprovError
from gpuprov.model.lock import Lock, LockedGroup
from gpuprov.model.selection import narrowed
from gpuprov.probe.collect import ask
from gpuprov.probe.facts import Facts
from gpuprov.probe.payload import ANSWER_LIMIT, Parameters, Payload, build
from gpuprov.roles import expectations
from gpuprov.ssh import elsewhere
from gpuprov.ssh.transport import ConnectionLimits, PerNode, Session, Target, fan_out, targets

LIMITS = ConnectionLimits(connect_s=10, command_s=60, answer_bytes=ANSWER_LIMIT)


def gather(
    lock: Lock,
    names: Iterable[str],
    question: Callable[[LockedGroup], Parameters] = parameters,
    *,
    forks: int = 64,
    password: str | None = None,
) -> Iterator[tuple[str, Facts | GpuprovError]]:
    """Probe nodes; yield facts or errors as they arrive.

    Args:
        question: makes the probe's parameters for the nodes of a group.
        password: sudo's password, if it requires one.
    """
    payloads = {
        host: payload
        for group in lock.groups.values()
        for payload in [build(question(group), password=password)]
        for host in group.hosts
    }
    work = PerNode(_probe, payloads)
    for target, answer in fan_out(targets(lock, names), work, answer=Facts, forks=forks, limits=LIMITS):
        yield target.name, answer


def survey(
    lock: Lock,
    names: Iterable[str],
    *,
    forks: int = 64,
    password: str | None = None,
    answered: Callable[[], None] = lambda: None,
) -> list[NodeDrift]:
    """Return each node's drift, in the lock's order; a node that does not answer has a result too.

    Args:
        answered: called for each node that answered or failed.
    """
    found: dict[str, NodeDrift] = {}
    if elsewhere.is_engaged():

        def part(some: Collection[str]) -> elsewhere.Work[None, NodeDrift]:
            return partial(_survey_shard, narrowed(lock, some), forks, password)

        for name, node in elsewhere.spread(part, dict.fromkeys(names), answer=NodeDrift):
            found[name] = without_facts(name, node) if isinstance(node, GpuprovError) else node
            answered()
        return [found[name] for name in lock.hosts() if name in found]
    expected = {name: expectations(group) for name, group in lock.groups.items()}
    of_host = {host: expected[name] for name, group in lock.groups.items() for host in group.hosts}
    for name, answer in gather(lock, names, drift_parameters, forks=forks, password=password):
        found[name] = judge_answer(name, answer, of_host[name])
        answered()
    return [found[name] for name in of_host if name in found]


def _survey_shard(
    lock: Lock, forks: int, password: str | None, names: Mapping[str, None]
) -> dict[str, NodeDrift]:
    """Survey a part of the nodes where they are probed: facts are a hundred times larger than results."""
    return {node.name: node for node in survey(lock, names, forks=forks, password=password)}


def gather_from(
    nodes: list[Target], *, forks: int = 64, password: str | None = None
) -> Iterator[tuple[str, Facts | GpuprovError]]:
    """Yield facts of nodes without a lock, as `gather` does."""
    payload = build(Parameters(), password=password)
    work = partial(_probe, payload=payload)
    for target, answer in fan_out(nodes, work, answer=Facts, forks=forks, limits=LIMITS):
        yield target.name, answer


def _probe(session: Session, payload: Payload) -> Facts:
    return as_root(ask(session, payload), session.target.route.user)

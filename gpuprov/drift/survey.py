"""Facts of many nodes at once, and what in them differs from the lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from gpuprov.drift.judge import NodeDrift, judge_answer, without_facts
from gpuprov.drift.probe_request import as_root, drift_parameters, parameters
from gpuprov.errors import GpuprovError
from gpuprov.model.lock import Lock, LockedGroup
from gpuprov.probe.collect import ask
from gpuprov.probe.facts import Facts
from gpuprov.probe.payload import ANSWER_LIMIT, Parameters, Payload, build
from gpuprov.roles import expectations
from gpuprov.ssh import elsewhere
from gpuprov.ssh.transport import ConnectionLimits, Session, Target, fan_out, targets

LIMITS = ConnectionLimits(connect_s=10, command_s=60, answer_bytes=ANSWER_LIMIT)


def gather(
    lock: Lock,
    names: Iterable[str],
    question: Callable[[LockedGroup], Parameters] = parameters,
    *,
    forks: int = 64,
    password: str | None = None,
) -> Iterator[tuple[str, Facts | GpuprovError]]:
    """Ask nodes for their facts; answers come as they are ready, failures among them.

    Args:
        question: what to ask the nodes of a group.
        password: sudo's, where it asks for one.
    """
    payloads = {
        host: payload
        for group in lock.groups.values()
        for payload in [build(question(group), password=password)]
        for host in group.hosts
    }

    def probe(session: Session) -> Facts:
        return _probe(session, payloads[session.target.name])

    for target, answer in fan_out(targets(lock, names), probe, forks=forks, limits=LIMITS):
        yield target.name, answer


def survey(
    lock: Lock,
    names: Iterable[str],
    *,
    forks: int = 64,
    password: str | None = None,
    answered: Callable[[], None] = lambda: None,
) -> list[NodeDrift]:
    """Each node's drift, in the lock's order; a node that does not answer is one of the answers.

    Args:
        answered: called for each node that has answered, or failed to.
    """
    found: dict[str, NodeDrift] = {}
    if elsewhere.is_engaged():
        work = partial(_survey_shard, lock, forks, password)
        for name, node in elsewhere.spread(work, dict.fromkeys(names)):
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
    """Judged where they are asked: facts are a hundred times what is made of them."""
    return {node.name: node for node in survey(lock, names, forks=forks, password=password)}


def gather_from(
    nodes: list[Target], *, forks: int = 64, password: str | None = None
) -> Iterator[tuple[str, Facts | GpuprovError]]:
    """Facts of nodes that no lock describes, as `gather` gives them."""
    payload = build(Parameters(), password=password)
    for target, answer in fan_out(nodes, lambda node: _probe(node, payload), forks=forks, limits=LIMITS):
        yield target.name, answer


def _probe(session: Session, payload: Payload) -> Facts:
    return as_root(ask(session, payload), session.target.route.user)

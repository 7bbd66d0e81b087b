"""Facts of many nodes at once, and their drift."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial

from gpuprov.drift.judge import NodeDrift, judge_answer, without_facts
from gpuprov.drift.probe_request import as_root, drift_parameters, parameters
from gpuprov.drift.restated import restated
from gpuprov.errors import GpuprovError
from gpuprov.model.lock import Lock, LockedGroup
from gpuprov.model.selection import for_worker
from gpuprov.probe.collect import ask
from gpuprov.probe.facts import Facts
from gpuprov.probe.payload import ANSWER_LIMIT, Parameters, Payload, build
from gpuprov.roles import Expectation, expectations
from gpuprov.ssh.contained import contained
from gpuprov.ssh.dispatch import DIRECT, Dispatch, Work
from gpuprov.ssh.transport import ConnectionLimits, PerNode, Session, Target, fan_out, targets

LIMITS = ConnectionLimits(connect_s=10, command_s=60, answer_bytes=ANSWER_LIMIT)


def gather(
    lock: Lock,
    names: Iterable[str],
    question: Callable[[LockedGroup], Parameters] = parameters,
    *,
    dispatch: Dispatch = DIRECT,
    meanwhile: Callable[[], object] = lambda: None,
) -> Iterator[tuple[str, Facts | GpuprovError]]:
    """Probe nodes of the lock; yield name and facts, or name and error, as they arrive.

    A node on which the probe has no root rights yields an error.

    Args:
        question: makes the probe's parameters for the nodes of a group.
        meanwhile: is called once while nodes are under way, see `fan_out`.
    """
    payloads = {
        host: payload
        for group in lock.groups.values()
        for payload in [build(question(group), password=dispatch.password)]
        for host in group.hosts
    }
    work = PerNode(_probe, payloads)
    nodes = targets(lock, names)
    for target, answer in fan_out(
        nodes, work, answer=Facts, dispatch=dispatch, limits=LIMITS, meanwhile=meanwhile
    ):
        yield target.name, answer


def survey(
    lock: Lock,
    names: Iterable[str],
    *,
    dispatch: Dispatch = DIRECT,
    answered: Callable[[], None] = lambda: None,
    meanwhile: Callable[[], object] = lambda: None,
) -> list[NodeDrift]:
    """Return each node's drift, in the lock's order; a node that does not answer has a result too.

    With workers, they survey the nodes and return only results.

    Args:
        answered: called for each node that answered or failed.
        meanwhile: is called once while nodes are under way, for what the results will need.
    """
    found: dict[str, NodeDrift] = {}
    expected = {name: expectations(group) for name, group in lock.groups.items()}
    of_host = {host: expected[name] for name, group in lock.groups.items() for host in group.hosts}
    if dispatch.crew is not None:
        meanwhile()

        def part(some: Collection[str]) -> Work[None, NodeDrift]:
            return partial(_survey_shard, for_worker(lock, some), dispatch.here())

        by_check = {name: {each.check: each for each in some} for name, some in expected.items()}
        stated = {host: by_check[name] for name, group in lock.groups.items() for host in group.hosts}
        for name, node in dispatch.spread(part, dict.fromkeys(names), answer=NodeDrift):
            found[name] = _from_worker(name, node, stated[name])
            answered()
        return [found[name] for name in of_host if name in found]
    for name, answer in gather(lock, names, drift_parameters, dispatch=dispatch, meanwhile=meanwhile):
        found[name] = judge_answer(name, answer, of_host[name])
        answered()
    return [found[name] for name in of_host if name in found]


def _from_worker(name: str, answer: NodeDrift | GpuprovError, stated: Mapping[str, Expectation]) -> NodeDrift:
    """Return a worker's result as the lock states it; one that contradicts the lock is the node's error."""
    found = answer if isinstance(answer, GpuprovError) else contained(name, partial(restated, answer, stated))
    return without_facts(name, found) if isinstance(found, GpuprovError) else found


def _survey_shard(lock: Lock, dispatch: Dispatch, names: Mapping[str, None]) -> dict[str, NodeDrift]:
    """Return node → result, surveyed where nodes are probed: facts are 100 times larger than results."""
    return {node.name: node for node in survey(lock, names, dispatch=dispatch)}


def gather_from(
    nodes: list[Target], *, dispatch: Dispatch = DIRECT
) -> Iterator[tuple[str, Facts | GpuprovError]]:
    """Yield name and facts of nodes without a lock, or name and error, as they arrive; all collectors run."""
    payload = build(Parameters(), password=dispatch.password)
    work = partial(_probe, payload=payload)
    for target, answer in fan_out(nodes, work, answer=Facts, dispatch=dispatch, limits=LIMITS):
        yield target.name, answer


def _probe(session: Session, payload: Payload) -> Facts:
    """Return the facts of a session's node; raise NodeFailed if root did not collect them."""
    return as_root(ask(session, payload), session.target.route.user)

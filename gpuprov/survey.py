"""Facts of many nodes at once, and what in them differs from the lock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpuprov.drift import NodeDrift, judge, without_facts
from gpuprov.errors import GpuprovError, InvalidInput, NodeFailed
from gpuprov.expectations import (
    CDI_UNIT,
    CLOCKS_UNIT,
    CUDA_LINK,
    DOCKER_UNIT,
    FABRIC_UNIT,
    FIREWALL_UNIT,
    MODES_UNIT,
    PERSISTENCE_UNIT,
    expectations,
)
from gpuprov.expectations.observing import DCGM_UNIT, EXPORTER_UNIT, textfile_path
from gpuprov.expectations.storage import clients
from gpuprov.expectations.tuning import environment, sysctls
from gpuprov.facts import Facts
from gpuprov.lock import Lock, LockedGroup
from gpuprov.probe.collect import ask, collect_local
from gpuprov.probe.payload import ANSWER_LIMIT, Parameters, Payload, build
from gpuprov.transport import Limits, Session, Target, fan_out, targets

LIMITS = Limits(connect_s=10, command_s=60, answer_bytes=ANSWER_LIMIT)


def parameters(group: LockedGroup) -> Parameters:
    """What the probe has to look at on nodes of a group."""
    named = [name for _, component in group.components.each() for name in component.closure]
    named += clients(group)
    absent = group.components.absent
    units = (
        PERSISTENCE_UNIT,
        CLOCKS_UNIT,
        MODES_UNIT,
        CDI_UNIT,
        DOCKER_UNIT,
        FABRIC_UNIT,
        EXPORTER_UNIT,
        DCGM_UNIT,
        FIREWALL_UNIT,
    )
    tuning = group.setting("tuning") or {}
    variables = "|".join([Parameters.environment, *(f"{name}$" for name in environment(tuning))])
    return Parameters(
        packages=named,
        package_pattern="|".join([Parameters.package_pattern, *map("^(?:{})$".format, absent.values())]),
        units=units,
        files=(CUDA_LINK, *filter(None, [textfile_path(group)])),
        sysctls=tuple(sysctls(tuning)),
        environment=variables,
        scratch=tuple(each["mount"] for each in group.setting("scratch") or ()),
        mig=bool(group.setting("mig")),
        login=group.connection.user,
    )


def gather(
    lock: Lock, names: Iterable[str], *, forks: int = 64, password: str | None = None
) -> Iterator[tuple[str, Facts | GpuprovError]]:
    """Ask nodes for their facts; answers come as they are ready, failures among them.

    Args:
        password: sudo's, where it asks for one.
    """
    payloads = {
        host: payload
        for group in lock.groups.values()
        for payload in [build(parameters(group), password=password)]
        for host in group.hosts
    }

    def probe(session: Session) -> Facts:
        return _probe(session, payloads[session.target.name])

    for target, answer in fan_out(targets(lock, names), probe, forks=forks, limits=LIMITS):
        yield target.name, answer


def survey(
    lock: Lock, names: Iterable[str], *, forks: int = 64, password: str | None = None
) -> list[NodeDrift]:
    """Each node's drift, in the lock's order; a node that does not answer is one of the answers."""
    expected = {name: expectations(group) for name, group in lock.groups.items()}
    of_host = {host: expected[name] for name, group in lock.groups.items() for host in group.hosts}
    found: dict[str, NodeDrift] = {}
    for name, answer in gather(lock, names, forks=forks, password=password):
        if isinstance(answer, Facts):
            found[name] = judge(name, answer, of_host[name])
        else:
            found[name] = without_facts(name, answer)
    return [found[name] for name in of_host if name in found]


def survey_here(lock: Lock, names: Sequence[str]) -> list[NodeDrift]:
    """The drift of this machine, which is the one node named.

    Raises:
        InvalidInput: several nodes are named.
        NodeFailed: no root rights here, or no answer from the probe.
    """
    if len(names) != 1:
        raise InvalidInput(
            f"this machine cannot stand for {len(names)} nodes", do="name one node of the lock"
        )
    group = lock.hosts()[names[0]]
    facts = _as_root(collect_local(parameters(group)), "this user")
    return [judge(names[0], facts, expectations(group))]


def gather_from(
    nodes: list[Target], *, forks: int = 64, password: str | None = None
) -> Iterator[tuple[str, Facts | GpuprovError]]:
    """Facts of nodes that no lock describes, as `gather` gives them."""
    payload = build(Parameters(), password=password)
    for target, answer in fan_out(nodes, lambda node: _probe(node, payload), forks=forks, limits=LIMITS):
        yield target.name, answer


def _probe(session: Session, payload: Payload) -> Facts:
    return _as_root(ask(session, payload), session.target.connection.user)


def _as_root(facts: Facts, user: str) -> Facts:
    if not facts.is_root:
        raise NodeFailed(
            f"no root rights: {user} may not use sudo without a password",
            do="allow it in sudoers, or give the password with -K",
        )
    return facts

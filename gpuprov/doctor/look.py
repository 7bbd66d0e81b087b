"""Examination of a machine: all collectors in one command over one channel, or here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpuprov.doctor.collecting import PARAMETERS
from gpuprov.doctor.examination import Examination
from gpuprov.doctor.judge import Diagnosis, diagnose
from gpuprov.doctor.load.verdict import judge_load
from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov.probe.collect import ask, collect_local
from gpuprov.probe.facts import Facts
from gpuprov.probe.payload import ANSWER_LIMIT, CLOSER_PROBE, LOAD_PROBE, Parameters, Payload, build
from gpuprov.ssh.contained import contained
from gpuprov.ssh.dispatch import DIRECT, Dispatch
from gpuprov.ssh.transport import ConnectionLimits, Session, Target, fan_out

LIMITS = ConnectionLimits(connect_s=10, command_s=60, answer_bytes=ANSWER_LIMIT)


def examine_here(*, become: bool = True) -> Examination:
    """Examine this machine, without SSH.

    Raises:
        NodeFailed: no answer from the probe.
    """
    return examination(collect_local(PARAMETERS, become=become, modules=CLOSER_PROBE))


def examination(facts: Facts) -> Examination:
    """Convert facts that were collected with `PARAMETERS`."""
    return Examination(facts.host, facts.collected_at, facts.seconds, facts.collectors)


def examine(
    nodes: list[Target], *, dispatch: Dispatch = DIRECT
) -> Iterator[tuple[str, Examination | GpuprovError]]:
    """Examine nodes; yield results as they arrive, a node's error as its result."""
    payload = build(PARAMETERS, password=dispatch.password, modules=CLOSER_PROBE)

    def visit(session: Session) -> Examination:
        return examination(ask(session, payload))

    for target, answer in fan_out(nodes, visit, dispatch=dispatch, limits=LIMITS):
        yield target.name, answer


def conclude(name: str, answer: Examination | GpuprovError) -> Diagnosis:
    """Return a node's diagnosis, or its failure."""
    if isinstance(answer, GpuprovError):
        return Diagnosis(name, failure=answer)
    found = contained(name, lambda: diagnose(answer, name))
    return Diagnosis(name, failure=found) if isinstance(found, GpuprovError) else found


def sample_here(seconds: float) -> Diagnosis:
    """Sample this machine and return its bottleneck; no readable GPU is the diagnosis's failure.

    Raises:
        NodeFailed: no answer from the probe.
    """
    facts = collect_local(_sampling(seconds), seconds=seconds + 60, modules=LOAD_PROBE)
    return _loaded(facts.host, facts)


def sample(
    nodes: list[Target], seconds: float, *, dispatch: Dispatch = DIRECT
) -> Iterator[tuple[str, Diagnosis]]:
    """Sample nodes for some seconds; yield name and bottlenecks as they arrive, a node's error as the failure
    of its diagnosis.
    """
    payload: Payload = build(_sampling(seconds), password=dispatch.password, modules=LOAD_PROBE)
    limits = replace(LIMITS, command_s=seconds + 60)

    def visit(session: Session) -> Diagnosis:
        return _loaded(session.target.name, ask(session, payload))

    for target, answer in fan_out(nodes, visit, dispatch=dispatch, limits=limits):
        failed = isinstance(answer, GpuprovError)
        yield target.name, Diagnosis(target.name, failure=answer) if failed else answer  # type: ignore[arg-type,misc]


def _sampling(seconds: float) -> Parameters:
    """Return parameters for the collector `load` over some seconds."""
    return Parameters(collectors=("load",), sample=seconds, seconds={"load": seconds + 45})


def _loaded(name: str, facts: Facts) -> Diagnosis:
    """Return the diagnosis of a sample; one that is missing or unusable (`NodeFailed`) is its failure."""
    found = contained(name, lambda: tuple(judge_load(facts.raw("load"))))
    if isinstance(found, NodeFailed):
        return Diagnosis(name, failure=found)
    if isinstance(found, GpuprovError):
        raise found
    return Diagnosis(name, found, seconds=facts.seconds, looked_at=facts.collected_at)

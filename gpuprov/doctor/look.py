"""Examination of a machine: all collectors in one command over one channel, or here."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING

from gpuprov.doctor.collecting import PARAMETERS
from gpuprov.doctor.examination import Examination
from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov.probe.collect import ask, collect_local
from gpuprov.probe.facts import Facts
from gpuprov.probe.payload import ANSWER_LIMIT, CLOSER_PROBE, LOAD_PROBE, Parameters, Payload, build
from gpuprov.ssh.contained import contained
from gpuprov.ssh.dispatch import DIRECT, Dispatch

if TYPE_CHECKING:
    from gpuprov.doctor.judge import Diagnosis
    from gpuprov.ssh.transport import ConnectionLimits, Session, Target

COMMAND_S = 60
"""Time limit of the examination of a node in seconds."""


def examine_here(*, become: bool = True) -> Examination:
    """Examine this machine, without SSH. The rules are loaded meanwhile, which takes as long.

    Raises:
        NodeFailed: no answer from the probe.
    """
    Thread(target=import_module, args=("gpuprov.doctor.judge",), daemon=True).start()
    return examination(collect_local(PARAMETERS, become=become, modules=CLOSER_PROBE))


def examination(facts: Facts) -> Examination:
    """Convert facts that were collected with `PARAMETERS`."""
    return Examination(facts.host, facts.collected_at, facts.seconds, facts.collectors)


def examine(
    nodes: list[Target], *, dispatch: Dispatch = DIRECT
) -> Iterator[tuple[str, Examination | GpuprovError]]:
    """Examine nodes; yield results as they arrive, a node's error as its result."""
    from gpuprov.ssh.transport import fan_out

    payload = build(PARAMETERS, password=dispatch.password, modules=CLOSER_PROBE)

    def visit(session: Session) -> Examination:
        return examination(ask(session, payload))

    for target, answer in fan_out(nodes, visit, dispatch=dispatch, limits=_limits(COMMAND_S)):
        yield target.name, answer


def conclude(name: str, answer: Examination | GpuprovError) -> Diagnosis:
    """Return a node's diagnosis, or its failure."""
    from gpuprov.doctor.judge import Diagnosis, diagnose

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
    from gpuprov.doctor.judge import Diagnosis
    from gpuprov.ssh.transport import fan_out

    payload: Payload = build(_sampling(seconds), password=dispatch.password, modules=LOAD_PROBE)

    def visit(session: Session) -> Diagnosis:
        return _loaded(session.target.name, ask(session, payload))

    for target, answer in fan_out(nodes, visit, dispatch=dispatch, limits=_limits(seconds + COMMAND_S)):
        failed = isinstance(answer, GpuprovError)
        yield target.name, Diagnosis(target.name, failure=answer) if failed else answer  # type: ignore[arg-type,misc]


def _limits(seconds: float) -> ConnectionLimits:
    """Return the limits of a connection for a command of at most this many seconds.

    Modules that connect by SSH take longer to load than the rest: a machine examines itself without them.
    """
    from gpuprov.ssh.transport import ConnectionLimits

    return ConnectionLimits(connect_s=10, command_s=seconds, answer_bytes=ANSWER_LIMIT)


def _sampling(seconds: float) -> Parameters:
    """Return parameters for the collector `load` over some seconds."""
    return Parameters(collectors=("load",), sample=seconds, seconds={"load": seconds + 45})


def _loaded(name: str, facts: Facts) -> Diagnosis:
    """Return the diagnosis of a sample; one that is missing or unusable (`NodeFailed`) is its failure."""
    from gpuprov.doctor.judge import Diagnosis
    from gpuprov.doctor.load.verdict import judge_load

    found = contained(name, lambda: tuple(judge_load(facts.raw("load"))))
    if isinstance(found, NodeFailed):
        return Diagnosis(name, failure=found)
    if isinstance(found, GpuprovError):
        raise found
    return Diagnosis(name, found, seconds=facts.seconds, looked_at=facts.collected_at)

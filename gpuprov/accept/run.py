"""Load and measurement of nodes: over SSH, many at a time, or on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuprov.accept.program import FRAMEWORK_S, PLANS, Level, framework, program
from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov.probe.here import absolute, run_here
from gpuprov.probe.payload import ANSWER_LIMIT
from gpuprov.ssh.dispatch import DIRECT, Dispatch
from gpuprov.ssh.transport import ConnectionLimits, Session, Target, fan_out

BEYOND_S = 60
"""Seconds to wait for the program beyond the time limit that it sets itself."""
MEASURED = 2 << 20
"""Maximum number of characters of a node's document, which is kept and written for all nodes: with NCCL's log
of 512 KiB, 64 GPUs and all their pairs it has 1.4 million; recorded ones of 4 GPUs have 80,000.
"""
FRAMEWORKS = 256 << 10
"""The same for the document of frameworks."""


def measure_here(level: Level, *, folders: Sequence[str] = (), drained: bool = False) -> dict[str, Any]:
    """Measure this machine's GPUs and return the document.

    Args:
        folders, drained: as `gpuprov.accept.program.program`.

    Raises:
        NodeFailed: no answer.
    """
    payload = program(level, folders=[str(Path(each).absolute()) for each in folders], drained=drained)
    seconds = PLANS[level]["seconds"] + BEYOND_S
    done = run_here(payload.command, payload.stdin, seconds=seconds, limit=ANSWER_LIMIT)
    return payload.answer(done.stdout, done.stderr)


def frameworks_here(python: str) -> dict[str, Any]:
    """Measure with the frameworks of an interpreter on this machine and return their document.

    Raises:
        NodeFailed: no answer.
    """
    payload = framework(absolute(python))
    seconds = FRAMEWORK_S + BEYOND_S
    done = run_here(payload.command, payload.stdin, seconds=seconds, limit=ANSWER_LIMIT)
    return payload.answer(done.stdout, done.stderr)


def frameworks_there(
    nodes: list[Target], python: str, *, dispatch: Dispatch = DIRECT
) -> Iterator[tuple[str, Mapping[str, Any] | GpuprovError]]:
    """Measure with the frameworks of an interpreter on each node; yield name and answer, or error, as they
    arrive.
    """
    payload = framework(python)
    limits = ConnectionLimits(connect_s=10, command_s=FRAMEWORK_S + BEYOND_S, answer_bytes=ANSWER_LIMIT)

    def visit(session: Session) -> dict[str, Any]:
        done = session.run(payload.command, payload.stdin)
        return payload.answer(done.stdout, done.stderr)

    for target, answer in fan_out(nodes, visit, answer=dict[str, Any], dispatch=dispatch, limits=limits):
        yield target.name, _limited(answer, FRAMEWORKS)


def _limited(answer: Mapping[str, Any] | GpuprovError, most: int) -> Mapping[str, Any] | GpuprovError:
    """Return a node's answer; an error in place of a document with more characters than `most` as JSON."""
    if isinstance(answer, GpuprovError) or (size := len(json.dumps(answer))) <= most:
        return answer
    return NodeFailed(f"the answer holds {size} characters of measurements", expected=f"at most {most}")


def with_frameworks(
    result: Mapping[str, Any] | GpuprovError, python: str, answer: Mapping[str, Any] | GpuprovError
) -> Mapping[str, Any] | GpuprovError:
    """Return a node's document with an interpreter's measurements, or their error, as `framework`, and the
    path of the interpreter in it; return a node's error unchanged.
    """
    if isinstance(result, GpuprovError):
        return result
    said = {"error": str(answer)} if isinstance(answer, GpuprovError) else dict(answer)
    return {**result, "framework": {**said, "interpreter": python}}


def measure_there(
    nodes: list[Target],
    level: Level,
    *,
    dispatch: Dispatch = DIRECT,
    folders: Sequence[str] = (),
    drained: bool = False,
) -> Iterator[tuple[str, Mapping[str, Any] | GpuprovError]]:
    """Measure nodes; yield each node's name with its document, or its error, as they arrive.

    Args:
        folders, drained: as `gpuprov.accept.program.program`.
    """
    payload = program(level, password=dispatch.password, folders=folders, drained=drained)
    limits = ConnectionLimits(
        connect_s=10, command_s=PLANS[level]["seconds"] + BEYOND_S, answer_bytes=ANSWER_LIMIT
    )

    def visit(session: Session) -> dict[str, Any]:
        done = session.run(payload.command, payload.stdin)
        return payload.answer(done.stdout, done.stderr)

    for target, answer in fan_out(nodes, visit, answer=dict[str, Any], dispatch=dispatch, limits=limits):
        yield target.name, _limited(answer, MEASURED)

"""Acts on many nodes at once: one channel each, and its answer or the reason why there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gpuprov.apply.context import Options
from gpuprov.errors import GpuprovError, NodeFailed, Unreachable
from gpuprov.model.lock import Lock
from gpuprov.probe.payload import ANSWER_LIMIT, Payload
from gpuprov.probe.payload import pack as program
from gpuprov.ssh.transport import ConnectionLimits, Session, fan_out, targets

PROBE_PARTS = ("base", "system", "main")
PARTS = ("lease", "files", "packages", "modules", "ahead", "lastgood", "main")
MODULES = (
    "gpuprov_apt",
    *(f"gpuprov.probe.node.{name}" for name in PROBE_PARTS),
    *(f"gpuprov.upgrade.node.{name}" for name in PARTS),
)
QUICK_S = 60.0
AGAIN_S = 2.0
PACKAGES_S = 3600.0
"""A transaction that compiles a module for several kernels, behind another that has to end first."""

Answer = Any | GpuprovError


def act(
    lock: Lock,
    name: str,
    arguments: Mapping[str, Sequence[Any]],
    options: Options,
    *,
    seconds: float = QUICK_S,
    read: Callable[[Any], Any] = lambda result: result,
) -> dict[str, Answer]:
    """Have nodes do one of the acts of `gpuprov.upgrade.node.main`.

    Args:
        arguments: node → what its act is given.
        read: makes of a node's result what is returned; what it raises is that node's failure.

    Returns:
        node → the act's result, or the error that stood in its way.
    """

    def do(session: Session) -> Any:
        payload = program(
            MODULES,
            {"act": name, "arguments": list(arguments[session.target.name])},
            password=options.become_password,
        )
        return read(_result(payload, session))

    limits = ConnectionLimits(command_s=seconds, answer_bytes=ANSWER_LIMIT)
    nodes = targets(lock, arguments)
    return {target.name: answer for target, answer in fan_out(nodes, do, forks=options.forks, limits=limits)}


def _result(payload: Payload, session: Session) -> Any:
    output = session.run(payload.command, payload.stdin)
    answer = payload.answer(output.stdout, output.stderr)
    if "error" in answer:
        raise NodeFailed(str(answer["error"]))
    if "result" not in answer:
        raise NodeFailed("an answer to another question", expected="a result")
    return answer["result"]


def await_nodes(lock: Lock, names: Iterable[str], options: Options, seconds: float) -> None:
    """Return when all nodes let us in, or so many seconds have passed: a cut line is no reason to give up."""
    deadline = time.monotonic() + seconds
    waiting = list(names)
    while waiting:
        answers = fan_out(targets(lock, waiting), lambda session: None, forks=options.forks)
        waiting = [target.name for target, answer in answers if isinstance(answer, Unreachable)]
        if time.monotonic() > deadline:
            return
        time.sleep(AGAIN_S if waiting else 0)


def failures(answers: Mapping[str, Answer]) -> dict[str, str]:
    """Node → what went wrong there."""
    return {name: str(answer) for name, answer in answers.items() if isinstance(answer, GpuprovError)}


def same(names: Iterable[str], *arguments: Any) -> dict[str, Sequence[Any]]:
    """The same arguments for every node."""
    return dict.fromkeys(names, arguments)

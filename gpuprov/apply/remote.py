"""gpuprov's programs on many nodes at once: one channel for each node, and its answer or the error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gpuprov.errors import TEXT, GpuprovError, NodeFailed
from gpuprov.probe.payload import ANSWER_LIMIT, Payload, pack
from gpuprov.ssh.contained import contained
from gpuprov.ssh.dispatch import Dispatch
from gpuprov.ssh.transport import ConnectionLimits, Session, Target, fan_out
from gpuprov.untrusted.urls import public_urls

Answer = Any | GpuprovError
QUICK_S = 60.0


def as_it_is(result: Any) -> Any:
    """Return a node's result."""
    return result


def ask_nodes(
    modules: tuple[str, ...],
    nodes: Iterable[Target],
    questions: Mapping[str, Mapping[str, Any]],
    *,
    dispatch: Dispatch,
    seconds: float = QUICK_S,
    read: Callable[[Any], Any] = as_it_is,
) -> dict[str, Answer]:
    """Run a program on each node, and return its answers to questions.

    Args:
        modules: the modules of the program, all sent to the node; the last one answers.
        questions: node → question for it.
        read: converts a node's result into the returned value, as soon as it arrives: the result itself is
            not kept. An exception in it is that node's failure.

    Returns:
        node → the result, or the error.

    Raises:
        CrewLost: as `Dispatch.spread`.
    """

    work = partial(_ask_here, modules, dispatch.here(), seconds)
    each = {node.name: (replace(node), questions[node.name]) for node in nodes}
    if dispatch.crew is None:
        return dict(dispatch.spread(lambda names: partial(work, read=read), each, answer=Any))
    return read_all(dispatch.spread(lambda names: work, each, answer=Any), read)


def read_all(answers: Iterable[tuple[str, Answer]], read: Callable[[Any], Any]) -> dict[str, Answer]:
    """Read the answers of workers, in this process and never on a worker; return node → result or error.

    An unreadable answer is that node's failure.
    """
    return {
        name: answer if isinstance(answer, GpuprovError) else contained(name, partial(read, answer))
        for name, answer in answers
    }


def _ask_here(
    modules: tuple[str, ...],
    dispatch: Dispatch,
    seconds: float,
    asked: Mapping[str, tuple[Target, Mapping[str, Any]]],
    read: Callable[[Any], Any] = as_it_is,
) -> dict[str, Answer]:
    """Run a program on nodes from this machine.

    Args:
        asked: node → its connection, and the question for it.
        read: conversion of a node's result; a worker does none.

    Returns:
        node → the result, or the error.
    """

    def ask(session: Session) -> Any:
        payload = pack(modules, asked[session.target.name][1], password=dispatch.password)
        return read(_result(payload, session))

    limits = ConnectionLimits(command_s=seconds, answer_bytes=ANSWER_LIMIT)
    answers = fan_out([node for node, _ in asked.values()], ask, dispatch=dispatch, limits=limits)
    return {target.name: answer for target, answer in answers}


def same(names: Iterable[str], *arguments: Any) -> dict[str, Sequence[Any]]:
    """Return node → the arguments, which are the same for every node."""
    return dict.fromkeys(names, arguments)


def _result(payload: Payload, session: Session) -> Any:
    """Run a program in a session, and return its result.

    Raises:
        NodeFailed: the program reports an error, or its answer has no result.
    """
    output = session.run(payload.command, payload.stdin)
    answer = payload.answer(output.stdout, output.stderr)
    if "error" in answer:
        raise NodeFailed(public_urls(str(answer["error"])[:TEXT]))
    if "result" not in answer:
        raise NodeFailed("the answer belongs to another request", expected="a result")
    return answer["result"]

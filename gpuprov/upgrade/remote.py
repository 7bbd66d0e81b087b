"""Acts of an upgrade on many nodes in parallel, and a wait for unreachable nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gpuprov.apply.attempts import change
from gpuprov.apply.context import Options, RunContext
from gpuprov.apply.lease_manager import LeaseManager
from gpuprov.apply.remote import QUICK_S, Answer, as_it_is, ask_nodes, read_all
from gpuprov.errors import GpuprovError, Unreachable
from gpuprov.model.lock import Lock
from gpuprov.ssh.transport import fan_out, targets

MODULES = ("gpuprov.upgrade.node.main",)
AGAIN_S = 2.0
PATIENCE = 0.75
"""Fraction of an act's time limit that it waits for another act to end first."""
PACKAGES_S = 3600.0
"""Time limit in seconds of a transaction that compiles a module for several kernels, after another one."""


def act(
    lock: Lock,
    name: str,
    arguments: Mapping[str, Sequence[Any]],
    options: Options,
    *,
    holds: LeaseManager | None,
    seconds: float = QUICK_S,
    read: Callable[[Any], Any] = as_it_is,
) -> dict[str, Answer]:
    """Run one of the acts of `gpuprov.upgrade.node.main` on nodes.

    Args:
        arguments: node → the arguments of its act.
        holds: the leases that the nodes must have; None if no other run can change them.
        read: conversion of a node's result; its exception is that node's failure. Without workers the result
            itself is not kept.

    Returns:
        node → the act's result, or the error.
    """
    run = RunContext(lock, holds.file.parent if holds else Path(), options, leases=holds)
    if options.dispatch.crew is None:
        return change(partial(_act, name, seconds, read=read), run, arguments, answer=Any)
    return read_all(change(partial(_act, name, seconds), run, arguments, answer=Any).items(), read)


def _act(
    name: str,
    seconds: float,
    run: RunContext,
    arguments: Mapping[str, Sequence[Any]],
    read: Callable[[Any], Any] = as_it_is,
) -> dict[str, Answer]:
    """Run an act on nodes from this machine; return node → its result, or the error; `read` as in `act`."""
    run_id = run.leases.run if run.leases else None
    asked = {"act": name, "holds": run_id, "patience_s": PATIENCE * seconds}
    return ask_nodes(
        MODULES,
        targets(run.lock, arguments),
        {node: {**asked, "arguments": list(given)} for node, given in arguments.items()},
        dispatch=run.options.dispatch,
        seconds=seconds,
        read=read,
    )


def await_nodes(lock: Lock, names: Iterable[str], options: Options, seconds: float) -> None:
    """Wait until all nodes can be reached, or for this many seconds: a lost connection is not yet a failure.

    Nodes that are still unreachable are not reported.
    """
    deadline = time.monotonic() + seconds
    waiting = list(names)
    while waiting:
        answers = fan_out(targets(lock, waiting), lambda session: None, dispatch=options.dispatch)
        waiting = [target.name for target, answer in answers if isinstance(answer, Unreachable)]
        if time.monotonic() > deadline:
            return
        time.sleep(AGAIN_S if waiting else 0)


def failures(answers: Mapping[str, Answer]) -> dict[str, str]:
    """Return node → its error, for nodes that failed."""
    return {name: str(answer) for name, answer in answers.items() if isinstance(answer, GpuprovError)}

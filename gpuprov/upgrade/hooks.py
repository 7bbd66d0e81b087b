"""Hooks: commands before and after a node's change, custom or known, on the controller or on the node."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Literal, get_args

from gpuprov.errors import GpuprovError, InvalidInput, NodeFailed
from gpuprov.model.rollout import Hook
from gpuprov.ssh.contained import contained
from gpuprov.ssh.transport import ConnectionLimits, PerNode, Session, Target, fan_out, targets
from gpuprov.untrusted.programs import TooSlow, run_limited
from gpuprov.upgrade.context import UpgradeContext
from gpuprov.upgrade.known_hooks import KNOWN_HOOKS

Moment = Literal["drain", "snapshot", "resume", "held"]
OUTPUT_BYTES = 64 << 20
"""Maximum output of a hook on the controller in bytes; of a larger one the hook is killed."""
REASON = 200
"""Maximum length of GPUPROV_REASON in characters."""
_SUDO = 'if [ "$(id -u)" = 0 ]; then exec "$@"; fi; exec sudo -n -- "$@"'
_SUDO_ASKED = 'if [ "$(id -u)" = 0 ]; then exec "$@"; fi; exec sudo -S -p "" -- "$@"'


def check_hooks(context: UpgradeContext) -> None:
    """Refuse an unknown hook before any node moves.

    Raises:
        InvalidInput: `use` names an unknown hook, or one without a command for that moment.
    """
    for moment in get_args(Moment):
        hook = getattr(context.rollout.hooks, moment)
        if hook is not None:
            command(hook, moment)


def command(hook: Hook, moment: str) -> tuple[str, str]:
    """Return the shell command of a hook, and where it runs: `controller` or `node`.

    Raises:
        InvalidInput: as `check_hooks`.
    """
    if hook.run is not None:
        return hook.run, hook.on
    known = [name for name, ready in KNOWN_HOOKS.items() if moment in ready.commands]
    if hook.use not in known:
        raise InvalidInput(
            f"rollout.hooks.{moment} uses {hook.use!r}",
            expected=f"one of {', '.join(known)}, or run: COMMAND",
        )
    ready = KNOWN_HOOKS[hook.use]
    return ready.commands[moment], ready.on


def run_hook(
    context: UpgradeContext,
    moment: Moment,
    names: Iterable[str],
    reasons: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Run a hook for all nodes in parallel, here or on each node; return node → why it failed; {} without a
    hook.

    Args:
        reasons: node → why it is out of service, for GPUPROV_REASON.

    Raises:
        InvalidInput: as `command`.
    """
    hook: Hook | None = getattr(context.rollout.hooks, moment)
    if hook is None:
        return {}
    text, where = command(hook, moment)
    nodes = targets(context.old, names)
    if where == "node":
        return _on_nodes(context, hook, text, nodes, reasons)
    with ThreadPoolExecutor(max_workers=max(1, min(context.options.dispatch.forks, len(nodes)))) as pool:
        said = pool.map(
            lambda node: contained(
                node.name, lambda: _here(text, _environment(context, node, hook, reasons), hook.timeout_s)
            ),
            nodes,
        )
        return {node.name: str(each) for node, each in zip(nodes, said, strict=True) if each}


def _environment(
    context: UpgradeContext, node: Target, hook: Hook, reasons: Mapping[str, str]
) -> dict[str, str]:
    """Return a hook's variables: the node's name and address, the run's id, the time limit in seconds.

    With a reason of the node also this one, on one line of at most `REASON` printable characters: it can
    contain text of the node.
    """
    reason = {"GPUPROV_REASON": _ascii(reasons[node.name])} if node.name in reasons else {}
    return reason | {
        "GPUPROV_NODE": node.name,
        "GPUPROV_ADDRESS": node.address,
        "GPUPROV_RUN": context.id,
        "GPUPROV_TIMEOUT": str(int(hook.timeout_s)),
    }


def _ascii(text: str) -> str:
    """Return a text on one line, with `?` for what is not printable ASCII, cut to `REASON` characters."""
    return re.sub(r"[^ -~]", "?", " ".join(text.split()))[:REASON]


def _here(text: str, environment: dict[str, str], timeout_s: float) -> str | None:
    """Run a command on this machine in a new session; return why it failed, None if it did not.

    Its processes are killed after `timeout_s` seconds, or if they print more than `OUTPUT_BYTES`; both are
    failures. One that has left the session and keeps the output open, such as a connection that ssh shares,
    delays neither that nor the result.
    """
    try:
        answer = run_limited(
            ["/bin/sh", "-c", text],
            seconds=timeout_s,
            limit=OUTPUT_BYTES,
            environment=os.environ | environment,
            merged=True,
            session=True,
        )
    except TooSlow as error:
        return _failure(f"did not end within {timeout_s:g} s", error.stdout)
    except NodeFailed as error:
        return f"the hook was ended: it {error}"
    return _failure(f"ended with {answer.code}", answer.stdout) if answer.code else None


def _failure(end: str, stdout: bytes) -> str:
    """Return a message with the hook's end and the last line of its output."""
    lines = stdout.decode("utf-8", "replace").strip().splitlines()
    return f"the hook {end}" + (f": {lines[-1][:200]}" if lines else "")


def _on_nodes(
    context: UpgradeContext, hook: Hook, text: str, nodes: list[Target], reasons: Mapping[str, str]
) -> dict[str, str]:
    """Run a hook's command with root's rights on nodes in parallel; return node → why it failed: an exit
    code, a time limit or the connection.
    """
    password = context.options.dispatch.password
    environments = {node.name: _environment(context, node, hook, reasons) for node in nodes}

    def visit(session: Session, environment: Mapping[str, str]) -> None:
        line = _line(text, environment, _SUDO if password is None else _SUDO_ASKED)
        answer = session.run(line, b"" if password is None else f"{password}\n".encode())
        if answer.code:
            raise NodeFailed(_failure(f"ended with {answer.code}", answer.stdout))

    answers = fan_out(
        nodes,
        PerNode(visit, environments),
        dispatch=context.options.dispatch,
        limits=ConnectionLimits(command_s=hook.timeout_s),
    )
    return {target.name: str(answer) for target, answer in answers if isinstance(answer, GpuprovError)}


def _line(text: str, environment: Mapping[str, str], sudo: str) -> str:
    """Return the command line that runs a hook on a node by `_SUDO` or `_SUDO_ASKED`.

    The hook has no input: sudo's password is left in it on a node where sudo does not ask.
    """
    words = [f"{name}={value}" for name, value in environment.items()]
    return shlex.join(["sh", "-c", sudo, "sh", "env", *words, "sh", "-c", f"exec 2>&1 </dev/null; {text}"])

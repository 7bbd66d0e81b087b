"""The methods of authentication that a node's sshd offers to a connection without credentials."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from gpuprov.errors import NodeFailed
from gpuprov.ssh import openssh
from gpuprov.ssh.route import Route
from gpuprov.untrusted.programs import run_limited

CONNECT_S = 3
SECONDS = 15.0
ALL_S = 20.0
"""Time in which the ports of a node are asked; a port that is begun has `SECONDS`, with its second try."""
LIMIT = 1 << 20
TRIES = 2
WITHOUT_CREDENTIALS = {
    "PreferredAuthentications": "none",
    "PubkeyAuthentication": "no",
    "LogLevel": "DEBUG1",
    "KexAlgorithms": "^curve25519-sha256",
}
ANY_KEY = {
    "StrictHostKeyChecking": "no",
    "UserKnownHostsFile": "/dev/null",
    "GlobalKnownHostsFile": "/dev/null",
}
OFFERED = re.compile(r"(?m)^debug1: Authentications that can continue: ([\w,@.-]+)")
LET_IN = re.compile(r'(?m)^(?:debug1: )?Authenticated to .* using "none"')
AWAY = re.compile(r"refused|timed out|No route to host|Network is unreachable|Host key verification failed")


def offered(way: Route, port: int) -> list[str] | None:
    """Return the methods that sshd offers on a port; `none` if it let the login in without credentials.

    None if a port other than that of the route cannot be reached, or another host answers there: behind a
    router that forwards ports, the host key is not the node's.

    Raises:
        NodeFailed: sshd closes the connection, or what answers is not sshd.
    """
    if way.local and shutil.which("ssh") is None:
        return None
    options, is_own = WITHOUT_CREDENTIALS, port == way.port and not way.local
    name, own_port = way.pinned_as
    if not is_own:
        alias = name if own_port == 22 else f"[{name}]:{own_port}"
        options = {**options, "HostKeyAlias": alias}
    if way.local:
        way = replace(way, address="localhost", hostname="localhost", user=way.login, local=False)
        way, options = replace(way, jump=None, proxy_command=None), {**WITHOUT_CREDENTIALS, **ANY_KEY}
    argv = openssh.ssh_argv(replace(way, port=port), CONNECT_S)
    stated = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    said, end = "", time.monotonic() + SECONDS
    for _ in range(TRIES):
        left = end - time.monotonic()
        if left <= 0:
            break
        answer = run_limited([argv[0], *stated, *argv[1:], "exit"], seconds=left, limit=LIMIT, kill_rest=True)
        said = answer.stderr.decode("utf-8", "replace")
        if LET_IN.search(said):
            return ["none"]
        if found := OFFERED.search(said):
            return found[1].split(",")
        if AWAY.search(said) and not is_own:
            return None
    last = [line for line in said.splitlines() if line.strip() and not line.startswith("debug1: ")][-1:]
    raise NodeFailed(
        f"sshd on port {port} offers no method: {last[0].strip()[:200] if last else 'no answer'}"
    )


def each_offered(ask: Callable[[int], list[str]], own: int, others: Iterable[int]) -> dict[int, list[str]]:
    """Return port → methods, from `ask`, for the port of the connection and then for others.

    Raises:
        NodeFailed: ports are left after `ALL_S`, or from `ask`.
    """
    end = time.monotonic() + ALL_S
    found = {own: ask(own)}
    left = sorted({*others} - {own})
    for port in left:
        if time.monotonic() >= end:
            raise NodeFailed(f"no answer from port {port} within {ALL_S:g} s of asking {1 + len(left)} ports")
        found[port] = ask(port)
    return found

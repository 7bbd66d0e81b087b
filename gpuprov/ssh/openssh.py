"""The system's `ssh`: used by verify, and where Paramiko has no algorithm in common with a node.

Paramiko 5.1 supports one post-quantum key exchange, mlkem768x25519-sha256; OpenSSH before 9.9 supports a
different one. Nodes that offer nothing else are reached this way.
"""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Sequence
from dataclasses import replace

from gpuprov.errors import Unreachable
from gpuprov.ssh.route import Route
from gpuprov.ssh.wording import of_openssh
from gpuprov.untrusted import on_one_line
from gpuprov.untrusted.programs import Answer, run_limited
from gpuprov.untrusted.stated import stated_path

SSH_FAILED = 255  # ssh(1): "255 if an error occurred"
STAND_IN = 193
"""Exit code on the node of a command that ended with `SSH_FAILED`. No command is known to use it: a shell's
codes of signals end at 192, and systemd's codes begin at 200. Output cannot state the difference: it may be
cut, and other processes may write to it."""
KEEP_APART = f'/bin/sh -c "$1"; s=$?; [ $s -ne {SSH_FAILED} ] || s={STAND_IN}; exit $s'
"""Script that runs a command with another exit code in place of ssh's own."""
PLAIN = re.compile(r"[\w@+=:,./~-]+")
"""Paths that ssh reads without quotes as they are."""
CLOSED = {
    "CheckHostIP": "no",
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "NoHostAuthenticationForLocalhost": "no",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "Tunnel": "no",
    "UpdateHostKeys": "no",
    "VerifyHostKeyDNS": "no",
}
"""Options that forward nothing to a node, take host keys from known-hosts files only, also those of a port of
this machine that leads to a node, and write none that a node sends into them, nor a known one for a new
address of its name; also if the user's configuration states otherwise. Of a `RemoteCommand` there ssh would
run no other command.
"""
ONLY_THE_STATED_FILE = {
    "IgnoreUnknown": "KnownHostsCommand",  # OpenSSH before 8.5
    "GlobalKnownHostsFile": "/dev/null",
    "KnownHostsCommand": "none",
}
"""Options with which host keys come from the fleet's known-hosts file only, as with Paramiko."""


def ssh_argv(route: Route, connect_s: float, **more: str) -> list[str]:
    """Return the `ssh` command line for a route, without a command for the node.

    Host keys are checked strictly, no connection is shared, and ssh does not prompt.

    Args:
        more: additional options, as ssh_config(5) names them.
    """
    options = {
        **more,
        "BatchMode": "yes",
        "ConnectTimeout": str(round(connect_s)),
        "ControlMaster": "no",
        "ControlPath": "none",
        "LogLevel": "ERROR",
        "Port": str(route.port),
        "User": route.user,
        **ssh_options(route),
    }
    return ["ssh", "-T", *_words(options), "--", route.address]


def ssh_options(route: Route) -> dict[str, str]:
    """Return the options that ssh needs in addition to user and port; the others are in its configuration."""
    stated = route.stated
    options = {**_closed(route), "StrictHostKeyChecking": "yes"}
    if stated.known_hosts:
        options |= {**ONLY_THE_STATED_FILE, "UserKnownHostsFile": _several(route.known_hosts)}
    if stated.identity_file:
        options |= {"IdentityFile": _several([stated.identity_file]), "IdentitiesOnly": "yes"}
    if route.jump:
        options["ProxyCommand"] = _through(route.jump, route)
    elif stated.jump:
        options["ProxyJump"] = "none"
    return options


def _closed(route: Route) -> dict[str, str]:
    """Return the options with which a host gets nothing of the user but the login.

    Those of Kerberos are only for a configuration that states them: builds of ssh without it complain.
    """
    return {**CLOSED, **dict.fromkeys(route.kerberos, "no")}


def _through(hop: Route, to: Route) -> str:
    """Return the command whose input and output ssh uses; each jump host is reached by a separate route.

    ProxyJump does not pass our options on: jump hosts would use other known-hosts files and keys.
    """
    options = {
        **_closed(hop),
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "ControlMaster": "no",
        "ControlPath": "none",
        "LogLevel": "ERROR",
        "Port": str(hop.port),
        "User": hop.user,
        "UserKnownHostsFile": _several(hop.known_hosts),
        "ProxyCommand": _through(hop.jump, hop) if hop.jump else _literal(hop.proxy_command or "none"),
    }
    keys = [
        word for path in _there(hop.identity_files) for word in ("-o", f"IdentityFile={_several([path])}")
    ]
    place = f"[{to.hostname}]:{to.port}"
    return _literal(shlex.join(["ssh", "-T", *_words(options), *keys, "-W", place, "--", hop.address]))


def _literal(text: str) -> str:
    """Return the text with `%` escaped, so that ssh expands no TOKENS in it."""
    return text.replace("%", "%%")


def _words(options: dict[str, str]) -> list[str]:
    """Return options as arguments of ssh: `-o NAME=VALUE`."""
    return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]


def _several(paths: Sequence[str]) -> str:
    """Return files as the value of one option, in which ssh reads blanks, `#` and both kinds of quotes."""
    return " ".join(path if PLAIN.fullmatch(path) else f'"{path}"' for path in paths)


def _there(paths: Sequence[str]) -> list[str]:
    """Return those paths that exist."""
    return [path for path in paths if stated_path(path).exists()]


def run_command(
    argv: list[str],
    command: str,
    stdin: bytes,
    *,
    seconds: float,
    limit: int,
    stop: threading.Event | None = None,
) -> Answer:
    """Run a command on a node over a new connection; return its answer, also with the exit code 255.

    Args:
        stop: event that ends ssh early.

    Raises:
        NodeFailed: no answer within `seconds`, or more than `limit` bytes.
        Unreachable: ssh could not connect or log in, or the connection broke; the message is derived from
            its output.
        OSError: ssh is not installed.
    """
    words = shlex.join(["/bin/sh", "-c", KEEP_APART, "sh", command])
    answer = run_limited([*argv, words], stdin, seconds=seconds, limit=limit, stop=stop, kill_rest=True)
    if answer.code == SSH_FAILED:
        raise Unreachable(of_openssh(_clean(answer.stderr)) or "ssh could not log in")
    return replace(answer, code=SSH_FAILED) if answer.code == STAND_IN else answer


def _clean(said: bytes) -> str:
    """Return the lines of ssh's output without empty ones, printable and cut at 200 characters each."""
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    return "\n".join(on_one_line(line)[:200] for line in lines)

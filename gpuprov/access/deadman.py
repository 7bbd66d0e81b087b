"""Dead man's switch: a node restores its old SSH and firewall unless a new login confirms the change.

`access/node/deadman.sh` runs on the node: once armed, it restores by itself after some seconds or at the next
boot, even if the controller fails. This module arms it, logs in again in the way the next run will, and only
then disarms it.
"""

from __future__ import annotations

import base64
import ipaddress
import re
import secrets
import shlex
import time
from contextlib import suppress
from dataclasses import dataclass, replace

from gpuprov.access.ruleset import admits, ssh_networks
from gpuprov.access.scripts import node_script
from gpuprov.errors import GpuprovError, NodeFailed, Refused, Unreachable
from gpuprov.model.lock import LockedGroup
from gpuprov.ssh.transport import ConnectionLimits, Output, Session, Target, open_session
from gpuprov.untrusted import on_one_line, regex

ABOVE = "/var/lib/gpuprov"
FOLDER = f"{ABOVE}/deadman"
OWN = (
    f"{{ find {ABOVE} -prune -user root ! -perm -020 ! -perm -002 | grep -q . ||"
    f" {{ echo 'other users can write to {ABOVE}: check its files, then chown root and chmod go-w' >&2;"
    " false; }; }"
)
"""Check that only root may write `ABOVE`: another user could replace the switch with another script."""
SWITCH = f"{FOLDER}/switch"
LIMITS = ConnectionLimits(connect_s=10, command_s=60)
PROOF = ConnectionLimits(connect_s=5, command_s=30)
NOT_ARMED, KEPT = 3, 5
"""Exit codes of the switch."""
ORIGIN_BYTES = 16 << 10
"""Maximum size of the answer to the question for the connection's source address, with a shell's greeting."""
PAUSES_S = (0.0, 1.0, 3.0)


@dataclass(frozen=True)
class Guard:
    """Parameters of the switch: seconds until nodes restore, and sudo's password if it requires one."""

    seconds: int = 180
    password: str | None = None


class Undone(NodeFailed):
    """Revert of a change, by the controller or by the node; the node confirms it for this run."""


def arm(session: Session, guard: Guard, token: str) -> None:
    """Have the node save its current state, and restore it after `guard.seconds` unless disarmed.

    Raises:
        NodeFailed: the switch cannot be armed; nothing was changed.
    """
    script = base64.b64encode(node_script("gpuprov.access", "node/deadman.sh").encode()).decode()
    login = shlex.quote(session.target.route.login)
    new = shlex.quote(
        f"{SWITCH}.{token}"
    )  # renamed to the switch when armed: the existing switch may be another run's
    steps = [
        "umask 022",
        f"mkdir -p {ABOVE}",
        OWN,
        f"mkdir -p -m 700 {FOLDER}",
        f"chmod 700 {FOLDER}",  # the folder itself is locked: any user who can open it could hold the lock
        f"echo {script} | base64 -d >{new}",
        f"sh {new} arm {guard.seconds} {shlex.quote(token)} {login}",
    ]
    output = as_root(session, f"({' && '.join(steps)}); code=$?; rm -f {new}; exit $code", guard.password)
    if output.code:
        raise NodeFailed(
            f"the dead man's switch cannot be armed: {last_line(output)}",
            do="correct that and apply again; nothing was changed",
        )


def refuse_if_shut_out(group: LockedGroup, source: str) -> None:
    """Refuse a firewall that does not allow SSH from an address. Without a stated firewall, or one without
    networks for SSH, nothing is refused.

    Networks of the fleet are allowed like those for SSH. A firewall with trusted interfaces is not refused:
    the connection may come through one of them.

    Raises:
        Refused: the address is not allowed; the message names it and the setting.
    """
    if not admits(ssh_networks(group.setting("firewall")), source):
        raise Refused(
            f"the firewall would reject {source}, the source address of this connection",
            do="add its network to settings.firewall.ssh_from and lock again",
        )


def source_address(session: Session) -> str:
    """Return the address from which the node receives this connection (sshd's SSH_CONNECTION).

    Random marks enclose it in the output: a login shell may print text before and after it.

    Raises:
        NodeFailed: the node does not report it, or its answer is larger than `ORIGIN_BYTES`.
    """
    mark = secrets.token_hex(8)
    said = session.run(f"sh -c 'echo; echo \"<<{mark} $SSH_CONNECTION>>\"'").stdout
    if len(said) > ORIGIN_BYTES:
        raise NodeFailed(
            f"the node answered {len(said)} bytes to the question for the connection's source address",
            expected=f"at most {ORIGIN_BYTES}",
        )
    found = re.search(rf"<<{regex(mark)} (\S{{1,80}}) [^>\n]{{0,160}}>>", said.decode("ascii", "replace"))
    try:
        return str(ipaddress.ip_address(found[1] if found else ""))
    except ValueError:
        raise NodeFailed(
            f"the node does not report the connection's source address: {found[0] if found else 'no answer'}",
            expected="sshd's SSH_CONNECTION",
        ) from None


def prove_and_disarm(target: Target, ports: list[int], guard: Guard, token: str) -> None:
    """Log in again on every port, as the next run will; check root's rights; then disarm, over the last port.

    A node that is already disarmed confirms it again, so the command can be repeated after a lost answer.

    Raises:
        GpuprovError: a login does not work, root's rights are missing, or the node is no longer armed.
    """
    for port in ports:
        there = replace(target, connection=target.connection.model_copy(update={"port": port}))
        last = port == ports[-1]
        _insist(there, guard, f"sh {SWITCH} disarm {shlex.quote(token)}" if last else "true")


def _insist(target: Target, guard: Guard, command: str) -> None:
    """Run a command as root in a new login, with retries: sshd may be restarting or overloaded.

    Raises:
        Unreachable: no login works; the message names the port.
        NodeFailed: the node is no longer armed, or the command fails.
    """
    for pause_s in PAUSES_S:
        time.sleep(pause_s)
        try:
            with open_session(target, PROOF) as session:
                output = as_root(session, command, guard.password)
        except Unreachable as error:
            port = target.route.port
            failure = Unreachable(f"a new login did not work: port {port}: {error.seen}")
            continue
        if output.code == NOT_ARMED:
            raise NodeFailed(f"the new login came too late: {last_line(output)}")
        if output.code:
            raise NodeFailed(f"{target.route.user} can log in, but cannot become root: {last_line(output)}")
        return
    raise failure


def undo(
    session: Session | None, target: Target, guard: Guard, token: str, why: GpuprovError
) -> GpuprovError | None:
    """Have the node revert the change, with retries until it confirms the result, or `guard.seconds` + 60 s
    are over.

    Args:
        session: a session that was opened before the change.

    Returns:
        The result as an error: `Undone` if SSH and firewall are as before, `NodeFailed` if that is not
        certain; None if the node reports that the change was kept.
    """
    begun = time.monotonic()
    command = f"sh {SWITCH} undo {shlex.quote(token)} {shlex.quote(why.seen)}"
    if session is not None:
        with suppress(Unreachable, NodeFailed):  # the node's own timer does the same, later
            as_root(session, command, guard.password)
    while time.monotonic() - begun < guard.seconds + 60:
        try:
            with open_session(target, PROOF) as fresh:
                answer = as_root(fresh, command, guard.password)
        except GpuprovError as error:
            now = f"the old login does not work either yet: {error.seen}"
        else:
            if answer.code == 0:
                return Undone(
                    f"{why.seen}; SSH and firewall are as before",
                    do="correct the settings, lock, apply again",
                )
            if answer.code == KEPT:
                return None
            now = f"the node has not undone the change: {last_line(answer)}"
            if answer.code == NOT_ARMED:
                return NodeFailed(f"{why.seen}; {now}", do=f"look at {FOLDER}/history on the node")
        time.sleep(2)
    return NodeFailed(
        f"{why.seen}; {now}",
        do=f"wait: the node restores its old state {guard.seconds} s after the change, or at its next boot",
    )


def as_root(session: Session, command: str, password: str | None, stdin: bytes = b"") -> Output:
    """Run a shell command with root's rights; an exit code other than 0 raises nothing.

    Args:
        password: sudo's password.
        stdin: the command's standard input. A secret belongs here, and never into `command`: arguments are
            visible in the process list and in sudo's log. If a password is given, the command may receive it
            as an additional first line: sudo reads it only if it requires one.
    """
    quoted = shlex.quote(command)
    if session.target.route.user == "root":
        return session.run(f"sh -c {quoted}", stdin)
    if password is None:
        return session.run(f"sudo -n -- sh -c {quoted}", stdin)
    return session.run(f"sudo -S -p '' -- sh -c {quoted}", password.encode() + b"\n" + stdin)


def last_line(output: Output) -> str:
    """Return the last line of a command's standard error, or else of its output, or else `no reason given`;
    printable, at most 300 characters.
    """
    lines = (output.stderr or output.stdout).decode("utf-8", "replace").strip().splitlines() or [
        "no reason given"
    ]
    return on_one_line(lines[-1])[:300]

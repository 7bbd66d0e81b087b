"""Bootstrap of many nodes: host keys, the preparing script, a test of the fleet's login, key-only logins."""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuprov.access.deadman import Guard, arm, as_root, last_line, prove_and_disarm, undo
from gpuprov.access.scripts import SHARED, node_script
from gpuprov.bootstrap.contact import LIMITS, Contact, Login, reach
from gpuprov.bootstrap.enter import enter, enter_again_as, python_of
from gpuprov.bootstrap.hostkeys import HostKeys, fingerprint
from gpuprov.bootstrap.secure_boot import enrolment
from gpuprov.errors import GpuprovError, NodeFailed, Unreachable
from gpuprov.ssh.contained import contained
from gpuprov.ssh.route import Route
from gpuprov.ssh.transport import Session, Target, open_session, placed
from gpuprov.untrusted import lines_of, on_one_line

if TYPE_CHECKING:
    from gpuprov.signing.certificate import Certificate

KEY_ONLY = "/etc/ssh/sshd_config.d/00-gpuprov.conf"
FROM_HERE = "host=localhost,addr=127.0.0.1,laddr=127.0.0.1,lport=22"
ALLOWED = "(password|kbdinteractive|challengeresponse)authentication yes"
BY_MATCH = "a block of Match in the configuration of sshd allows them; remove it, or the option in it"
NAMED = re.compile(r"login as the user \"([a-z_][a-z0-9_-]*)\"")
"""cloud-init's message to root: `disable_root_opts` of its module cc_ssh."""
EXPIRED = re.compile(r"(?i)password (?:change required|has expired)|must change your password")
"""pam_unix's messages about a password that the provider has set to expire."""
WORDS = ("changed", "note", "hostkey", "passwords", "failed", "done")
"""First words of the lines that first.sh prints for the result."""
ROWS = 100
"""Maximum number of lines of each kind that are read from the script's output on a node."""
Pinned = Callable[[Route], HostKeys]
Confirm = Callable[[dict[str, str]], bool]


@dataclass(frozen=True)
class Goal:
    """The final state of every node; `public_keys` and `systems` (operating systems) are by node name.

    `certificate` is the one that kernels have to trust under Secure Boot.
    """

    public_keys: Mapping[str, tuple[str, ...]]
    key_only: bool = True
    wait_s: int = 600
    guard: Guard = field(default_factory=lambda: Guard(60))
    systems: Mapping[str, str] = field(default_factory=dict)
    certificate: Certificate | None = None


class AnotherUser(NodeFailed):
    """A refused login as the image's root: cloud-init names the user that may log in."""

    def __init__(self, said: str, user: str) -> None:
        super().__init__(said)
        self.user = user


@dataclass
class NodeResult:
    """The result of one node.

    Attributes:
        known: whether a host key of it was known before.
        changed: changes, each as a line for the user.
        notes: other lines for the user.
        host_keys: all host keys, `TYPE BASE64`, as the node reports them after the login.
        passwords: whether sshd accepts password logins of the fleet's user.
        failure: the error that ended the work on the node; None if there was none.
    """

    name: str
    target: Target
    known: bool = False
    changed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    host_keys: list[str] = field(default_factory=list)
    passwords: bool = False
    failure: GpuprovError | None = None


def bootstrap(
    targets: Sequence[Target],
    goal: Goal,
    login: Login,
    keys: Pinned,
    *,
    confirm: Confirm,
    named: Collection[str],
    forks: int = 32,
) -> list[NodeResult]:
    """Prepare nodes with their first login for the fleet's login; nodes that are prepared are not changed.

    Passwords go only to nodes whose host key was not known before, and to those that the person has named: a
    prepared node that was taken over could refuse the fleet's key, and get the password of new ones.

    Args:
        targets: nodes with the fleet's connection settings.
        keys: returns the host keys for a route.
        confirm: called with node name → fingerprint of unknown host keys; returns whether they are correct.
        named: nodes that the person has named.

    Returns:
        The result of each node, in the order of `targets`; a failure is part of it and not raised.
    """
    nodes = [NodeResult(target.name, target) for target in targets]
    with ThreadPoolExecutor(max_workers=max(1, min(forks, len(nodes)))) as pool:
        strangers = list(pool.map(lambda node: _known_login(node, goal, keys), nodes))
        first = [node for node, stranger in zip(nodes, strangers, strict=True) if stranger]
        contacts = dict(
            zip((n.name for n in first), pool.map(lambda n: _reach(n, login), first), strict=True)
        )
        _settle_host_keys([node for node in first if contacts[node.name]], contacts, keys, confirm)
        list(
            pool.map(
                lambda node: _first_login(
                    node, contacts[node.name], goal, login, keys, trusted=not node.known or node.name in named
                ),
                first,
            )
        )
        list(pool.map(lambda node: _prove(node, goal), [node for node in nodes if node.failure is None]))
    return nodes


def _known_login(node: NodeResult, goal: Goal, keys: Pinned) -> bool:
    """Prepare a node with the fleet's login, if it works; return whether a first login is needed.

    A first login is needed if no host key is pinned, or if the login or sudo fails. Other errors are recorded
    in `node`, and whether a host key was known.
    """
    way = contained(node.name, lambda: node.target.route)
    if isinstance(way, GpuprovError):
        node.failure = way
        return False
    node.known = keys(way).knows(*way.pinned_as)
    if not node.known:
        return True

    def prepare() -> None:
        with open_session(node.target, LIMITS) as session:
            _prepare(node, session, goal, None)

    failure = contained(node.name, prepare)
    if failure is None:
        return False
    if isinstance(failure, Unreachable) or "sudo" in failure.seen:
        return True
    node.failure = failure
    return False


def _reach(node: NodeResult, login: Login) -> Contact | None:
    """Connect to a node without a login; if that fails, record the failure and return None."""
    target = node.target
    contact = contained(node.name, lambda: reach(node.name, target.address, target.connection, login))
    if isinstance(contact, GpuprovError):
        node.failure = placed(contact, target)
        return None
    return contact


def _settle_host_keys(
    nodes: list[NodeResult], contacts: dict[str, Contact | None], keys: Pinned, confirm: Confirm
) -> None:
    """Check every host key; those that only the user can judge are shown together, once.

    Nodes with a wrong key, or with one that is not confirmed, get a failure.
    """
    shown: dict[str, str] = {}
    for node in nodes:
        contact = contacts[node.name]
        if contact is None:
            continue
        try:
            way = contact.target.route
            if not keys(way).trusts(*way.pinned_as, contact.host_key):
                shown[node.name] = fingerprint(contact.host_key)
        except GpuprovError as error:
            node.failure = error
            contact.close()
    if shown and not confirm(shown):
        for node in nodes:
            if node.name in shown:
                node.failure = Unreachable("its host key was not confirmed", expected=shown[node.name])


def _first_login(
    node: NodeResult, contact: Contact | None, goal: Goal, login: Login, keys: Pinned, *, trusted: bool
) -> None:
    """Pin the host key, log in, prepare the node, and pin all host keys that it reports.

    The login is made again as the user that cloud-init names, if it refuses root. An error is recorded in
    `node`.

    A node that has failed before is left as it is.

    Args:
        trusted: whether it may get a password.
    """
    if contact is None or node.failure is not None:
        return
    key, way = contact.host_key, contact.target.route
    stated, login = login, login if trusted else login.by_key()

    def log_in() -> None:
        keys(way).pin(*way.pinned_as, [f"{key.get_name()} {key.get_base64()}"])
        entered = enter(contact, login, goal.systems.get(node.name, ""))
        try:
            _prepare(node, entered.session, goal, login.sudo_password or entered.password)
        except AnotherUser as other:
            other_door = enter_again_as(entered, other.user, login)
            _prepare(node, other_door.session, goal, login.sudo_password)
            other_door.contact.close()
        finally:
            entered.contact.close()
        if unread := keys(way).pin(*way.pinned_as, node.host_keys):
            node.notes.append(f"host keys that cannot be read, not pinned: {unread}")

    node.failure = contained(node.name, log_in)
    withheld = not trusted and (contact.takes_passwords or stated.password or stated.sudo_password)
    if withheld and isinstance(node.failure, (Unreachable, NodeFailed)):
        node.failure = _without_password(node.name, node.failure)
    contact.close()


def _without_password(name: str, failure: GpuprovError) -> GpuprovError:
    """Return the failure of a login to which no password was sent, with the command that sends one."""
    kind = Unreachable if isinstance(failure, Unreachable) else NodeFailed
    return kind(
        f"{failure.seen}; it got no password, because its host key was known before",
        expected="a new node, or one that the command names",
        do=f"if the password is meant for it too: gpuprov bootstrap {name}, with --ask-pass or -K",
    )


def _prepare(node: NodeResult, session: Session, goal: Goal, password: str | None) -> None:
    """Run the script with root's rights, and add its output to the result: changes, notes, host keys, and
    whether passwords are still accepted.

    Raises:
        AnotherUser: the node names another user for logins.
        NodeFailed: the script failed, the user cannot become root, or must change an expired password.
    """
    keys = "\n".join(goal.public_keys[node.name])
    python = python_of(goal.systems.get(node.name, ""))
    stated = {"admin": node.target.route.user, "keys": keys, "wait": str(goal.wait_s), "python": python}
    settings = "".join(f"{name}={shlex.quote(value)}\n" for name, value in stated.items())
    script = settings + node_script("gpuprov.bootstrap", "first.sh")
    output = as_root(session, script, password)
    result: dict[str, list[str]] = {}
    for line in lines_of(output.stdout.decode("utf-8", "replace")):
        word, _, rest = line.partition(" ")
        if word in WORDS and len(rows := result.setdefault(word, [])) < ROWS:
            rows.append(on_one_line(rest))
    if "failed" in result:
        raise NodeFailed(result["failed"][0])
    if "done" not in result:
        user = session.target.route.user
        if named := NAMED.search(output.stdout.decode("utf-8", "replace")):
            raise AnotherUser(f"{user} can neither log in nor use sudo: {named[0]}", named[1])
        if EXPIRED.search((output.stderr + output.stdout).decode("utf-8", "replace")):
            raise NodeFailed(
                f"{user} must change its expired password first", do="log in once with ssh and change it"
            )
        raise NodeFailed(
            f"{user} cannot become root by sudo: {last_line(output)}", do="give --ask-become-pass"
        )
    node.changed += result.get("changed", [])
    node.notes += result.get("note", [])
    node.host_keys = result.get("hostkey", [])
    node.passwords = "passwords" in result


def _prove(node: NodeResult, goal: Goal) -> None:
    """Log in as the fleet does and become root; then disable passwords under the dead man's switch.

    Passwords are disabled if sshd accepts them and `goal.key_only` is set. With a certificate, also request
    its enrolment. An error is recorded in `node`.
    """

    def prove() -> None:
        with open_session(node.target, LIMITS) as session:
            python = python_of(goal.systems.get(node.name, ""))
            output = as_root(session, f"{shlex.quote(python)} --version", None)
            if output.code:
                raise NodeFailed(
                    f"{node.target.route.user} can log in, but cannot become root: {last_line(output)}"
                )
            if node.passwords and goal.key_only:
                _passwords_off(node, session, goal.guard)
            if goal.certificate:
                done = enrolment(node.name, session, goal.certificate)
                node.changed += done.changed
                node.notes += done.notes

    node.failure = contained(node.name, prove)


def _passwords_off(node: NodeResult, session: Session, guard: Guard) -> None:
    """Disable password logins, in a new drop-in or block, restart sshd, and test a new login; undo the change
    if the test fails.

    If the test fails but the node reports that the change was kept, that counts as success.

    Raises:
        GpuprovError: the change failed or was undone, also if the drop-in or the block exists already, or
            a block of `Match` allows passwords to the login.
    """
    token = f"bootstrap-{secrets.token_hex(4)}"
    arm(session, guard, token)
    lines = "PasswordAuthentication no\\nKbdInteractiveAuthentication no\\n"
    # Providers with passwords of root state `yes`, which differs from what a system ships; `no` stays.
    root = "PermitRootLogin prohibit-password\\n"
    steps = [
        "PATH=$PATH:/usr/sbin",
        f"{{ printf '{lines}'; ! sshd -T | grep -qx 'permitrootlogin yes' || printf '{root}'; }}"
        f" | write_first {KEY_ONLY}",
        "sshd -t",
        "restart_sshd $(sshd_unit).service",
        "sshd -T | grep -qx 'passwordauthentication no'",
        # As first.sh asks: a block of `Match` counts before the drop-in.
        f"options=$(sshd -T -C user={shlex.quote(node.target.route.user)},{FROM_HERE})",
        f"{{ ! echo \"$options\" | grep -qxE '{ALLOWED}' || {{ echo '{BY_MATCH}' >&2; false; }}; }}",
    ]
    functions = "".join(node_script("gpuprov.access", f"node/{each}") for each in SHARED)
    output = as_root(session, functions + " && ".join(steps), None)
    failure: GpuprovError | None = None
    if output.code:
        failure = NodeFailed(f"password logins cannot be switched off: {last_line(output)}")
    else:
        try:
            prove_and_disarm(node.target, [node.target.route.port], guard, token)
        except GpuprovError as error:
            failure = error
    if failure and (undone := undo(session, node.target, guard, token, failure)):
        raise undone
    node.changed.append("password logins switched off")

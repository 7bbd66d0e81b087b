"""The first connection to a node: host key first, then the login that a cloud provides."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import paramiko
from fabric import Connection as Opened
from paramiko.ssh_exception import SSHException

from gpuprov.errors import Unreachable
from gpuprov.model.connection import Connection
from gpuprov.ssh.connect import ConnectionLimits, close, connect_before, open_pipe
from gpuprov.ssh.credentials import Credentials, private_key
from gpuprov.ssh.failures import reason
from gpuprov.ssh.packets import LimitedTransport
from gpuprov.ssh.route import Route, route
from gpuprov.ssh.transport import ParamikoSession, Session, Target
from gpuprov.ssh.wording import ANOTHER_LOGIN, LOOK_THERE, UNKNOWN_NAME

LIMITS = ConnectionLimits(connect_s=15, command_s=900)


@dataclass(frozen=True)
class Login:
    """The login that a cloud provides. None: as in ~/.ssh/config, or the agent and the default keys.

    `ask` prompts for the password, once for all nodes; it returns None if it cannot prompt.
    """

    user: str | None = None
    port: int | None = None
    identity: Path | None = None
    password: str | None = None
    sudo_password: str | None = None
    ask: Callable[[], str | None] = lambda: None

    def by_key(self) -> Login:
        """Return the same login without passwords, and without a prompt for one."""
        return replace(self, password=None, sudo_password=None, ask=lambda: None)


@dataclass
class Contact:
    """An open connection to a node, before a login.

    Attributes:
        stated: the fleet's connection settings for the node.
        takes_passwords: whether sshd accepts password logins of the user.
    """

    target: Target
    way: Route
    transport: paramiko.Transport
    before: list[Opened]
    stated: Connection
    login: Login
    takes_passwords: bool = field(default=False)

    def close(self) -> None:
        """Close the connection, and those to its jump hosts."""
        self.transport.close()
        close(self.before)

    @property
    def host_key(self) -> paramiko.PKey:
        """The host key that the node has proved to have."""
        return self.transport.get_remote_server_key()

    @property
    def user(self) -> str:
        """The user of the login."""
        return self.target.route.user

    def again(self, user: str) -> Contact:
        """Open another connection to the same node, for another user.

        Raises:
            Unreachable: SSH does not answer any more, or shows another host key.
        """
        target = self.target
        fresh = reach(target.name, target.address, self.stated, replace(self.login, user=user))
        if fresh.host_key.asbytes() != self.host_key.asbytes():
            fresh.close()
            raise Unreachable(f"{target.address} showed another host key at the second connection")
        return fresh

    def log_in(self, login: Login) -> Session:
        """Log in with the stated key or password, without both with the agent's and default keys; return the
        session.

        Raises:
            Unreachable: every login is refused.
        """
        user = self.target.route.user
        tried = []
        if login.password is None:
            self._ask_what_is_taken(user)
        for name, key in self._keys(login):
            try:
                self.transport.auth_publickey(user, key)
            except paramiko.AuthenticationException:
                tried.append(name)
            except (SSHException, EOFError) as error:
                raise Unreachable(f"{user}@{self.target.address}: {reason(error)}") from None
            else:
                return self._session()
        if login.password is not None:
            try:
                self.transport.auth_password(user, login.password)  # falls back to keyboard-interactive
            except (SSHException, EOFError):
                tried.append("the password")
            else:
                return self._session()
        raise Unreachable(
            f"{user}@{self.target.address} refused {', '.join(tried)}"
            if tried
            else f"{user}@{self.target.address} was offered no key: this machine has none",
            do=ANOTHER_LOGIN,
        )

    def _ask_what_is_taken(self, user: str) -> None:
        """Record whether sshd accepts password logins, as ssh does before it offers a key.

        Paramiko's error about a refused key does not have the methods that are left.
        """
        try:
            self.transport.auth_none(user)
        except paramiko.AuthenticationException as error:
            taken = getattr(error, "allowed_types", ())
            self.takes_passwords |= bool({"password", "keyboard-interactive"} & set(taken))
        except (SSHException, EOFError):
            return

    def _session(self) -> Session:
        """Return a session over this connection, after a login."""
        return ParamikoSession(self.target, self.transport, LIMITS)

    def _keys(self, login: Login) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield the keys to offer, each with its name for messages.

        This is the stated key; without one those of the route and its agent, unless a password is stated.
        InvalidInput if the stated key cannot be read.
        """
        if login.identity:
            yield f"the key {login.identity}", private_key(str(login.identity))
        elif login.password is None:  # sshd counts every refused key against this address
            yield from Credentials(self.way).keys()


def reach(name: str, address: str, stated: Connection, login: Login) -> Contact:
    """Connect to a node and receive its host key, without a login.

    Args:
        stated: the fleet's connection settings for the node; user and key are those of `login`.

    Raises:
        Unreachable: no SSH server answers.
        InvalidInput: ssh's own configuration cannot be read.
    """
    update = {"user": login.user, "port": login.port or stated.port, "identity_file": None}
    target = Target(name, address, stated.model_copy(update=update))
    # The node does not have the fleet's key yet, but a jump host may have it.
    way = replace(target.route, jump=route(address, stated).jump)
    opened: list[Opened] = []
    transport: paramiko.Transport | None = None
    try:
        opened = connect_before(way, LIMITS)
        transport = LimitedTransport(open_pipe(way, opened, LIMITS))
        transport.banner_timeout = transport.auth_timeout = LIMITS.connect_s
        transport.start_client(timeout=LIMITS.connect_s)
        transport.get_remote_server_key()  # raises SSHException if the time limit ended first
    except (SSHException, OSError, EOFError) as error:
        if transport:
            transport.close()
        close(opened)
        do = UNKNOWN_NAME if isinstance(error, socket.gaierror) else LOOK_THERE
        raise Unreachable(f"no SSH on {way.hostname} port {way.port}: {reason(error)}", do=do) from None
    return Contact(target, way, transport, opened, stated, login)

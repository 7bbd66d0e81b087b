"""The first connection to a node: its host key before anything else, then the login a cloud handed over."""

from __future__ import annotations

import os
import socket
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import paramiko
from paramiko.ssh_exception import SSHException

from gpuprov.errors import InvalidInput, Unreachable
from gpuprov.model.lock import Connection
from gpuprov.ssh.failures import reason
from gpuprov.ssh.transport import ConnectionLimits, ParamikoSession, Session, Target, connect

LIMITS = ConnectionLimits(connect_s=15, command_s=900)


@dataclass(frozen=True)
class Login:
    """What was handed over. None means: as ~/.ssh/config says, or the agent and the usual keys."""

    user: str | None = None
    port: int | None = None
    identity: Path | None = None
    password: str | None = None
    sudo_password: str | None = None


@dataclass
class Contact:
    """An open connection to a node that nobody has logged in to yet."""

    target: Target
    transport: paramiko.Transport
    identities: list[Path]

    @property
    def host_key(self) -> paramiko.PKey:
        """The key that the node has proved to hold."""
        return self.transport.get_remote_server_key()

    def log_in(self, login: Login) -> Session:
        """By a key that is stated, by the password, else by agent and usual keys.

        Raises:
            Unreachable: none is taken.
        """
        user = self.target.connection.user
        tried = []
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
            f"{user}@{self.target.address} refused {', '.join(tried) or 'to be asked: there is no key here'}",
            do="state --user with --identity, or --ask-pass; see gpuprov bootstrap --help",
        )

    def _session(self) -> Session:
        return ParamikoSession(self.target, self.transport, LIMITS)

    def _keys(self, login: Login) -> list[tuple[str, paramiko.PKey]]:
        if login.identity:
            return [(f"the key {login.identity}", _key(login.identity))]
        if login.password is not None:
            return []  # every refused key counts against the address
        agent = [(f"{key.get_name()} of the agent", key) for key in paramiko.Agent().get_keys()]
        return [*agent, *((f"the key {path}", _key(path)) for path in self.identities if path.is_file())]


def reach(name: str, address: str, fleet: Connection, login: Login) -> Contact:
    """Connect to a node as far as its host key. ~/.ssh/config is heard where nothing else is stated.

    Raises:
        Unreachable: no SSH there.
    """
    config = _ssh_config(address)
    connection = Connection(
        user=login.user or config["user"][0],
        port=login.port or int(config["port"][0]),
        known_hosts=fleet.known_hosts,
        jump=fleet.jump or next((jump for jump in config.get("proxyjump", []) if jump != "none"), None),
    )
    target = Target(name, config["hostname"][0], connection)
    identities = [Path(path).expanduser() for path in config.get("identityfile", [])]
    transport: paramiko.Transport | None = None
    try:
        transport = paramiko.Transport(_socket(target))
        transport.banner_timeout = transport.auth_timeout = LIMITS.connect_s
        transport.start_client(timeout=LIMITS.connect_s)
        transport.get_remote_server_key()  # none where the time was over first
    except (SSHException, OSError, EOFError) as error:
        if transport:
            transport.close()
        raise Unreachable(f"no SSH on {target.address} port {connection.port}: {reason(error)}") from None
    return Contact(target, transport, identities)


def _socket(target: Target) -> paramiko.Channel | socket.socket:
    """Straight to the node, or through the jump host, whose own key has to be known."""
    spec = target.connection
    if spec.jump is None:
        return socket.create_connection((target.address, spec.port), timeout=LIMITS.connect_s)
    user, _, rest = spec.jump.rpartition("@")
    host, _, port = rest.partition(":")
    at = Connection(
        user=user or os.environ.get("USER", "root"), port=int(port or 22), known_hosts=spec.known_hosts
    )
    gateway = connect(Target(spec.jump, host, at), LIMITS)
    there, here = (target.address, spec.port), ("127.0.0.1", 0)
    channel: paramiko.Channel = gateway.transport.open_channel("direct-tcpip", there, here)
    return channel


def _ssh_config(address: str) -> dict[str, list[str]]:
    """What `ssh -G` makes of a host name: ~/.ssh/config with its patterns and includes."""
    answer = subprocess.run(["ssh", "-G", "--", address], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise InvalidInput(f"ssh -G {address}: {answer.stderr.strip()}")
    found: dict[str, list[str]] = {}
    for line in answer.stdout.splitlines():
        keyword, _, value = line.partition(" ")
        found.setdefault(keyword, []).append(value)
    return found


def _key(path: Path) -> paramiko.PKey:
    try:
        return paramiko.PKey.from_path(path)
    except (TypeError, paramiko.PasswordRequiredException):
        raise InvalidInput(f"the key {path} asks for a passphrase", do="ssh-add it") from None
    except (OSError, ValueError, SSHException) as error:
        raise InvalidInput(f"the key {path} cannot be read: {reason(error)}") from None


def as_fleet(target: Target, fleet: Connection) -> Target:
    """The same node by the fleet's own login."""
    return replace(target, connection=fleet.model_copy(update={"jump": target.connection.jump}))

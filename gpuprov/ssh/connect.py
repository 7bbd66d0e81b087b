"""Connections along a route, by Fabric and Paramiko: jump hosts, host keys, user keys, limits."""

from __future__ import annotations

import logging
import socket
import time
from dataclasses import dataclass

import paramiko
from fabric import Config, Connection
from paramiko.auth_strategy import AuthFailure

from gpuprov.errors import GpuprovError, Silent, Unreachable
from gpuprov.ssh.credentials import Credentials
from gpuprov.ssh.failures import NotThere, stranger, unreachable
from gpuprov.ssh.known_hosts import KnownFiles, names_of
from gpuprov.ssh.packets import ENDLESS, LimitedTransport
from gpuprov.ssh.route import Route

# Paramiko logs the exceptions that it raises; gpuprov prints them itself.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class ConnectionLimits:
    """Time limits in seconds for a connection and for a command, and the largest answer in bytes."""

    connect_s: float = 10.0
    command_s: float = 60.0
    answer_bytes: int = 8 * 1024 * 1024


class ClosedBeforeBanner(Unreachable):
    """A connection that was accepted, but closed before sshd sent its banner."""

    def __init__(self, way: Route) -> None:
        super().__init__(
            f"{way.address} closes connections before sshd answers: too many logins at once "
            "(MaxStartups), this address is blocked for a while after failed ones (PerSourcePenalties), or "
            "a proxy answers for a host that is down",
            do="wait a minute, use fewer --forks; networks in settings.ssh.exempt are never blocked",
        )


class BeyondParamiko(Exception):
    """A login that Paramiko cannot do: no algorithm in common with the node, or a key that it cannot use."""


def connect(way: Route, limits: ConnectionLimits) -> list[Connection]:
    """Open Fabric connections to the jump hosts and, as the last one, to the node.

    `open_session` also retries, and uses OpenSSH where Paramiko cannot log in.

    Raises:
        Unreachable: the node or a jump host cannot be reached, or refuses the login.
        InvalidInput: the key or the known-hosts file that the fleet names cannot be used.
        BeyondParamiko: Paramiko cannot log in.
    """
    before = connect_before(way, limits)
    try:
        return [*before, _connect(way, before, limits)]
    except BaseException:
        close(before)
        raise


def close(opened: list[Connection]) -> None:
    """Close connections in reverse order: a jump host's connection is closed after those through it; an error
    ends that.
    """
    for connection in reversed(opened):
        connection.close()


def connect_before(way: Route, limits: ConnectionLimits) -> list[Connection]:
    """Open connections to the jump hosts, the one next to the node last; none for a direct route.

    Raises:
        Unreachable: a jump host cannot be reached or refuses the login; the message names it.
        InvalidInput, BeyondParamiko: as `connect`.
    """
    if way.jump is None:
        return []
    try:
        return connect(way.jump, limits)
    except ClosedBeforeBanner:  # its message names the host, and `open_session` tries again
        raise
    except Unreachable as error:
        seen = f"through {way.jump.place}: {error.seen}"
        kind = NotThere if isinstance(error, Silent) else type(error)  # the node itself was not asked
        raise kind(seen, expected=error.expected, do=error.do) from error


Pipe = paramiko.Channel | paramiko.ProxyCommand | socket.socket


def open_pipe(way: Route, before: list[Connection], limits: ConnectionLimits) -> Pipe:
    """Open the byte stream for a node's SSH: a channel of the last jump host, a proxy command or a socket.

    Raises:
        OSError, SSHException: it cannot be opened.
    """
    there = (way.hostname, way.port)
    if before:
        channel: paramiko.Channel = before[-1].transport.open_channel(
            "direct-tcpip", there, ("127.0.0.1", 0), timeout=limits.connect_s
        )
        return channel
    if way.proxy_command:
        return paramiko.ProxyCommand(way.proxy_command)
    return socket.create_connection(there, timeout=limits.connect_s)


def _connect(way: Route, before: list[Connection], limits: ConnectionLimits) -> Connection:
    """Open the last connection of a route, through those to the jump hosts.

    Raises:
        BeyondParamiko: the peers share no algorithm that Paramiko has, or the key is one that it cannot use.
        ClosedBeforeBanner: the server closed the connection before its banner, within the time limit.
        Unreachable: another error of the connection; it is closed.
        InvalidInput: as `connect`.
    """
    credentials = Credentials(way)
    connection = Connection(
        way.hostname,
        user=way.user,
        port=way.port,
        # Each connection has its own Config, which is not thread-safe. With an empty SSHConfig Fabric does
        # not read ~/.ssh/config a second time with its own parser.
        config=Config(ssh_config=paramiko.SSHConfig(), lazy=True),
        connect_timeout=limits.connect_s,
        connect_kwargs={
            "auth_strategy": credentials,
            "banner_timeout": limits.connect_s,
            "auth_timeout": limits.connect_s,
            "transport_factory": LimitedTransport,
        },
    )
    _trust_known_hosts_only(connection, way)
    silent = time.monotonic() + limits.connect_s
    try:
        connection.connect_kwargs["sock"] = open_pipe(way, before, limits)
        connection.open()
    except Exception as error:  # Paramiko re-raises any exception caused by a peer's packet in its thread
        connection.client.close()
        cause = _cause(error)
        if isinstance(cause, GpuprovError):
            raise cause from None
        refused = isinstance(cause, paramiko.AuthenticationException)
        if isinstance(cause, paramiko.ssh_exception.IncompatiblePeer) or (refused and credentials.beyond):
            raise BeyondParamiko from error
        closed = "Error reading SSH protocol banner" in str(cause) and ENDLESS not in str(cause)
        if closed and time.monotonic() < silent:
            raise ClosedBeforeBanner(way) from None
        raise unreachable(way, cause, credentials.tried) from error
    return connection


def _cause(error: Exception) -> Exception:
    """Return the exception of the last login attempt, or the given error if no attempt raised one."""
    if not isinstance(error, AuthFailure) or not error.result:
        return error
    last = error.result[-1].result
    return last if isinstance(last, Exception) else error


def _trust_known_hosts_only(connection: Connection, way: Route) -> None:
    """Accept only known host keys. Pass only those of this host to Paramiko, since the files may be long.

    Raises:
        InvalidInput: a known-hosts file or a file of revoked keys cannot be used.
    """
    client, files = connection.client, way.known_files()
    client.set_missing_host_key_policy(_NoStrangers(way, files))
    name = names_of(way.hostname, way.port)[0]  # the name that Paramiko looks up
    for kind, key in files.keys(*way.host_key_names).items():
        client.get_host_keys().add(name, kind, key)


class _NoStrangers(paramiko.MissingHostKeyPolicy):
    """Paramiko's policy for host keys that it does not have: all of them are rejected."""

    def __init__(self, way: Route, files: KnownFiles) -> None:
        self._way, self._files = way, files

    def missing_host_key(self, client: object, hostname: str, key: paramiko.PKey) -> None:
        """Raise the error for a host key that is unknown or revoked."""
        raise stranger(self._way.address, self._files, key)

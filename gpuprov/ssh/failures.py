"""One line for a person, from the many ways in which SSH says no."""

from __future__ import annotations

import socket

import paramiko

from gpuprov.errors import Unreachable
from gpuprov.model.lock import Connection
from gpuprov.ssh.known_hosts import KnownHosts, known_hosts

SILENCE = ("No existing session", "Error reading SSH protocol banner")
"""Paramiko's words for a server that did not speak in time; which of them depends on who waited longer."""


class NotThere(Unreachable):
    """Nothing speaks SSH at the address; other failures come from something that does."""


def unreachable(address: str, connection: Connection, error: Exception) -> Unreachable:
    """One line for a person, from the many ways in which SSH says no."""
    who = f"{connection.user}@{address}"
    if isinstance(error, paramiko.BadHostKeyException):
        file = known_hosts(connection.known_hosts)
        if file.revocation(error.key):
            return stranger(address, file, error.key)
        return Unreachable(
            f"the host key of {address} has changed",
            do="make sure that it is the right machine, then remove the old key with "
            f"`ssh-keygen -R {address} -f {file.path}`",
        )
    if isinstance(error, paramiko.AuthenticationException):
        key = connection.identity_file
        return Unreachable(
            f"{who} refused " + (f"the key {key}" if key else "every key offered"),
            do="put the public key into its authorized_keys, or correct ssh: in fleet.yml",
        )
    return NotThere(
        f"no SSH on port {connection.port}: {reason(error)}",
        do="is it up, and is its address right?",
    )


def stranger(address: str, file: KnownHosts, key: paramiko.PKey) -> Unreachable:
    """Why a host is not let near whose key the file does not have: it is unknown, or known to be revoked."""
    if place := file.revocation(key):
        return Unreachable(
            f"the host key of {address} is revoked in {place}",
            do="others may hold it: give the machine a new one, and pin that",
        )
    return Unreachable(
        f"the host key of {address} is not known",
        do=f"add it to {file.path} once you have compared it{file.complaint()}",
    )


def reason(error: BaseException) -> str:
    """Why SSH failed, in a few words of one line."""
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        causes = {reason(cause) for cause in error.errors.values()}
        return ", ".join(sorted(causes))
    if isinstance(error, socket.gaierror):
        return "no such host name"
    if isinstance(error, TimeoutError):
        return "timed out"
    if any(words in str(error) for words in SILENCE):
        return "something listens there and says nothing"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    if not isinstance(error, (paramiko.SSHException, OSError, EOFError, ValueError)):
        return f"what answers breaks the SSH protocol ({type(error).__name__})"
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__

"""Messages for failures of SSH, one line each."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from pathlib import Path

import paramiko

from gpuprov.errors import Silent, Unreachable
from gpuprov.ssh.known_hosts import KnownFiles
from gpuprov.ssh.packets import ENDLESS
from gpuprov.ssh.route import Route
from gpuprov.ssh.wording import LET_IN, LOOK_THERE, NO_SUCH_NAME, SILENT, TIMED_OUT, UNKNOWN_NAME
from gpuprov.untrusted import shell

SILENCE = ("No existing session", "Error reading SSH protocol banner")
"""Paramiko's messages for a server that did not answer in time; the shorter time limit decides which."""

UNOPENED = "Timeout opening channel"
"""Paramiko's message for a jump host that answers, while the host behind it does not."""
_SILENT = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EHOSTDOWN)
"""Errors of a connection to a host that sends nothing back."""


class NotThere(Unreachable):
    """A failure to find an SSH server at the address; other failures occur after a server has answered."""


class SilentThere(NotThere, Silent):
    """An SSH server that was not found because nothing answers there."""


def unreachable(route: Route, error: Exception, tried: Sequence[str] = ()) -> Unreachable:
    """Return the error for an exception of SSH, with a message of one line.

    `NotThere` if no SSH server was found at the address, `SilentThere` if nothing answers.

    Args:
        tried: names of the keys that were offered.
    """
    who = f"{route.user}@{route.address}"
    if isinstance(error, paramiko.BadHostKeyException):
        return _another_key(route, error)
    if isinstance(error, paramiko.AuthenticationException):
        stated = route.stated.identity_file
        if not tried:
            files = ", ".join(route.identity_files)
            return Unreachable(
                f"{who} was offered no key: neither {files} nor an agent has one",
                do="state a key in ssh.identity_file, or ssh-add it",
            )
        return Unreachable(
            f"{who} refused " + (f"the key {stated}" if stated else f"every key offered: {', '.join(tried)}"),
            do=LET_IN,
        )
    if isinstance(error, socket.gaierror):
        return NotThere(f"{NO_SUCH_NAME}: {route.hostname}", do=UNKNOWN_NAME)
    kind = SilentThere if _is_silence(error) else NotThere
    return kind(f"no SSH on port {route.port}: {reason(error)}", do=LOOK_THERE)


def _is_silence(error: BaseException) -> bool:
    """Return whether an error of a connection means that nothing answers, also as a jump host reports it."""
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        return all(map(_is_silence, error.errors.values()))
    if isinstance(error, paramiko.ChannelException):
        return error.text.lower() in {os.strerror(number).lower() for number in _SILENT}
    if isinstance(error, OSError):
        return isinstance(error, TimeoutError) or error.errno in _SILENT
    return ENDLESS not in str(error) and any(words in str(error) for words in (*SILENCE, UNOPENED))


def _another_key(route: Route, error: paramiko.BadHostKeyException) -> Unreachable:
    """Return the error for a host key that differs from the known one, with the command that removes that, or
    is revoked.
    """
    files = route.known_files()
    name = route.host_key_names[0]
    if files.revocation(error.key):
        return stranger(route.address, files, error.key)
    path = files.listing(*route.host_key_names).path
    return Unreachable(f"the host key of {route.address} has changed", do=removal(name, path))


def removal(name: str, path: Path) -> str:
    """Return the next step for a host whose key has changed, with the command that removes the known one.

    Args:
        name: the host as the file names it.
        path: the file.
    """
    command = shell("ssh-keygen -R {} -f {}", name, path)
    return f"make sure that it is the right machine, then remove the old key with `{command}`"


def stranger(address: str, files: KnownFiles, key: paramiko.PKey) -> Unreachable:
    """Return the error for a host whose key is in none of the files, or is revoked in one."""
    if place := files.revocation(key):
        return Unreachable(
            f"the host key of {address} is revoked in {place}",
            do="create a new host key on the machine and pin that; others may have this one",
        )
    return Unreachable(
        f"the host key of {address} is not known",
        do=f"add it to {files.files[0].path} once you have compared it{files.complaint()}",
    )


def reason(error: BaseException) -> str:
    """Return the reason of an SSH failure in a few words on one line, of several addresses each different
    reason once.
    """
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        causes = {reason(cause) for cause in error.errors.values()}
        return ", ".join(sorted(causes))
    if isinstance(error, socket.gaierror):
        return NO_SUCH_NAME
    if isinstance(error, paramiko.ChannelException):
        return f"the jump host reports: {error.text.lower()}"
    if isinstance(error, TimeoutError):
        return TIMED_OUT
    if ENDLESS in str(error):
        return ENDLESS
    if any(words in str(error) for words in SILENCE):
        return SILENT
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    if not isinstance(error, (paramiko.SSHException, OSError, EOFError, ValueError)):
        return f"its answer breaks the SSH protocol ({type(error).__name__})"
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__

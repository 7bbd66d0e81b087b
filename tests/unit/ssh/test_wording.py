"""Messages about unreachable nodes: drift and verify print the same, although different programs connect."""

from __future__ import annotations

import errno
import os
import socket
import time

import paramiko
import pytest

from gpuprov.errors import Silent
from gpuprov.model.connection import Connection
from gpuprov.ssh.answers import error_document, read_error
from gpuprov.ssh.failures import unreachable
from gpuprov.ssh.packets import ENDLESS
from gpuprov.ssh.route import route
from gpuprov.ssh.wording import of_openssh


@pytest.mark.parametrize(
    ("ssh", "error"),
    [
        (
            "ssh: connect to host 127.0.0.1 port 22: Connection refused",
            ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)),
        ),
        (
            "ssh: connect to host 127.0.0.1 port 22: No route to host",
            OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH)),
        ),
        ("ssh: connect to host 127.0.0.1 port 22: Connection timed out", TimeoutError("timed out")),
        (
            "ssh: Could not resolve hostname 127.0.0.1: Name or service not known",
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
        ),
    ],
)
def test_both_say_the_same(ssh: str, error: OSError) -> None:
    """Check that OpenSSH's and paramiko's errors give the same message."""
    assert of_openssh(ssh) == str(unreachable(route("127.0.0.1", Connection(port=22, user="root")), error))


def of_kernel(number: int) -> OSError:
    """Return the error of the kernel with this number."""
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("error", "silent"),
    [
        (TimeoutError("timed out"), True),
        (of_kernel(errno.EHOSTUNREACH), True),
        (of_kernel(errno.ETIMEDOUT), True),
        (paramiko.ssh_exception.NoValidConnectionsError({("n", 22): of_kernel(errno.ETIMEDOUT)}), True),
        (paramiko.ChannelException(2, "Connection timed out"), True),
        (paramiko.SSHException("Timeout opening channel."), True),
        (paramiko.SSHException("Error reading SSH protocol banner"), True),
        (paramiko.ChannelException(2, "Connection refused"), False),
        (paramiko.ChannelException(1, "administratively prohibited"), False),
        (of_kernel(errno.ECONNREFUSED), False),
        (of_kernel(errno.ENETUNREACH), False),
        (ConnectionResetError(errno.ECONNRESET, "reset"), False),
        (
            paramiko.ssh_exception.NoValidConnectionsError(
                {("n", 22): of_kernel(errno.ETIMEDOUT), ("::1", 22): of_kernel(errno.ECONNREFUSED)}
            ),
            False,
        ),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), False),
        (paramiko.AuthenticationException("no"), False),
        (paramiko.SSHException(f"Error reading SSH protocol banner {ENDLESS}"), False),
        (ValueError("garbage"), False),
    ],
)
def test_only_a_node_that_sends_nothing_is_silent(error: Exception, silent: bool) -> None:
    found = unreachable(route("127.0.0.1", Connection(port=22, user="root")), error)
    assert isinstance(found, Silent) is silent
    assert isinstance(read_error(error_document(found)), Silent) is silent


def test_a_refused_login_says_what_to_do() -> None:
    said = of_openssh("root@10.0.0.1: Permission denied (publickey,password).")
    assert said.startswith("root@10.0.0.1 refused every key offered; put the public key")


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (
            "No ED25519 host key is known for [10.0.0.1]:2299 and you have requested strict checking.",
            "the host key of 10.0.0.1 is not known; add it",
        ),
        (
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nOffending ED25519 key in /kh:1\n"
            "Host key for 10.0.0.1 has changed and you have requested strict checking.",
            "the host key of 10.0.0.1 has changed; make sure that it is the right machine",
        ),
    ],
)
def test_a_host_key_that_is_not_taken(before: str, said: str) -> None:
    assert of_openssh(f"{before}\nHost key verification failed.\n").startswith(said)


def test_other_words_stay() -> None:
    """Check that an unknown message of OpenSSH is not changed."""
    assert of_openssh("kex_exchange_identification: read: Connection reset by peer").startswith("kex_")


def test_a_long_line_of_a_node_takes_no_time() -> None:
    """Check a line of 1 MiB for which a pattern would take hours."""
    line = "a@" * (1 << 19)
    begun = time.process_time()
    assert of_openssh(line) == line[:1000]
    assert time.process_time() - begun < 1

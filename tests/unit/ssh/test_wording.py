"""Messages about unreachable nodes: drift and verify print the same, although different programs connect."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from gpuprov.model.connection import Connection
from gpuprov.ssh.failures import unreachable
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
    assert of_openssh(ssh) == str(unreachable(route("127.0.0.1", Connection(port=22, user="root")), error))


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
    assert of_openssh("kex_exchange_identification: read: Connection reset by peer").startswith("kex_")

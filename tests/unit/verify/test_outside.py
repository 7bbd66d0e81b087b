"""Methods that sshd offers from outside, by ssh's own output."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from gpuprov.errors import NodeFailed
from gpuprov.model.connection import Connection
from gpuprov.ssh.route import route
from gpuprov.untrusted.programs import Answer
from gpuprov.verify import outside

WAY = route("192.0.2.1", Connection(user="ops", port=2201))
DENIED = "ops@192.0.2.1: Permission denied (publickey,password).\n"
OFFER = f"debug1: Authentications that can continue: publickey,password\n{DENIED}"
LET_IN = 'debug1: x\nAuthenticated to 192.0.2.1 ([192.0.2.1]:22) using "none".\n'
OTHER_KEY = "Host key verification failed.\n"
CLOSED = "kex_exchange_identification: Connection closed by remote host\n"


def asked(monkeypatch: pytest.MonkeyPatch, *said: str) -> list[list[str]]:
    """Answer in place of ssh, one text after the other; return its command lines."""
    left, argv = list(said), []

    def run(words: list[str], **limits: Any) -> Answer:
        argv.append(words)
        return Answer(255, b"", left.pop(0).encode())

    monkeypatch.setattr(outside, "run_limited", run)
    return argv


def test_methods_are_those_of_a_connection_that_shows_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = asked(monkeypatch, OFFER)
    assert outside.offered(WAY, 2201) == ["publickey", "password"]
    [words] = argv
    assert "PreferredAuthentications=none" in words
    assert "PubkeyAuthentication=no" in words
    assert "StrictHostKeyChecking=yes" in words
    assert not [word for word in words if word.startswith("HostKeyAlias")]


def test_a_login_that_is_let_in_is_the_method_none(monkeypatch: pytest.MonkeyPatch) -> None:
    asked(monkeypatch, LET_IN)
    assert outside.offered(WAY, 2201) == ["none"]


def test_another_port_must_show_the_node_s_key(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = asked(monkeypatch, OTHER_KEY, "connect to host x port 22: Connection refused\n")
    assert outside.offered(WAY, 22) is None
    assert outside.offered(WAY, 22) is None
    assert "HostKeyAlias=[192.0.2.1]:2201" in argv[0]
    assert argv[0][argv[0].index("Port=22") - 1] == "-o"


def test_this_machine_has_any_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside.shutil, "which", lambda name: "/usr/bin/ssh")
    argv = asked(monkeypatch, OFFER)
    assert outside.offered(replace(WAY, local=True), 22) == ["publickey", "password"]
    assert argv[0][-2:] == ["localhost", "exit"]
    assert argv[0].index("StrictHostKeyChecking=no") < argv[0].index("StrictHostKeyChecking=yes")
    monkeypatch.setattr(outside.shutil, "which", lambda name: None)
    assert outside.offered(replace(WAY, local=True), 22) is None


@pytest.mark.parametrize("said", [CLOSED, OTHER_KEY, "debug1: x\n", ""])
def test_a_port_of_the_route_without_a_method_is_tried_twice_and_unknown(
    monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    argv = asked(monkeypatch, said, said)
    with pytest.raises(NodeFailed, match="sshd on port 2201 offers no method: "):
        outside.offered(WAY, 2201)
    assert len(argv) == 2


def test_both_tries_of_a_port_share_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    now = [100.0]

    def run(_: list[str], *, seconds: float, **__: Any) -> Answer:
        """Record the time allowed, let 10 s pass, and answer that the port is closed."""
        given.append(seconds)
        now[0] += 10
        return Answer(255, b"", CLOSED.encode())

    monkeypatch.setattr(outside, "run_limited", run)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with pytest.raises(NodeFailed, match="offers no method"):
        outside.offered(WAY, 2201)
    assert given == [15, 5]


def test_ports_are_asked_within_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now, called = [100.0], []

    def ask(port: int) -> list[str]:
        """Record the port, and let 3 s pass."""
        called.append(port)
        now[0] += 3
        return ["publickey"]

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    assert list(outside.each_offered(ask, 2201, {22, 2201})) == [2201, 22]
    called.clear()
    with pytest.raises(NodeFailed, match="no answer from port 7 within 20 s of asking 13 ports"):
        outside.each_offered(ask, 2201, range(1, 13))
    assert called == [2201, *range(1, 7)]

"""Nodes that get a password of a first login: new ones, and those that the person has named."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
import pytest
from paramiko import common

from gpuprov.bootstrap.contact import Login
from gpuprov.bootstrap.hostkeys import host_keys
from gpuprov.bootstrap.run import Goal, NodeResult, bootstrap
from gpuprov.cli.bootstrap import _named
from gpuprov.errors import Exit
from gpuprov.model.connection import Connection
from gpuprov.model.fleet import read_fleet
from gpuprov.ssh.transport import Target

FLEET = "groups:\n  g: {profile: hgx-h200-4, os: debian12, hosts: {gpu01: 192.0.2.1, gpu02: 192.0.2.2}}\n"
SECRET = "of-the-new-node"  # noqa: S105


@dataclass
class Doors(paramiko.ServerInterface):
    """SSH of a node that refuses every key, and records the passwords that it gets."""

    got: list[str] = field(default_factory=list)

    def get_allowed_auths(self, username: str) -> str:
        return "publickey,password"

    def check_auth_password(self, username: str, password: str) -> int:
        self.got.append(password)
        return common.AUTH_FAILED


@dataclass
class Fleet:
    """A prepared node that was taken over, and a new one."""

    targets: list[Target]
    doors: dict[str, Doors]
    identity: Path

    def bootstrap(self, login: Login, *named: str) -> dict[str, NodeResult]:
        """Bootstrap both; return node → its result."""
        goal = Goal({target.name: ("ssh-ed25519 AAAA x",) for target in self.targets})
        found = bootstrap(self.targets, goal, login, host_keys, confirm=lambda _: True, named=named)
        return {each.name: each for each in found}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    key = tmp_path / "key"
    paramiko.RSAKey.generate(2048).write_private_key_file(str(key))
    found, listeners = Fleet([], {}, key), []

    def serve(listener: socket.socket, host_key: paramiko.PKey, doors: Doors) -> None:
        """Serve SSH until the listener is closed."""
        while True:
            try:
                transport = paramiko.Transport(listener.accept()[0])
                transport.add_server_key(host_key)
                transport.start_server(event=threading.Event(), server=doors)
            except (OSError, paramiko.SSHException):
                if listener.fileno() == -1:
                    return

    for name in ("taken", "new"):
        listener, host_key = socket.create_server(("127.0.0.1", 0)), paramiko.ECDSAKey.generate()
        listeners.append(listener)
        found.doors[name] = Doors()
        port = listener.getsockname()[1]
        known = tmp_path / "known_hosts"
        if name == "taken":
            known.write_text(f"[127.0.0.1]:{port} {host_key.get_name()} {host_key.get_base64()}\n")
        way = Connection(user="root", port=port, identity_file=str(key), known_hosts=str(known))
        found.targets.append(Target(name, "127.0.0.1", way))
        threading.Thread(target=serve, args=(listener, host_key, found.doors[name]), daemon=True).start()
    yield found
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def logins(fleet: Fleet) -> dict[str, Login]:
    """Return the ways in which a person gives a password."""
    return {
        "stated": Login("root", password=SECRET, sudo_password=SECRET),
        "asked": Login("root", identity=fleet.identity, ask=lambda: SECRET),
    }


@pytest.mark.parametrize("way", ["stated", "asked"])
def test_a_prepared_node_that_refuses_the_key_gets_no_password(fleet: Fleet, way: str) -> None:
    found = fleet.bootstrap(logins(fleet)[way])
    assert fleet.doors["taken"].got == []
    assert SECRET in fleet.doors["new"].got
    failure = found["taken"].failure
    assert failure is not None
    assert failure.exit_code == Exit.UNREACHABLE
    assert "it got no password, because its host key was known before" in failure.seen
    assert "gpuprov bootstrap taken, with --ask-pass" in failure.do
    assert "got no password" not in str(found["new"].failure)


@pytest.mark.parametrize("way", ["stated", "asked"])
def test_a_node_that_the_person_names_gets_it(fleet: Fleet, way: str) -> None:
    fleet.bootstrap(logins(fleet)[way], "taken")
    assert SECRET in fleet.doors["taken"].got


def test_without_a_password_there_is_none_to_miss(fleet: Fleet) -> None:
    failure = fleet.bootstrap(Login("root", identity=fleet.identity))["new"].failure
    assert "got no password" not in str(failure)


def test_a_login_by_key_has_no_password_of_any_kind() -> None:
    login = Login("ops", 22, None, SECRET, SECRET, lambda: SECRET).by_key()
    assert (login.user, login.password, login.sudo_password, login.ask()) == ("ops", None, None, None)


def test_a_group_names_no_node(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yml"
    path.write_text(FLEET)
    fleet = read_fleet(path)
    [group] = fleet.groups
    assert _named(fleet, (group, "gpu[02-03]")) == {"gpu02", "gpu03"}
    assert _named(fleet, ()) == set()

"""Login to a new node: the users that are tried, their order, and when a password is requested."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import paramiko
import pytest
from paramiko import common

from gpuprov.bootstrap.contact import Login, reach
from gpuprov.bootstrap.enter import cloud_logins, enter
from gpuprov.bootstrap.run import EXPIRED, NAMED
from gpuprov.errors import Unreachable
from gpuprov.model.connection import Connection


@dataclass
class Door:
    """Fake node that accepts users by key or by password; `tried` lists the logins of all connections."""

    opens: dict[str, str]
    user: str = "root"
    takes_passwords: bool = False
    passwords: bool = False
    tried: list[str] = field(default_factory=list)

    def again(self, user: str) -> Door:
        return replace(self, user=user)

    def log_in(self, login: Login) -> Any:
        """Record a try; raise Unreachable unless this user logs in this way."""
        how = f"{self.user} by {'password' if login.password else 'key'}"
        self.tried.append(how)
        if how != self.opens.get(self.user):
            self.takes_passwords = self.passwords
            raise Unreachable(f"{self.user}@192.0.2.1 refused the key")
        return how

    def close(self) -> None:
        return None


def come(door: Door, login: Login | None = None, system: str = "debian12") -> Any:
    """Enter through a door; return the session, which says how."""
    return enter(door, login or Login(), system).session  # type: ignore[arg-type]


WORD = "open sesame"


class OpensByPassword(paramiko.ServerInterface):
    """A server that refuses keys and accepts a password, as sshd does: a refused key leaves both methods."""

    def get_allowed_auths(self, username: str) -> str:
        return "publickey,password"

    def check_auth_password(self, username: str, password: str) -> int:
        return common.AUTH_SUCCESSFUL if password == WORD else common.AUTH_FAILED


def test_after_a_refused_key_the_password_is_asked_for(tmp_path: Path) -> None:
    listener, host_key = socket.create_server(("127.0.0.1", 0)), paramiko.ECDSAKey.generate()
    paramiko.RSAKey.generate(2048).write_private_key_file(str(tmp_path / "key"))

    def serve() -> None:
        """Serve two connections that accept only a password."""
        for _ in range(2):
            transport = paramiko.Transport(listener.accept()[0])
            transport.add_server_key(host_key)
            transport.start_server(event=threading.Event(), server=OpensByPassword())

    threading.Thread(target=serve, daemon=True).start()
    asked: list[str] = []

    def ask() -> str:
        asked.append("asked")
        return WORD

    login = Login("root", listener.getsockname()[1], tmp_path / "key", ask=ask)
    contact = reach("gpu1", "127.0.0.1", Connection(), login)
    entered = enter(contact, login, "debian12")
    entered.contact.close()
    contact.close()
    listener.close()
    assert (entered.password, asked) == (WORD, ["asked"])


def test_the_stated_user_alone_is_tried() -> None:
    door = Door({"debian": "debian by key"}, user="ops")
    with pytest.raises(Unreachable, match="ops@"):
        come(door, Login(user="ops"))
    assert door.tried == ["ops by key"]


@pytest.mark.parametrize(
    ("system", "user"),
    [("debian12", "admin"), ("ubuntu24.04", "ubuntu"), ("rhel9", "ec2-user"), ("rhel9", "rocky")],
)
def test_else_those_that_images_of_the_system_have(system: str, user: str) -> None:
    assert come(Door({user: f"{user} by key"}), system=system) == f"{user} by key"
    assert user in cloud_logins(system)


def test_an_unknown_system_has_none() -> None:
    assert cloud_logins("plan9") == ()


def test_a_person_is_asked_last_and_only_where_passwords_are_taken() -> None:
    asked: list[str] = []

    def ask() -> str:
        asked.append("asked")
        return "secret"

    shut = Door({"root": "root by password"})
    with pytest.raises(Unreachable, match="there is no key for debian, admin either"):
        come(shut, Login(ask=ask))
    assert not asked
    door = Door({"root": "root by password"}, passwords=True)
    assert come(door, Login(ask=ask)) == "root by password"
    assert door.tried == ["root by key", "debian by key", "admin by key", "root by password"]
    assert asked == ["asked"]


def test_where_nobody_can_be_asked_the_refusal_stands() -> None:
    with pytest.raises(Unreachable, match="refused the key"):
        come(Door({"root": "root by password"}, passwords=True))


def test_what_nodes_say_to_whom_they_turn_away() -> None:
    said = 'Please login as the user "ec2-user" rather than the user "root".'
    named = NAMED.search(said)
    assert named
    assert named[1] == "ec2-user"
    assert NAMED.search('login as the user "$(reboot)"') is None
    assert EXPIRED.search("Password change required but no TTY available.")

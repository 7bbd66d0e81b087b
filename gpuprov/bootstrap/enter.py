"""Users for the first login to a node: the stated one, or those of a distribution's images."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuprov.bootstrap.contact import Contact, Login
from gpuprov.catalog.platforms import platform
from gpuprov.errors import InvalidInput, Unreachable
from gpuprov.ssh.transport import Session
from gpuprov.ssh.wording import ANOTHER_LOGIN


@dataclass(frozen=True)
class Entered:
    """An open session, and the password of its login, which may be sudo's, too."""

    contact: Contact
    session: Session
    password: str | None


def cloud_logins(system: str) -> tuple[str, ...]:
    """Return the users in images of a system such as `debian12`; none for an unknown system.

    A user with the system's own name comes first.
    """
    try:
        return tuple(sorted(platform(system).logins, key=lambda user: user not in system))
    except InvalidInput:
        return ()


def python_of(system: str) -> str:
    """Return the program in which Ansible's modules run on a system such as `rhel8`, as its package is named.

    `python3` for an unknown system.
    """
    try:
        return platform(system).python.rpartition("/")[2]
    except InvalidInput:
        return "python3"


def enter(contact: Contact, login: Login, system: str) -> Entered:
    """Log in as the stated user, with keys or the stated password.

    Where neither user nor password is stated, also try the users of the system's images; last, where sshd
    takes a password, prompt for one, once for all nodes.

    Args:
        contact: a connection without a login, which the caller closes, like the returned one.
        system: operating system of the node, as the fleet states it.

    Raises:
        Unreachable: every login is refused.
    """
    first = contact.user
    others = [] if login.user or login.password else [each for each in cloud_logins(system) if each != first]
    refused: list[Unreachable] = []
    for user in (first, *others):
        door = contact if user == first else contact.again(user)
        try:
            return Entered(door, door.log_in(login), login.password)
        except Unreachable as error:
            refused.append(error)
            if door is not contact:
                door.close()
    if login.password is None and contact.takes_passwords and (password := login.ask()):
        door = contact.again(first)
        return Entered(door, door.log_in(replace(login, password=password)), password)
    if others:
        raise Unreachable(
            f"{refused[0].seen}; there is no key for {', '.join(others)} either",
            do=f"state --user, or {ANOTHER_LOGIN}",
        )
    raise refused[0]


def enter_again_as(entered: Entered, user: str, login: Login) -> Entered:
    """Log in by a second connection, as the user that the node's refusal names; the caller closes both.

    Raises:
        Unreachable: that login is refused, too, or SSH does not answer.
    """
    door = entered.contact.again(user)
    return Entered(door, door.log_in(login), login.password)

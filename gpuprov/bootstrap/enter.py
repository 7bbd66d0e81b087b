"""Whose login opens a node for the first time: one that is stated, an image's own, or a password's."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuprov.bootstrap.contact import Contact, Login
from gpuprov.errors import Unreachable
from gpuprov.ssh.transport import Session

# The users that distributions' own cloud images make: `default_user` of cloud-init's config/cloud.cfg.tmpl,
# and for AWS https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/managing-users.html ("Default user names").
CLOUD_LOGINS = {
    "debian": ("debian", "admin"),
    "ubuntu": ("ubuntu",),
    "rhel": ("ec2-user", "cloud-user", "rocky", "almalinux"),
    "rocky": ("rocky",),
}


@dataclass(frozen=True)
class Entered:
    """An open session, and the password that it was opened with, which may be sudo's too."""

    contact: Contact
    session: Session
    password: str | None


def cloud_logins(system: str) -> tuple[str, ...]:
    """The users of images of a system, such as `debian12`; none where it is not known."""
    return CLOUD_LOGINS.get(system.rstrip("0123456789."), ())


def enter(contact: Contact, login: Login, system: str) -> Entered:
    """Log in by keys as the user that is stated, else as those of images; last by a password, asked for once.

    Args:
        contact: open, and no one has logged in yet.
        system: what the fleet says that the node runs.

    Raises:
        Unreachable: no one gets in.
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
            f"{refused[0].seen}; nor is there a key for {', '.join(others)}",
            do="state --user with --identity, or --ask-pass; see gpuprov bootstrap --help",
        )
    raise refused[0]


def enter_as(entered: Entered, user: str, login: Login) -> Entered:
    """Log in once more, as the user that the node itself names.

    Raises:
        Unreachable: that one does not get in either.
    """
    door = entered.contact.again(user)
    return Entered(door, door.log_in(login), login.password)

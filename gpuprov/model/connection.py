"""Connections to hosts, as stated for the fleet, a group or one host.

Values that are not stated are left open here; `gpuprov.ssh.route` decides them.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field, field_validator

from gpuprov.model.documents import Strict
from gpuprov.model.stack import IMAGE
from gpuprov.untrusted.gates import shown

HOST_NAME = re.compile(r"(?!.{254})[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
NOT_A_HOST = frozenset({"all", "ungrouped", "localhost", "127.0.0.1", IMAGE})
"""Names that a host must not have: Ansible's groups of all hosts, its names for the controller
(`LOCALHOST` in its constants), and the builder that is no host. A host of such a name would get the variables
and data of others, or its kernel modules would be installed on all nodes that trust those of an image.
"""
USER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@\\-]*[$]?")
ALIAS = re.compile(r"[A-Z][A-Z0-9_]*")
"""Names that are no users in sudoers: `ALL` is everybody there, and others are aliases."""
READ_BY_SSH = re.compile(r'["\\%$\x00-\x1f\x7f]')
"""Characters of a path that ssh reads as the end of a quote, a token or a variable."""
BRACKETS = re.compile(r"\[(?P<host>[^\[\]]*)\](?::(?P<port>.*))?")
LOCAL = "local"
"""Address of the machine that gpuprov itself runs on: SSH is not used."""
NO_JUMP = "none"
"""ssh's value for a direct connection where another file states a jump host."""


def host_name(name: str) -> str:
    """Return a valid host name of a fleet or a lock unchanged.

    Raises:
        ValueError: it has other characters, or is one of `NOT_A_HOST`.
    """
    if not HOST_NAME.fullmatch(name):
        raise ValueError(f"host names of at most 253 letters, digits, '.', '_' and '-', not {shown(name)}")
    if name in NOT_A_HOST:
        raise ValueError(
            f"host names other than {name!r}, which has a meaning in Ansible or gpuprov: {{NAME: {name}}}"
        )
    return name


HostName = Annotated[str, AfterValidator(host_name)]
"""Name of a host in a fleet or a lock."""


class Connection(Strict):
    """How the controller reaches hosts; None defaults to `~/.ssh/config`, then to ssh's defaults and root."""

    user: str | None = Field(default=None, description="user that logs in")
    port: int | None = Field(default=None, ge=1, le=65535, description="SSH port")
    identity_file: str | None = Field(
        default=None, description="file of the private key; no other key is offered"
    )
    known_hosts: str | None = Field(default=None, description="file of the host keys")
    jump: str | None = Field(
        default=None,
        description="jump host, [USER@]HOST[:PORT]; several with commas, the nearest first;"
        " `none` connects directly",
    )

    @field_validator("user")
    @classmethod
    def _is_a_name(cls, user: str | None) -> str | None:
        """Return the user, or None if none is stated; raise ValueError if it is not a user name."""
        if user is not None and not USER_NAME.fullmatch(user):
            raise ValueError("a user name such as ubuntu")
        if user is not None and ALIAS.fullmatch(user):
            raise ValueError(f"a user name with a lower-case letter: sudo does not read {user} as a user")
        return user

    @field_validator("identity_file", "known_hosts")
    @classmethod
    def _is_one_path(cls, path: str | None) -> str | None:
        """Return the path; raise ValueError if ssh would open another one, or several."""
        if path is not None and READ_BY_SSH.search(path):
            raise ValueError(f'a path without `"`, `\\`, `%`, `$` and control characters, not {shown(path)}')
        return path

    @field_validator("jump")
    @classmethod
    def _names_hosts(cls, jump: str | None) -> str | None:
        """Return the jump hosts as stated, None for none; raise ValueError if one is not
        `[USER@]HOST[:PORT]`.
        """
        for each in [] if jump is None else jump.split(","):
            try:
                parse_destination(each)
            except ValueError as error:
                raise ValueError(f"[USER@]HOST[:PORT]: {error}") from None
        return jump


def lay_over(base: Connection, *over: Connection | None) -> Connection:
    """Return `base` overlaid by the stated values of each of `over`; the last one wins."""
    stated: dict[str, object] = {}
    for each in over:
        stated |= each.model_dump(exclude_none=True) if each else {}
    return base.model_copy(update=stated)


class Destination(NamedTuple):
    """`[USER@]HOST[:PORT]`, split into its parts."""

    user: str | None
    host: str
    port: int | None


def parse_destination(text: str) -> Destination:
    """Parse `ubuntu@203.0.113.7:40022`, `[2001:db8::2]:22` or `gpu01`.

    An IPv6 address with a port needs brackets; without a port they are optional.

    Raises:
        ValueError: none of these formats; the message states the error.
    """
    name, at, place = text.rpartition("@")
    if at and ("@" in name or not USER_NAME.fullmatch(name)):
        raise ValueError(f"{shown(text)} has no valid user before the @")
    bracketed = BRACKETS.fullmatch(place)
    if bracketed:
        host, port = bracketed["host"], bracketed["port"]
    elif _is_ipv6(place):
        host, port = place, None
    else:
        host, colon, port = place.partition(":")
        port = port if colon else None
    if port is not None and ":" in port:
        raise ValueError(
            f"{shown(text)} has more than one port; an IPv6 address with a port is written [ADDRESS]:PORT"
        )
    if not (HOST_NAME.fullmatch(host) or _is_ipv6(host)):
        raise ValueError(
            f"{shown(text)} names no host: at most 253 letters, digits, '.', '_' and '-', or an address"
        )
    if port is not None and not (port.isdecimal() and port.isascii() and 1 <= int(port[:9]) <= 65535):
        raise ValueError(f"the port of {shown(text)} is not a number from 1 to 65535")
    return Destination(name or None, host, int(port) if port else None)


def host_address(text: str) -> str:
    """Return a name or address of a host unchanged; raise ValueError for others, and with a user or port."""
    if parse_destination(text) != Destination(None, text, None):
        raise ValueError(f"a name or an address of a host without user, port and brackets, not {shown(text)}")
    return text


HostAddress = Annotated[str, AfterValidator(host_address)]
"""Name or address by which other hosts reach a host."""


def _is_ipv6(text: str) -> bool:
    """Return whether a text is an IPv6 address without a zone."""
    try:
        return bool(ipaddress.IPv6Address(text)) and "%" not in text
    except ValueError:
        return False

"""fleet.yml: what is wanted, in a person's words."""

from __future__ import annotations

import ipaddress
import re
from datetime import date
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from gpuprov.errors import InvalidInput
from gpuprov.model.documents import Marked, Strict, read_text, validate
from gpuprov.model.hardware import HardwareProfile
from gpuprov.model.lock import Connection, Reboots
from gpuprov.model.profile import NAME
from gpuprov.model.rollout import Rollout
from gpuprov.model.settings import Settings
from gpuprov.model.stack import StackPolicy
from gpuprov.nodeset import expand

HOST_NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")


class Group(Strict):
    """Hosts of one kind. `hosts` becomes name → address, whichever way it was written.

    `hardware`, `stack` and `settings` are laid over the profile's; `vars` are the site's own Ansible
    variables, which go into inventories as they are.
    """

    profile: str = Field(pattern=NAME)
    hosts: dict[str, str]
    os: str
    arch: str = "x86_64"
    site: str | None = Field(default=None, description="where they stand: a data centre, a cloud's region")
    hardware: HardwareProfile = HardwareProfile()
    stack: StackPolicy = StackPolicy()
    settings: Settings = Settings()
    vars: dict[str, Any] = Field(default={}, description="Ansible variables of the site's own")

    @field_validator("hosts", mode="before")
    @classmethod
    def _fold_out(cls, stated: object) -> dict[str, str]:
        hosts = _named(stated)
        if not hosts:
            raise ValueError("at least one host")
        return hosts


class FurtherGroup(Strict):
    """An Ansible group that is no kind of server: hosts of other groups, other groups, variables."""

    hosts: list[str] = Field(default=[], description="some of the fleet's hosts, as a range or a list")
    children: list[str] = Field(default=[], description="other groups")
    vars: dict[str, Any] = Field(default={}, description="Ansible variables")

    @field_validator("hosts", mode="before")
    @classmethod
    def _fold_out(cls, stated: object) -> list[str]:
        return list(_named(stated))


class Mirror(Strict):
    """Where a repository is for this site, and the keyring file that its signature is checked with."""

    url: str = Field(pattern=r"^(https?|file):")
    key: str | None = None
    frozen: date | None = Field(
        default=None,
        description="the day (UTC) of the snapshot, of a mirror that stands still on purpose: its indexes may"
        " have expired since then, and may be older than those that were read of a later day",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_url(cls, stated: object) -> object:
        return {"url": stated} if isinstance(stated, str) else stated

    @field_validator("url")
    @classmethod
    def _as_apt_says(cls, url: str) -> str:
        # apt calls file:///srv file:/srv, and the node is asked what apt reads and where packages came from.
        return re.sub("^file:/+", "file:/", url)

    @model_serializer(mode="wrap")
    def _without_what_is_not_stated(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # The lock has a digest of the fleet: one that states nothing new keeps its own.
        written: dict[str, Any] = write(self)
        return written if self.frozen else {key: each for key, each in written.items() if key != "frozen"}


class Fleet(Strict):
    """The whole file."""

    plugin: Literal["gpuprov", "gpuprov.gpuprov.gpuprov"] | None = Field(
        default=None, description="lets `ansible-inventory -i fleet.yml` find gpuprov's inventory plugin"
    )
    groups: dict[str, Group] = Field(min_length=1)
    also: dict[str, FurtherGroup] = Field(default={}, description="further Ansible groups of these hosts")
    host_vars: dict[str, dict[str, Any]] = Field(default={}, description="host → Ansible variables")
    ssh: Connection = Connection()
    reboot: Reboots = Reboots()
    rollout: Rollout | None = Field(default=None, description="how `gpuprov upgrade` moves the fleet")
    repositories: dict[str, Mirror] = Field(default={}, description="repository id → this site's mirror")
    profile_dirs: list[str] = Field(default=[], description="folders of the site's own profiles")
    catalog_dirs: list[str] = Field(default=[], description="folders of the site's own catalog records")


def _named(stated: object) -> dict[str, str]:
    """Name → address of hosts, however they are written."""
    if isinstance(stated, dict):
        hosts = {str(name): str(address) for name, address in stated.items()}
    else:
        hosts = {name: name for name in expand(stated)}
    for name, address in hosts.items():
        if not HOST_NAME.match(name) or not (HOST_NAME.match(address) or _is_ipv6(address)):
            raise ValueError(_not_a_host(name, address))
    return hosts


def _is_ipv6(address: str) -> bool:
    try:
        return bool(ipaddress.IPv6Address(address)) and "%" not in address
    except ValueError:
        return False


def _not_a_host(name: str, address: str) -> str:
    host, _, port = address.rpartition(":")
    if HOST_NAME.match(host) and port.isdigit():
        return (
            f"an address without a port, not {name!r}: {address!r}; ssh: {{port: {port}}} states it for all"
        )
    return f"host names of letters, digits, '.', '_' and '-', not {name!r}: {address!r}"


def read_fleet(path: Path) -> Fleet:
    """Read fleet.yml.

    Raises:
        InvalidInput: with file and line of what is wrong, and what was expected.
    """
    return parse_fleet(read_text(path, missing="run `gpuprov init` to write one"), str(path))


def parse_fleet(text: str, name: str) -> Fleet:
    """The same for a text; `name` stands for the file in complaints."""
    document = Marked(text, name)
    if not isinstance(document.data, dict):
        raise InvalidInput(f"{name}:1: not a mapping", expected="the key groups")
    fleet = validate(document, document.data, Fleet)
    _refuse_hosts_in_two_groups(fleet, document)
    _refuse_unknown_names(fleet, document)
    return fleet


def _refuse_hosts_in_two_groups(fleet: Fleet, document: Marked) -> None:
    owner: dict[str, str] = {}
    for name, group in fleet.groups.items():
        for host in group.hosts:
            if host in owner:
                line = document.line(("groups", name, "hosts"))
                raise InvalidInput(f"{document.name}:{line}: {host} is in group {owner[host]} already")
            owner[host] = name


def _refuse_unknown_names(fleet: Fleet, document: Marked) -> None:
    """What `also` and `host_vars` speak of must be there."""
    hosts = {host for group in fleet.groups.values() for host in group.hosts}
    groups = {*fleet.groups, *fleet.also}
    for name, further in fleet.also.items():
        if name in fleet.groups:
            raise InvalidInput(f"{document.name}:{document.line(('also', name))}: {name} is a group already")
        for key, known in (("hosts", hosts), ("children", groups)):
            for stated in getattr(further, key):
                if stated not in known:
                    place = f"{document.name}:{document.line(('also', name, key))}"
                    raise InvalidInput(f"{place}: also.{name}.{key} names {stated}, which is not in groups")
    for host in fleet.host_vars:
        if host not in hosts:
            line = document.line(("host_vars", host))
            raise InvalidInput(f"{document.name}:{line}: host_vars names {host}, which no group has")

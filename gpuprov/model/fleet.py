"""Model of fleet.yml: the wanted state of a fleet."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import date
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    ConfigDict,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from gpuprov.model.connection import LOCAL, Connection, HostName, host_name, lay_over, parse_destination
from gpuprov.model.documents import HOW_TO_BEGIN, Places, Strict, read_text, validate
from gpuprov.model.floors import Floors
from gpuprov.model.forms import MirrorUrl, Workers
from gpuprov.model.hardware import HardwareProfile
from gpuprov.model.lock import Reboots, SecurityPolicy
from gpuprov.model.marked import Marked
from gpuprov.model.nodeset import expand
from gpuprov.model.places import Words
from gpuprov.model.profile import NAME, Profiles, ResolvedProfile
from gpuprov.model.racks import Grouping
from gpuprov.model.rollout import Rollout
from gpuprov.model.secure_boot import SecureBoot
from gpuprov.model.settings import Settings
from gpuprov.model.stack import StackPolicy
from gpuprov.untrusted.within_limits import within_limits

FOLDERS = 16
"""The most folders of profiles, and of catalog records: the files of each are read."""


class Host(Strict):
    """One host: its address, and its own SSH values."""

    address: str = Field(
        description="a name in DNS or ~/.ssh/config, an address, or HOST:PORT; `local` is this machine"
    )
    ssh: Connection | None = Field(
        default=None, description="SSH values of this host, which override the group's"
    )

    @model_validator(mode="before")
    @classmethod
    def _take_apart(cls, stated: object) -> object:
        """Convert `203.0.113.7:40022` to the address and `ssh: {port: 40022}`, `USER@HOST` likewise.

        Raises:
            ValueError: not such an address, or `ssh` states another port or user than the address.
        """
        whole = dict(stated) if isinstance(stated, dict) else {"address": str(stated)}
        if not isinstance(whole.get("address"), str):
            return whole
        try:
            user, whole["address"], port = parse_destination(whole["address"])
        except ValueError as error:
            raise ValueError(f"an address, or HOST:PORT: {error}") from None
        ssh = whole.get("ssh") or {}
        for key, value in (("user", user), ("port", port)):
            if value is None or not isinstance(ssh, dict):
                continue
            if ssh.get(key, value) != value:
                raise ValueError(f"one {key}: the address has {value}, ssh.{key} is {ssh[key]}")
            ssh = {**ssh, key: value}
        return {**whole, "ssh": ssh} if ssh else whole

    @model_serializer(mode="wrap")
    def _as_short_as_it_goes(self, write: SerializerFunctionWrapHandler) -> dict[str, Any] | str:
        """Return only the address as text for a host without SSH values."""
        # The lock has a digest of the fleet: a host without SSH values keeps its former serialised form.
        if self.ssh is None:
            return self.address
        return {"address": self.address, "ssh": self.ssh.model_dump(exclude_none=True)}


class Group(Strict):
    """Hosts of one kind. `entries` (`hosts` in the file) is name → host for each of its formats.

    `hardware`, `stack` and `settings` override the profile's; `vars` are the site's own Ansible variables,
    which inventories contain unchanged.
    """

    model_config = ConfigDict(populate_by_name=False)

    profile: str = Field(pattern=NAME)
    entries: dict[HostName, Host] = Field(alias="hosts")
    os: str
    arch: str = "x86_64"
    site: str | None = Field(
        default=None, description="location of the hosts: a data centre, a cloud's region"
    )
    hardware: HardwareProfile = HardwareProfile()
    stack: StackPolicy = StackPolicy()
    settings: Settings = Settings()
    floors: Floors | None = Field(
        default=None, description="minimum values that `gpuprov accept` may measure"
    )
    vars: dict[str, Any] = Field(default={}, description="the site's own Ansible variables")
    ssh: Connection | None = Field(
        default=None, description="SSH values of the group, which override the fleet's"
    )

    @field_validator("entries", mode="before")
    @classmethod
    def _fold_out(cls, stated: object) -> dict[str, object]:
        """Return name → host for a range, a list of ranges or a mapping; raise ValueError if it is empty."""
        if not isinstance(stated, dict):
            hosts: dict[str, object] = {name: name for name in _names(stated)}
        else:
            hosts = {str(name): _with_address(str(name), host) for name, host in stated.items()}
        if not hosts:
            raise ValueError("at least one host")
        return hosts

    @model_serializer(mode="wrap")
    def _as_people_write_it(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the keys as in a file: `hosts`, and `ssh` and `floors` only if they are stated."""
        # The lock has a digest of the fleet: one without new values keeps its digest.
        written: dict[str, Any] = write(self)
        for key in ("ssh", "floors"):
            if getattr(self, key) is None:
                written.pop(key, None)
        if self.floors is not None:
            written["floors"] = self.floors.stated()
        return {"hosts" if key == "entries" else key: value for key, value in written.items()}

    @property
    def hosts(self) -> dict[str, str]:
        """Return host names and their addresses."""
        return {name: host.address for name, host in self.entries.items()}


class FurtherGroup(Strict):
    """A further Ansible group, without a profile: hosts of other groups, other groups, variables."""

    hosts: list[str] = Field(default=[], description="some of the fleet's hosts, as a range or a list")
    children: list[str] = Field(default=[], description="other groups")
    vars: dict[str, Any] = Field(default={}, description="Ansible variables")

    @field_validator("hosts", mode="before")
    @classmethod
    def _fold_out(cls, stated: object) -> list[str]:
        """Return host names from a range, a list of ranges, or the keys of a mapping; raises as `_names`."""
        return _names(list(stated) if isinstance(stated, dict) else stated)


class Mirror(Strict):
    """A repository's place for this site, and the keyring file that its signature is checked with."""

    url: MirrorUrl = Field(pattern=r"^(https?|file):")
    key: str | None = None
    frozen: date | None = Field(
        default=None,
        description="the day (UTC) of the snapshot, for a mirror that is frozen on purpose: its indexes may"
        " have expired since then, and may be older than indexes read before",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_url(cls, stated: object) -> object:
        """Convert a text to a mirror with that URL."""
        return {"url": stated} if isinstance(stated, str) else stated

    @field_validator("url")
    @classmethod
    def _as_apt_says(cls, url: str) -> str:
        """Return the URL in apt's form, `file:/srv`; raise ValueError if it contains a login."""
        if "@" in urlsplit(url).netloc:
            raise ValueError(
                "a URL without a login: locks, repository files and logs show it to others. The controller"
                " reads login and password from ~/.netrc, nodes from /etc/apt/auth.conf.d"
            )
        # apt writes file:/srv for file:///srv, and the node reports apt's form.
        return re.sub("^file:/+", "file:/", url)

    @model_serializer(mode="wrap")
    def _without_what_is_not_stated(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the keys, `frozen` only if it is stated."""
        # The lock has a digest of the fleet: one without new values keeps its digest.
        written: dict[str, Any] = write(self)
        return written if self.frozen else {key: each for key, each in written.items() if key != "frozen"}


class Fleet(Strict):
    """The whole fleet.yml."""

    plugin: Literal["gpuprov", "gpuprov.gpuprov.gpuprov"] | None = Field(
        default=None, description="lets `ansible-inventory -i fleet.yml` find gpuprov's inventory plugin"
    )
    groups: dict[str, Group] = Field(min_length=1)
    also: dict[str, FurtherGroup] = Field(default={}, description="further Ansible groups of these hosts")
    host_vars: dict[str, dict[str, Any]] = Field(default={}, description="host → Ansible variables")
    ssh: Connection = Connection()
    reboot: Reboots = Reboots()
    rollout: Rollout | None = Field(default=None, description="how `gpuprov upgrade` moves the fleet")
    secure_boot: SecureBoot | None = Field(
        default=None, description="certificate and key that sign kernel modules"
    )
    security: SecurityPolicy | None = Field(
        default=None,
        description="what `gpuprov lock` does about versions that a security bulletin concerns: `warn` (the"
        " default), `refuse` or `ignore`",
    )
    repositories: dict[str, Mirror] = Field(default={}, description="repository id → this site's mirror")
    controllers: Workers | None = Field(
        default=None, description="services of sites whose workers reach the hosts, as in --workers"
    )
    racks: Grouping | None = Field(
        default=None, description="rack → its hosts, for schedulers' topology and labels of metrics"
    )
    nvlink_domains: Grouping | None = Field(
        default=None, description="NVLink domain of several hosts, such as an NVL72 → its hosts"
    )
    profile_dirs: list[str] = Field(
        default=[], max_length=FOLDERS, description="folders of the site's own profiles"
    )
    catalog_dirs: list[str] = Field(
        default=[], max_length=FOLDERS, description="folders of the site's own catalog records"
    )

    _places: Places = PrivateAttr(default_factory=Places)
    _words: Words = PrivateAttr(default_factory=Words)

    @property
    def words(self) -> Words:
        """Places of the names of profiles, systems, architectures and repositories in the file."""
        return self._words

    @model_serializer(mode="wrap")
    def _without_what_is_not_stated(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the keys; those that came after the first locks only if they are stated."""
        # The lock has a digest of the fleet: one without new values keeps its digest.
        written: dict[str, Any] = write(self)
        new = ("secure_boot", "security", "controllers", "racks", "nvlink_domains")
        return {key: each for key, each in written.items() if key not in new or each is not None}

    def place_of(self, host: str) -> str:
        """Return `FILE:LINE` of a host; empty if it is unknown or the fleet was not read from a document."""
        return self._places.get(host, "")

    def profile_folders(self, folder: Path) -> list[Path]:
        """Return the folders of the fleet's own profiles: `profiles` and `profile_dirs`, below the folder of
        fleet.yml.
        """
        return [folder / each for each in ["profiles", *self.profile_dirs]]

    def profiles(self, folder: Path) -> dict[str, ResolvedProfile]:
        """Return the groups' profiles by name, each loaded once, in the order of the groups.

        Args:
            folder: the folder of fleet.yml.

        Raises:
            InvalidInput: as `Profiles`.
        """
        profiles = Profiles(self.profile_folders(folder))
        names = dict.fromkeys(group.profile for group in self.groups.values())
        return {name: profiles.load(name) for name in names}

    def connection_of(self, group: str, host: str) -> Connection:
        """Return a host's connection: its own values override its group's, which override the fleet's."""
        stated = self.groups[group]
        return lay_over(self.ssh, stated.ssh, stated.entries[host].ssh)


def _names(stated: object) -> list[str]:
    """Return names of hosts, from a range or a list of ranges.

    Raises:
        ValueError: not a node set, or a name is invalid or has a port.
    """
    hosts = expand(stated)
    for name in hosts:
        if ":" in name:
            raise ValueError(f"names without a port; a port needs an address: {{NAME: {name!r}}}")
        host_name(name)
    return hosts


def _with_address(name: str, stated: object) -> object:
    """Return a stated host with its name as the address, if it has no address."""
    if stated is None:
        return name
    return {"address": name, **stated} if isinstance(stated, dict) else stated


@within_limits()
def read_fleet(path: Path) -> Fleet:
    """Read fleet.yml.

    Raises:
        InvalidInput: with file and line of the error, and what was expected.
    """
    return parse_fleet(read_text(path, missing=HOW_TO_BEGIN), str(path))


def parse_fleet(text: str, name: str) -> Fleet:
    """Parse the text of a fleet.yml, or raise InvalidInput; `name` is the file's name in errors."""
    return fleet_of(Marked(text, name))


def fleet_of(document: Marked) -> Fleet:
    """Validate a parsed fleet.yml, and return it with the places of its hosts and names.

    Raises:
        InvalidInput: with file and line of the error; also for a host in two groups, unknown names, and
            internal variables of roles.
    """
    if not isinstance(document.data, dict):
        seen = "the file is empty" if document.data is None else "not a mapping"
        do = "`gpuprov init` writes a file to start from"
        raise document.wrong("wrong-value", (), seen, expected="the key groups", do=do)
    fleet = validate(document, document.data, Fleet)
    _refuse_hosts_in_two_groups(fleet, document)
    _refuse_unknown_names(fleet, document)
    _refuse_wrong_places(fleet, document)
    _refuse_this_machine_twice(fleet, document)
    _refuse_internal_variables(fleet, document)
    for group, stated in fleet.groups.items():
        for host in stated.hosts:
            fleet._places[host] = f"{document.name}:{document.line(('groups', group, 'hosts', host))}"
        for key in ("profile", "os", "arch"):
            fleet.words.add(document, ("groups", group), key, getattr(stated, key))
    for repository in fleet.repositories:
        fleet.words.add(document, ("repositories",), repository, repository)
    return fleet


def _refuse_hosts_in_two_groups(fleet: Fleet, document: Marked) -> None:
    """Raise InvalidInput for the first host that is in two groups."""
    owner: dict[str, str] = {}
    for name, group in fleet.groups.items():
        for host in group.hosts:
            if host in owner:
                place = ("groups", name, "hosts", host)
                seen = f"{host} is already in group {owner[host]}"
                raise document.wrong("host-twice", place, seen, do="name it in only one group")
            owner[host] = name


def _refuse_this_machine_twice(fleet: Fleet, document: Marked) -> None:
    """Raise InvalidInput for a second host with the address `local`: one machine has one name."""
    own = [
        (name, host)
        for name, group in fleet.groups.items()
        for host, address in group.hosts.items()
        if address == LOCAL
    ]
    for name, host in own[1:]:
        raise document.wrong(
            "host-twice",
            ("groups", name, "hosts", host),
            f"{host} is {LOCAL}, and so is {own[0][1]}",
            expected="one host that is the machine gpuprov runs on",
        )


def _refuse_unknown_names(fleet: Fleet, document: Marked) -> None:
    """Raise InvalidInput for unknown names in `also` and `host_vars`, and for a name in both `groups` and
    `also`.
    """
    hosts = {host for group in fleet.groups.values() for host in group.hosts}
    groups = {*fleet.groups, *fleet.also}
    for name, further in fleet.also.items():
        if name in fleet.groups:
            raise document.wrong("group-twice", ("also", name), f"{name} is already a group")
        for key, known in (("hosts", hosts), ("children", groups)):
            for stated in getattr(further, key):
                if stated not in known:
                    seen = f"also.{name}.{key} names {stated}, which is not in groups"
                    raise document.wrong("unknown-name", ("also", name, key), seen)
    for host in fleet.host_vars:
        if host not in hosts:
            seen = f"host_vars names {host}, which is in no group"
            raise document.wrong("unknown-name", ("host_vars", host), seen)


def _refuse_wrong_places(fleet: Fleet, document: Marked) -> None:
    """Raise InvalidInput for a rack or NVLink domain with an unknown host, and for a host in two of them."""
    known = {host for group in fleet.groups.values() for host in group.hosts}
    for key in ("racks", "nvlink_domains"):
        owner: dict[str, str] = {}
        for name, hosts in (getattr(fleet, key) or {}).items():
            for host in hosts:
                if host not in known:
                    seen = f"{key}.{name} names {host}, which is in no group"
                    raise document.wrong("unknown-name", (key, name), seen)
                if owner.setdefault(host, name) != name:
                    seen = f"{host} is already in {key}.{owner[host]}"
                    raise document.wrong("host-twice", (key, name), seen, do="name it in only one of them")


def _refuse_internal_variables(fleet: Fleet, document: Marked) -> None:
    """Raise InvalidInput for the first variable with the name of an internal one of roles or playbooks."""
    stated: dict[tuple[str, ...], Collection[str]] = {
        **{("groups", name, "vars"): group.vars for name, group in fleet.groups.items()},
        **{("also", name, "vars"): further.vars for name, further in fleet.also.items()},
        **{("host_vars", host): variables for host, variables in fleet.host_vars.items()},
    }
    for place, names in stated.items():
        for name in names:
            if name.startswith("__"):
                seen = f"{'.'.join(place)} states {name}, an internal variable of the roles"
                raise document.wrong(
                    "wrong-value", (*place, name), seen, expected="names without a leading __"
                )

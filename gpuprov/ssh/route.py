"""The one place that says how a node is reached; Paramiko, OpenSSH, Ansible and testinfra go by it.

A node may be this machine itself (`LOCAL`): then commands run here, without SSH.

What the fleet states counts first. What it leaves open comes from `~/.ssh/config`, as ssh reads it; then the
user is root, and the port 22.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from gpuprov.errors import InvalidInput
from gpuprov.model.connection import LOCAL, NO_JUMP, Connection, parse_destination
from gpuprov.ssh.client_config import Answer, client_config, forget_client_config, usual_keys
from gpuprov.ssh.known_hosts import KNOWN_HOSTS, names_of

HOPS_AT_MOST = 8
USUAL_KEYS = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519")
"""Where ssh is not configured at all, it may not be there to be asked."""
AGENT_OF_THE_ENVIRONMENT = "SSH_AUTH_SOCK"


@dataclass(frozen=True)
class Route:
    """How one node, or a host on the way to it, is reached.

    Attributes:
        address: what the fleet calls it; ssh is called with this, so that its configuration knows it.
        hostname: the name or address that is connected to.
        host_key_names: what it may be called in files of host keys, the exact name first.
        known_hosts: those files; the first that has any key of it counts.
        identity_files: private keys in the order of trying; some may not be there.
        certificate_files: certificates for these, and for those of the agent.
        identities_only: whether the agent's other keys are left alone.
        agent: the agent's socket; `none`, or None for that of the environment.
        jump: the host to go through.
        proxy_command: the command whose input and output lead to it, in place of a connection.
        stated: what the fleet states of all this.
        local: this machine: `user` is who gpuprov runs as, and nothing of SSH counts.
    """

    address: str
    hostname: str
    user: str
    port: int
    host_key_names: tuple[str, ...]
    known_hosts: tuple[str, ...]
    identity_files: tuple[str, ...]
    certificate_files: tuple[str, ...]
    identities_only: bool
    agent: str | None
    jump: Route | None
    proxy_command: str | None
    stated: Connection
    local: bool = False

    @property
    def login(self) -> str:
        """Who logs in there over SSH, also where gpuprov itself does not."""
        return (self.stated.user or "root") if self.local else self.user

    @property
    def pinned_as(self) -> tuple[str, int]:
        """Name and port that its host keys are written down under."""
        aliased = self.host_key_names[0] not in names_of(self.hostname, self.port)
        return (self.host_key_names[0], 22) if aliased else (self.hostname, self.port)

    @property
    def place(self) -> str:
        """`USER@HOST`, with the port where it is not ssh's own."""
        if self.local:
            return "this machine"
        host = f"[{self.hostname}]" if ":" in self.hostname else self.hostname
        return f"{self.user}@{host}" + (f":{self.port}" if self.port != 22 else "")


def route(address: str, stated: Connection) -> Route:
    """How a host is reached.

    Args:
        address: of the host; ssh's configuration may know it by this name.
        stated: what the fleet states of it.

    Raises:
        InvalidInput: ssh's configuration cannot be read, or its jump hosts go round in a circle.
    """
    return _here(stated) if address == LOCAL else _route(address, stated, 0)


def whoami() -> str:
    """The name of the user that commands run as; its number where it has none."""
    if os.geteuid() == 0:
        return "root"
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def forget_routes() -> None:
    """Read ssh's configuration anew."""
    forget_client_config()
    _route.cache_clear()


def _here(stated: Connection) -> Route:
    """This machine; a login over SSH, to prove that sshd lets people in, goes to its own port."""
    port = stated.port or 22
    return Route(
        address=LOCAL,
        hostname="localhost",
        user=whoami(),
        port=port,
        host_key_names=names_of("localhost", port),
        known_hosts=(),
        identity_files=(),
        certificate_files=(),
        identities_only=True,
        agent="none",
        jump=None,
        proxy_command=None,
        stated=stated,
        local=True,
    )


@lru_cache(maxsize=20_000)
def _route(address: str, stated: Connection, depth: int) -> Route:
    """`depth` 0 is the node itself; hosts on the way are entered as ssh does, by the local user."""
    said = client_config(address, stated.user, stated.port, otherwise=None if depth else "root")
    hostname, alias = _first(said, "hostname") or address, _first(said, "hostkeyalias")
    user = stated.user or _first(said, "user") or "root"
    port = stated.port or int(_first(said, "port") or 22)
    tokens = {"h": hostname, "n": address, "p": str(port), "r": user, "d": str(Path.home()), "%": "%"}
    only = stated.identity_file if depth == 0 else None
    agent = _first(said, "identityagent")
    jump = _jump((hostname, port), stated, said, depth)
    command = None if jump or stated.jump else _first(said, "proxycommand")
    return Route(
        address=address,
        hostname=hostname,
        user=user,
        port=port,
        host_key_names=(alias,) if alias else names_of(hostname, port),
        known_hosts=_known_hosts(stated, said, depth),
        identity_files=(only,) if only else _identity_files(stated, said, tokens),
        certificate_files=() if only else _expanded(said.get("certificatefile", ()), tokens),
        identities_only=only is not None or _first(said, "identitiesonly") == "yes",
        agent=None if agent == AGENT_OF_THE_ENVIRONMENT else agent,
        jump=jump,
        proxy_command=_filled(command, tokens) if command else None,
        stated=stated,
    )


def _jump(to: tuple[str, int], stated: Connection, said: Answer, depth: int) -> Route | None:
    """The last host before this one; the fleet's word counts before that of ssh's configuration.

    Args:
        to: hostname and port of the host that it leads to.
    """
    hops = stated.jump or _first(said, "proxyjump")
    if not hops or hops == NO_JUMP:
        return None
    if depth == HOPS_AT_MOST:
        raise InvalidInput(
            f"more than {HOPS_AT_MOST} hosts to go through, the last one {hops}",
            do="check for a circle, see ProxyJump in ~/.ssh/config",
        )
    before, _, last = hops.rpartition(",")
    try:
        user, host, port = parse_destination(last.removeprefix("ssh://"))
    except ValueError as error:
        raise InvalidInput(
            f"the host {last!r} to go through: {error}", do="see ProxyJump in ~/.ssh/config"
        ) from None
    there = client_config(host, user, port, otherwise=None)
    itself = (_first(there, "hostname") or host, port or int(_first(there, "port") or 22)) == to
    if itself and not stated.jump:  # a `Host *` that leads to one of its own: ssh passes over it
        return None
    spec = stated.model_copy(update={"user": user, "port": port, "jump": before or None})
    return _route(host, spec, depth + 1)


def _known_hosts(stated: Connection, said: Answer, depth: int) -> tuple[str, ...]:
    """The fleet's file alone for a node; a host on the way may as well be known to the person."""
    own = tuple(each for each in " ".join(said.get("userknownhostsfile", ())).split() if each != "none")
    shared = tuple(" ".join(said.get("globalknownhostsfile", ())).split())
    usual = (*(own or (KNOWN_HOSTS,)), *(path for path in shared if Path(path).exists()))
    if stated.known_hosts is None:
        return usual
    return (stated.known_hosts, *usual) if depth else (stated.known_hosts,)


def _identity_files(stated: Connection, said: Answer, tokens: dict[str, str]) -> tuple[str, ...]:
    """Those that the configuration names, or the usual ones; the fleet's first for a host on the way."""
    named = tuple(said.get("identityfile", ()))
    usual = usual_keys() if said else USUAL_KEYS
    if named and named != usual:
        return _expanded(named, tokens)
    return (*filter(None, [stated.identity_file]), *usual)


def _first(said: Answer, option: str) -> str | None:
    """The option's value; None where there is none, or it is the word for that."""
    value = next(iter(said.get(option, ())), None)
    return None if value == "none" and option != "identityagent" else value


def _expanded(paths: Sequence[str], tokens: dict[str, str]) -> tuple[str, ...]:
    return tuple(_filled(path, tokens) for path in paths if path != "none")


def _filled(text: str, tokens: dict[str, str]) -> str:
    """The text with ssh_config(5)'s TOKENS in place; those that are not known here stay."""
    return re.sub("%(.)", lambda found: tokens.get(found[1], found[0]), text)

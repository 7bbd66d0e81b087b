"""The only definition of how a node is reached; Paramiko, OpenSSH, Ansible and testinfra use it.

A node may be this machine itself (`LOCAL`): then commands run here, without SSH.

Settings of the fleet take precedence. Those that it omits come from `~/.ssh/config`, as ssh reads it. The
default user of a node is root, that of a jump host the local user; the default port is 22.
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
from gpuprov.model.lock import Lock
from gpuprov.ssh.client_config import Answer, client_config, forget_client_config, usual_keys
from gpuprov.ssh.known_hosts import KNOWN_HOSTS, KnownFiles, known_files, names_of
from gpuprov.untrusted.stated import stated_path

HOPS_AT_MOST = 8
USUAL_KEYS = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519")
"""Default keys if ssh is not configured at all; ssh may not be installed then, and is not run."""
NO_FILE = "/dev/null"
"""In place of the user's known-hosts files, if ssh's configuration states that there are none."""
AGENT_OF_THE_ENVIRONMENT = "SSH_AUTH_SOCK"
KERBEROS = ("GSSAPIDelegateCredentials", "GSSAPIKeyExchange")
"""Options with which a host gets the user's Kerberos ticket, or proves by Kerberos, without a host key, which
host it is.
"""


@dataclass(frozen=True)
class Route:
    """The way to one node, or to a jump host before it.

    Attributes:
        address: name in the fleet; ssh is called with it, so that its configuration for this name applies.
        hostname: name or address to connect to.
        host_key_names: names under which known-hosts files may list the host, the exact name first.
        known_hosts: those files, which are one table; new keys are added to the first.
        revoked_keys: files of keys that no host may have.
        identity_files: private keys in the order in which they are tried; some may not exist.
        certificate_files: certificates for these keys, and for those of the agent.
        identities_only: whether other keys of the agent are not tried.
        agent: socket of the agent; `none`, or None for the environment's agent.
        jump: the host to connect through.
        proxy_command: a command whose input and output are used in place of a connection.
        stated: settings of the fleet for this route.
        kerberos: options of `KERBEROS` that ssh's configuration states.
        local: this machine: `user` is the user that gpuprov runs as, and settings of SSH do not apply.
    """

    address: str
    hostname: str
    user: str
    port: int
    host_key_names: tuple[str, ...]
    known_hosts: tuple[str, ...]
    revoked_keys: tuple[str, ...]
    identity_files: tuple[str, ...]
    certificate_files: tuple[str, ...]
    identities_only: bool
    agent: str | None
    jump: Route | None
    proxy_command: str | None
    stated: Connection
    kerberos: tuple[str, ...] = ()
    local: bool = False

    @property
    def login(self) -> str:
        """The user for logins over SSH; of this machine the stated one, or root."""
        return (self.stated.user or "root") if self.local else self.user

    @property
    def pinned_as(self) -> tuple[str, int]:
        """Name and port under which the host's keys are recorded."""
        aliased = self.host_key_names[0] not in names_of(self.hostname, self.port)
        return (self.host_key_names[0], 22) if aliased else (self.hostname, self.port)

    def known_files(self) -> KnownFiles:
        """Return the contents of the known-hosts files and of the files of revoked keys.

        A known-hosts file that does not exist is empty.

        Raises:
            InvalidInput: one of them cannot be read, or every user can write it.
        """
        return known_files(self.known_hosts, self.revoked_keys)

    @property
    def place(self) -> str:
        """`USER@HOST`, with the port if it is not 22, IPv6 in brackets; `this machine` if local."""
        if self.local:
            return "this machine"
        host = f"[{self.hostname}]" if ":" in self.hostname else self.hostname
        return f"{self.user}@{host}" + (f":{self.port}" if self.port != 22 else "")


def route(address: str, stated: Connection) -> Route:
    """Return the route to a host.

    Args:
        address: name of the host, which ssh's configuration may contain, or `LOCAL` for this machine.
        stated: settings of the fleet for the host.

    Raises:
        InvalidInput: ssh's configuration cannot be read, or a jump host is invalid or part of a loop.
    """
    return _here(stated) if address == LOCAL else _route(address, stated, 0)


def with_absolute_paths(lock: Lock) -> Lock:
    """Return the lock with absolute paths of `identity_file` and `known_hosts` in all its connections.

    `~` is expanded, and relative paths are those of the current folder. Connections without these files stay
    as they are.
    """
    groups = {}
    for name, group in lock.groups.items():
        own = {host: _with_absolute_paths(each) for host, each in (group.connections or {}).items()}
        found = {"connection": _with_absolute_paths(group.connection), "connections": own or None}
        groups[name] = group.model_copy(update=found)
    return lock.model_copy(update={"groups": groups})


def _with_absolute_paths(stated: Connection) -> Connection:
    """Return a connection with absolute paths of `identity_file` and `known_hosts`."""
    files = {key: getattr(stated, key) for key in ("identity_file", "known_hosts")}
    found = {key: str(stated_path(path).absolute()) for key, path in files.items() if path}
    return stated.model_copy(update=found)


def whoami() -> str:
    """Return the name of the user that commands run as, or the user's number if it has no name."""
    if os.geteuid() == 0:
        return "root"
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def forget_routes() -> None:
    """Clear the caches, so that ssh's configuration is read again."""
    forget_client_config()
    _route.cache_clear()


def _here(stated: Connection) -> Route:
    """Return the route to this machine; its port is used by logins over SSH that test sshd."""
    port = stated.port or 22
    return Route(
        address=LOCAL,
        hostname="localhost",
        user=whoami(),
        port=port,
        host_key_names=names_of("localhost", port),
        known_hosts=(),
        revoked_keys=(),
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
    """Return the route to a node (`depth` 0) or to a jump host, by the stated values, then ssh's
    configuration.

    The default user of a node is root, that of a jump host the local user, as ssh_config(5) states for User.

    Raises:
        InvalidInput: ssh's configuration cannot be used.
    """
    said = client_config(address, stated.user, stated.port, otherwise=None if depth else "root")
    hostname, alias = _first(said, "hostname") or address, _first(said, "hostkeyalias")
    user = stated.user or _first(said, "user") or (whoami() if depth else "root")
    port = stated.port or int(_first(said, "port") or 22)
    tokens = {"h": hostname, "n": address, "p": str(port), "r": user, "d": str(stated_path("~")), "%": "%"}
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
        known_hosts=_known_hosts(stated, said, depth, tokens),
        revoked_keys=_expanded(_paths(said.get("revokedhostkeys", ())), tokens),
        identity_files=(only,) if only else _identity_files(stated, said, tokens),
        certificate_files=() if only else _expanded(said.get("certificatefile", ()), tokens),
        identities_only=only is not None or _first(said, "identitiesonly") == "yes",
        agent=None if agent == AGENT_OF_THE_ENVIRONMENT else agent,
        jump=jump,
        proxy_command=_filled(command, tokens) if command else None,
        stated=stated,
        kerberos=tuple(option for option in KERBEROS if _first(said, option.lower()) == "yes"),
    )


def _jump(to: tuple[str, int], stated: Connection, said: Answer, depth: int) -> Route | None:
    """Return the last jump host before a host; the fleet's setting takes precedence over ssh's configuration.

    None if the host is reached directly, or if ssh's configuration names it as its own jump host.

    Args:
        to: hostname and port of the host.

    Raises:
        InvalidInput: the jump host is invalid, or there are more than `HOPS_AT_MOST`.
    """
    hops = stated.jump or _first(said, "proxyjump")
    if not hops or hops == NO_JUMP:
        return None
    if depth == HOPS_AT_MOST:
        raise InvalidInput(
            f"more than {HOPS_AT_MOST} jump hosts, the last one {hops}",
            do="check ProxyJump in ~/.ssh/config for a loop",
        )
    before, _, last = hops.rpartition(",")
    try:
        user, host, port = parse_destination(last.removeprefix("ssh://"))
    except ValueError as error:
        raise InvalidInput(
            f"the jump host {last!r}: {error}", do="correct ProxyJump in ~/.ssh/config"
        ) from None
    there = client_config(host, user, port, otherwise=None)
    itself = (_first(there, "hostname") or host, port or int(_first(there, "port") or 22)) == to
    if itself and not stated.jump:  # a `Host *` section applies to its own jump host, too: ssh ignores that
        return None
    spec = stated.model_copy(update={"user": user, "port": port, "jump": before or None})
    return _route(host, spec, depth + 1)


def _known_hosts(stated: Connection, said: Answer, depth: int, tokens: dict[str, str]) -> tuple[str, ...]:
    """Return the known-hosts files: the fleet's, for a jump host the user's and the system's after it.

    If the fleet states no file, return the user's and the system's.
    """
    found = _expanded(_paths(said.get("userknownhostsfile", (KNOWN_HOSTS,))), tokens)
    own = tuple(path for path in found if path.startswith(("/", "~")))  # not of the current folder
    shared = _paths(said.get("globalknownhostsfile", ()))
    usual = (*(own or (NO_FILE,)), *(path for path in shared if Path(path).exists()))
    if stated.known_hosts is None:
        return usual
    return (stated.known_hosts, *usual) if depth else (stated.known_hosts,)


def _identity_files(stated: Connection, said: Answer, tokens: dict[str, str]) -> tuple[str, ...]:
    """Return the keys in ssh's configuration; if it names none, the fleet's key and the default keys."""
    named = tuple(said.get("identityfile", ()))
    usual = usual_keys() if said else USUAL_KEYS
    if named and named != usual:
        return _expanded(named, tokens)
    return (*filter(None, [stated.identity_file]), *usual)


def _first(said: Answer, option: str) -> str | None:
    """Return an option's first value; None if it is missing, or `none` (except for IdentityAgent)."""
    value = next(iter(said.get(option, ())), None)
    return None if value == "none" and option != "identityagent" else value


def _paths(values: Sequence[str]) -> list[str]:
    """Return the paths of an option that can have several; `ssh -G` prints them without quotes.

    A word that begins no path belongs to the one before.
    """
    return re.split(r"\s+(?=[/~$%])", " ".join(values)) if values else []


def _expanded(paths: Sequence[str], tokens: dict[str, str]) -> tuple[str, ...]:
    """Return the paths with their `%` tokens expanded (`~` is kept), without `none`."""
    return tuple(_filled(path, tokens) for path in paths if path != "none")


def _filled(text: str, tokens: dict[str, str]) -> str:
    """Return the text with ssh_config(5)'s TOKENS expanded; those that are not in `tokens` are kept."""
    return re.sub("%(.)", lambda found: tokens.get(found[1], found[0]), text)

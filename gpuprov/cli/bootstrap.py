"""`gpuprov bootstrap`: first login to new hosts, keys, sudo and host keys."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.terminal import tell
from gpuprov.errors import Exit, InvalidInput, worst
from gpuprov.model.connection import LOCAL

if TYPE_CHECKING:
    from gpuprov.bootstrap.hostkeys import HostKeys
    from gpuprov.bootstrap.run import NodeResult
    from gpuprov.model.fleet import Fleet
    from gpuprov.ssh.transport import Target

SCHEMA = "gpuprov.bootstrap/1"
existing = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command()
@click.argument("hosts", nargs=-1)
@click.option("-F", "--fleet", "fleet_path", type=Path, default=Path("fleet.yml"), show_default=True)
@click.option("--user", help="user that can log in now  [default: of ~/.ssh/config, or of the cloud image]")
@click.option("--port", type=click.IntRange(1, 65535), help="current SSH port  [default: the fleet's]")
@click.option(
    "--identity",
    type=existing,
    help="private key that can log in now  [default: the agent and the usual keys]",
)
@click.option("-k", "--ask-pass", is_flag=True, help="ask for the current login password; also used for sudo")
@click.option("--password-fd", type=int, help="read the login password from this file descriptor (one line)")
@click.option(
    "-K", "--ask-become-pass", is_flag=True, help="ask for sudo's password, if it is not the login password"
)
@click.option(
    "--key",
    "keys",
    type=existing,
    multiple=True,
    help="public key to install  [default: that of ssh.identity_file]; repeatable",
)
@click.option(
    "--host-key", type=existing, help="known-hosts file with the expected host keys; other keys are refused"
)
@click.option("--accept-new", is_flag=True, help="trust unknown host keys without comparison")
@click.option("--keep-passwords", is_flag=True, help="keep password logins enabled")
@options.forks_option
@options.output_option
def command(
    hosts: tuple[str, ...],
    fleet_path: Path,
    user: str | None,
    port: int | None,
    identity: Path | None,
    ask_pass: bool,
    password_fd: int | None,
    ask_become_pass: bool,
    keys: tuple[Path, ...],
    host_key: Path | None,
    accept_new: bool,
    keep_passwords: bool,
    forks: int,
    output: str,
) -> Exit:
    """Install keys and sudo on HOSTS (by default all of fleet.yml), pin host keys, disable passwords.

    The fleet's user gets the public keys and sudo, Python is installed, host keys are pinned in the fleet's
    known-hosts file, and password logins are disabled after a new login by key has worked. Nothing changes
    where this is done already. A password goes only to hosts whose host key was not known before, and to
    those that HOSTS names, not by a group. If the fleet states secure_boot, the enrolment of its certificate
    is prepared, and the remaining steps at the console are printed.
    """
    from gpuprov.bootstrap.contact import Login
    from gpuprov.bootstrap.hostkeys import host_keys
    from gpuprov.bootstrap.public_keys import public_keys
    from gpuprov.bootstrap.run import Goal, bootstrap
    from gpuprov.model.fleet import read_fleet
    from gpuprov.signing.certificate import read_certificate
    from gpuprov.ssh.route import Route

    fleet = read_fleet(fleet_path)
    chosen = _targets(fleet, hosts)
    signing = fleet.secure_boot
    own: dict[str, None] = {}
    installed = {each.name: public_keys(each.route, keys, own.setdefault) for each in chosen}
    for line in own:
        options.note(line)
    goal = Goal(
        installed,
        key_only=not keep_passwords,
        systems={host: group.os for group in fleet.groups.values() for host in group.hosts},
        certificate=read_certificate(fleet_path.parent / signing.certificate) if signing else None,
    )
    password = login_password(password_fd, ask=ask_pass)
    sudo = options.ask_password(ask_become_pass)
    login = Login(user, port, identity, password, sudo, asked_once())
    files: dict[object, HostKeys] = {}

    def pinned(way: Route) -> HostKeys:
        read = (way.known_hosts, way.revoked_keys)
        if read not in files:
            files[read] = host_keys(way, host_key)
        return files[read]

    for each in chosen:
        pinned(each.route)
    nodes = bootstrap(
        chosen, goal, login, pinned, confirm=_confirm(accept_new), named=_named(fleet, hosts), forks=forks
    )
    _tell(nodes, files.values(), output)
    return worst(*(node.failure.exit_code for node in nodes if node.failure))


def _targets(fleet: Fleet, stated: tuple[str, ...]) -> list[Target]:
    """Return the stated hosts of the fleet; by default all, except a host that is this machine.

    Args:
        stated: groups of the fleet, and node sets.

    Raises:
        InvalidInput: not a set of nodes, not in the fleet, or a stated host is this machine.
    """
    from gpuprov.ssh.transport import Target

    known = {
        host: Target(host, address, fleet.connection_of(name, host), fleet.place_of(host))
        for name, group in fleet.groups.items()
        for host, address in group.hosts.items()
        if address != LOCAL or host in stated
    }
    wanted = [name for text in stated for name in _set_of(fleet, text)]
    if unknown := sorted(set(wanted) - set(known)):
        raise InvalidInput(
            f"fleet.yml has no host {', '.join(unknown)}", do="add it to a group of fleet.yml first"
        )
    chosen = [known[name] for name in dict.fromkeys(wanted or known)]
    if here := [each.name for each in chosen if each.address == LOCAL]:
        raise InvalidInput(f"{here[0]} is this machine, which needs no login", do="gpuprov lock")
    return chosen


def _set_of(fleet: Fleet, text: str) -> list[str]:
    """Return the hosts of a group of the fleet, or of a set of nodes, which the fleet may not have.

    Raises:
        InvalidInput: it is neither.
    """
    from gpuprov.model.nodeset import expand

    try:
        return list(fleet.groups[text].hosts) if text in fleet.groups else expand(text)
    except ValueError as error:
        raise InvalidInput(f"not a set of nodes: {text!r}", expected=str(error)) from None


def _named(fleet: Fleet, stated: tuple[str, ...]) -> set[str]:
    """Return the hosts that sets of nodes name, without those of groups; raises as `_set_of`."""
    return {name for text in stated if text not in fleet.groups for name in _set_of(fleet, text)}


def login_password(descriptor: int | None, *, ask: bool) -> str | None:
    """Return the login password from a file descriptor, else from a prompt if `ask`, else None.

    Raises:
        InvalidInput: the descriptor cannot be read.
    """
    if descriptor is not None:
        try:
            with os.fdopen(descriptor, encoding="utf-8", closefd=False) as handed_over:
                return handed_over.readline().rstrip("\n")
        except OSError as error:
            raise InvalidInput(f"--password-fd {descriptor} cannot be read: {error.strerror}") from None
    return click.prompt("password", hide_input=True, err=True) if ask else None


def asked_once() -> Callable[[], str | None]:
    """Return a function that asks once for the password of all nodes that accept no key.

    Without a terminal the function returns None.
    """
    mutex = Lock()
    known: list[str] = []

    def ask() -> str | None:
        with mutex:
            if not known and sys.stdin.isatty():
                known.append(click.prompt("no key is accepted; password", hide_input=True, err=True))
            return known[0] if known else None

    return ask


def _confirm(accept_new: bool) -> Callable[[dict[str, str]], bool]:
    """Return a function that shows host → key, and returns whether to trust the keys.

    It returns True without a question if `accept_new`, else False without a terminal.
    """

    def ask(shown: dict[str, str]) -> bool:
        for name, shown_key in shown.items():
            options.note(f"{name}  {shown_key}")
        if accept_new:
            return True
        if not sys.stdin.isatty():
            options.note(
                "host keys cannot be compared without a terminal: give --host-key FILE, or --accept-new"
            )
            return False
        return click.confirm("Are these the host keys that your provider shows?", err=True)

    return ask


def _tell(nodes: list[NodeResult], files: Collection[HostKeys], output: str) -> None:
    """Print each node's result with its notes, as JSON or as lines."""
    if output == "json":
        documents = [
            {
                "name": node.name,
                "status": "failed" if node.failure else "changed" if node.changed else "ready",
                "changed": node.changed,
                "notes": node.notes,
                "message": str(node.failure) if node.failure else None,
            }
            for node in nodes
        ]
        options.print_json({"schema": SCHEMA, "known_hosts": _paths(files), "nodes": documents})
        return
    for node in nodes:
        story = str(node.failure) if node.failure else ", ".join(node.changed) or "nothing to change"
        tell(f"{node.name}  {'failed: ' if node.failure else ''}{story}")
        for line in node.notes:
            tell(f"    {line}")


def _paths(files: Collection[HostKeys]) -> str | list[str]:
    """Return the path of the host keys' file, or a list if the fleet's hosts have several files."""
    paths = list(dict.fromkeys(str(each.path) for each in files))
    return paths[0] if len(paths) == 1 else paths

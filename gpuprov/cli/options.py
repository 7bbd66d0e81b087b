"""Options that several verbs share, and what they mean."""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuprov.errors import InvalidInput

if TYPE_CHECKING:
    from gpuprov.lock import Lock

output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
lock_option = click.option(
    "--lock",
    "lock_path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("fleet.lock.yml"),
    show_default=True,
    help="the lock to go by",
)
limit_option = click.option("-l", "--limit", help="only these nodes: gpu[01-04],gpu07, or a group's name")
nodes_argument = click.argument("nodes", nargs=-1)
forks_option = click.option(
    "-f", "--forks", type=click.IntRange(1, 1000), default=64, show_default=True, help="nodes at a time"
)
password_option = click.option("-K", "--ask-become-pass", is_flag=True, help="ask for sudo's password")
verbose_option = click.option("-v", "--verbose", count=True, help="say more; again for Ansible's own -v")
yes_option = click.option("--yes", is_flag=True, help="do not ask")


@dataclass(frozen=True)
class Chosen:
    """The nodes that a verb is to look at, and how to get there; `password` is sudo's, if it asks."""

    lock: Lock
    lock_path: Path
    names: list[str]
    forks: int
    password: str | None


def on_nodes(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb NODES, --lock, --limit, --forks, -K and -o; it is called with `chosen` and `output`."""

    @nodes_argument
    @lock_option
    @limit_option
    @forks_option
    @password_option
    @output_option
    @functools.wraps(verb)
    def with_nodes(
        *,
        nodes: tuple[str, ...],
        lock_path: Path,
        limit: str | None,
        forks: int,
        ask_become_pass: bool,
        **others: Any,
    ) -> Any:
        from gpuprov.lock import read_lock

        lock = read_lock(lock_path)
        names = select(lock, nodes, limit)
        password = ask_password(ask_become_pass)
        return verb(chosen=Chosen(lock, lock_path, names, forks, password), **others)

    return with_nodes


def ask_password(wanted: bool) -> str | None:
    """sudo's password, if -K was given."""
    return click.prompt("sudo password", hide_input=True, err=True) if wanted else None


def select(lock: Lock, nodes: Iterable[str], limit: str | None) -> list[str]:
    """Names of the lock's hosts that are meant: node sets or group names; nothing given means all.

    Raises:
        InvalidInput: a name that the lock does not know, with those that are near.
    """
    from gpuprov.fleet import expand_hosts

    known = lock.hosts()
    stated = [*nodes, *([limit] if limit else [])]
    if not stated:
        return list(known)
    wanted: set[str] = set()
    for text in stated:
        for part in lock.groups[text].hosts if text in lock.groups else _expand(text, expand_hosts):
            if part in lock.groups:
                wanted |= set(lock.groups[part].hosts)
            elif part in known:
                wanted.add(part)
            else:
                near = difflib.get_close_matches(part, [*known, *lock.groups], n=3)
                raise InvalidInput(
                    f"the lock has no node or group {part!r}",
                    expected="one of " + ", ".join(near or [*lock.groups]),
                )
    return [name for name in known if name in wanted]


def _expand(text: str, expand_hosts: Any) -> list[str]:
    try:
        names: list[str] = expand_hosts(text)
    except ValueError as error:
        raise InvalidInput(f"not a set of nodes: {text!r}", expected=str(error)) from None
    return names


def print_json(document: dict[str, Any]) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def note(text: str = "") -> None:
    """A line for a person, on stderr."""
    click.echo(text, err=True)

"""Options that several verbs share, and what they mean."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
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
verbose_option = click.option("-v", "--verbose", count=True, help="say more; again for Ansible's own -v")
yes_option = click.option("--yes", is_flag=True, help="do not ask")


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


def fold(names: Iterable[str]) -> str:
    """`gpu[001-064]` for a person."""
    from ClusterShell.NodeSet import NodeSet

    return str(NodeSet.fromlist(list(names)))


def print_json(document: dict[str, Any]) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def note(text: str = "") -> None:
    """A line for a person, on stderr."""
    click.echo(text, err=True)

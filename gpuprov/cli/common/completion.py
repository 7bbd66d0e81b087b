"""Shell completion: nodes and groups of the lock, profiles, components, tables.

Completion never fails and prints no message: without a valid file there are no suggestions. A shell puts a
suggestion into the command line as it is, where it would run `$(…)`: only plain words are suggested.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any

import click

PLAIN = re.compile(r"[\w.+@-]+")
Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _quietly(names: Callable[[click.Context], Iterable[str]]) -> Complete:
    """Decorate a function that returns names: keep plain words that begin with the typed text; [] on an
    error.
    """

    @wraps(names)
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        try:
            return [name for name in names(ctx) if name.startswith(incomplete) and PLAIN.fullmatch(name)]
        except Exception:  # noqa: BLE001
            return []

    return complete


@_quietly
def nodes(ctx: click.Context) -> Iterable[str]:
    """Return groups and hosts of the lock that the command line names."""
    from gpuprov.model.lock import read_lock

    lock = read_lock(_path(ctx, "lock_path", "fleet.lock.yml"))
    return [*lock.groups, *lock.hosts()]


@_quietly
def hosts_of_fleet(ctx: click.Context) -> Iterable[str]:
    """Return groups and hosts of fleet.yml, which needs no lock."""
    from gpuprov.model.fleet import read_fleet

    fleet = read_fleet(_path(ctx, "fleet", "fleet.yml"))
    return [*fleet.groups, *(host for group in fleet.groups.values() for host in group.hosts)]


@_quietly
def profiles(ctx: click.Context) -> Iterable[str]:
    """Return the shipped profiles, and those in ./profiles."""
    from gpuprov.model.profile import profile_paths

    return sorted(profile_paths([Path("profiles")]))


@_quietly
def components(ctx: click.Context) -> Iterable[str]:
    """Return the components that a lock can move."""
    from gpuprov.model.components import MOVABLE

    return MOVABLE


@_quietly
def systems(ctx: click.Context) -> Iterable[str]:
    """Return the systems of the catalog."""
    from gpuprov.catalog import load

    return load().systems


@_quietly
def gpus(ctx: click.Context) -> Iterable[str]:
    """Return the GPUs of the catalog."""
    from gpuprov.catalog import load

    return [gpu.id for gpu in load().gpus]


@_quietly
def tables(ctx: click.Context) -> Iterable[str]:
    """Return the tables of the catalog, and `show`."""
    from gpuprov.catalog.browse import TABLES

    return ["show", *TABLES]


@_quietly
def roles(ctx: click.Context) -> Iterable[str]:
    """Return the roles that change a node."""
    from gpuprov.roles import ROLES

    return [role.name for role in ROLES if role.variables]


@_quietly
def runs(ctx: click.Context) -> Iterable[str]:
    """Return `latest`, and the ids of the last 50 recorded runs."""
    from gpuprov.history import History

    with History() as history:
        return ["latest", *(line.id for line in history.lines(last=50))]


def _path(ctx: click.Context, name: str, usual: str) -> Path:
    """Return the path in a parameter of the command line, or the usual one if it is not given."""
    stated: Any = ctx.params.get(name)
    return Path(stated) if stated else Path(usual)

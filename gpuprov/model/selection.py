"""Selection of nodes of a lock, and of the file with their host keys."""

from __future__ import annotations

from collections.abc import Iterable

from gpuprov.errors import InvalidInput
from gpuprov.model.connection import Connection, lay_over
from gpuprov.model.lock import Lock, LockedGroup
from gpuprov.model.nodeset import expand
from gpuprov.model.stack import IMAGE


def narrowed(lock: Lock, limit: str | Iterable[str]) -> Lock:
    """Return the lock with only the hosts of `limit`, names or a node set; all if it is empty.

    Groups without remaining hosts are removed.

    Raises:
        InvalidInput: not a node set, or a name that the lock does not have.
    """
    try:
        names = set(expand(limit) if isinstance(limit, str) and limit else limit)
    except ValueError as error:
        raise InvalidInput(f"not a set of nodes: {limit!r}", expected=str(error)) from None
    if not names:
        return lock
    if unknown := names - set(lock.hosts()):
        raise InvalidInput(f"the lock has no node {', '.join(sorted(unknown))}")
    groups = {name: group.of_hosts(names) for name, group in lock.groups.items()}
    kept = {name: group for name, group in groups.items() if group.hosts}
    return lock.model_copy(update={"groups": kept}).with_places_of(names)


def for_worker(lock: Lock, names: Iterable[str]) -> Lock:
    """Return the lock with only these hosts for a worker of their site, which learns nothing of other sites.

    See `without_site`. Builders are named only in a group that has them: a worker only has to know which of
    its nodes may compile.
    """
    own = without_site(narrowed(lock, names))
    return own.model_copy(update={"groups": {name: _own_builders(each) for name, each in own.groups.items()}})


def _own_builders(group: LockedGroup) -> LockedGroup:
    """Return the group with only those builders that it has; `IMAGE`, which is no host, in place of none."""
    driver = group.components.driver
    if driver.builder is None:
        return group
    here = [name for name in driver.builders if name in group.hosts]
    own = {"builder": here if len(here) > 1 else (here or [IMAGE])[0], "builder_reason": None}
    driver = driver.model_copy(update=own)
    return group.model_copy(update={"components": group.components.model_copy(update={"driver": driver})})


def without_site(lock: Lock) -> Lock:
    """Return the lock without what it states about the whole site.

    Places have names of all nodes, `controllers` the addresses of all services, and hooks of the rollout,
    which the controller runs, can contain a secret.
    """
    of_all = dict.fromkeys(("rollout", "controllers", "racks", "nvlink_domains"))
    return lock.model_copy(update=of_all)


def with_known_hosts(lock: Lock, known_hosts: str) -> Lock:
    """Return the lock with another known-hosts file for all of its hosts."""
    over = Connection(known_hosts=known_hosts)
    groups = {
        name: group.model_copy(
            update={"connections": {host: lay_over(group.connection_of(host), over) for host in group.hosts}}
        )
        for name, group in lock.groups.items()
    }
    return lock.model_copy(update={"groups": groups})

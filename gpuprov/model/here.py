"""A lock on the machine that gpuprov itself runs on: which of its nodes that is."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from gpuprov.errors import InvalidInput
from gpuprov.model.connection import LOCAL
from gpuprov.model.lock import Lock


def the_node(lock: Lock, names: Sequence[str], *, stated: bool) -> str:
    """The node of a lock that this machine is.

    Args:
        names: those that come into question.
        stated: whether a person named them.

    Raises:
        InvalidInput: it cannot be told which.
    """
    own = os.uname().nodename
    hosts = lock.hosts()
    ways: list[Callable[[str], bool]] = [lambda name: stated or len(names) == 1]
    ways += [lambda name: hosts[name].hosts[name] == LOCAL, lambda name: name in (own, own.partition(".")[0])]
    for fits in ways:
        found = [name for name in names if fits(name)]
        if len(found) == 1:
            return found[0]
    raise InvalidInput(f"this machine is one node, not {len(names)}", do="name one node of the lock")


def with_here(lock: Lock, node: str) -> Lock:
    """The lock, with this machine in place of one node."""
    groups = {
        name: group.model_copy(update={"hosts": {**group.hosts, node: LOCAL}})
        if node in group.hosts
        else group
        for name, group in lock.groups.items()
    }
    return lock.model_copy(update={"groups": groups})


def as_stated(lock: Lock, before: Lock) -> Lock:
    """The lock with the addresses of nodes that this machine took the place of, as another lock has them."""
    known = {name: group.hosts[name] for name, group in before.hosts().items()}
    groups = dict(lock.groups)
    for name, group in lock.groups.items():
        hosts = {
            host: known.get(host, address) if address == LOCAL else address
            for host, address in group.hosts.items()
        }
        if hosts != group.hosts:
            groups[name] = group.model_copy(update={"hosts": hosts})
    return lock.model_copy(update={"groups": groups})

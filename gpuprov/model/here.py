"""A lock's node on the machine that gpuprov itself runs on."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from gpuprov.errors import InvalidInput
from gpuprov.model.connection import LOCAL
from gpuprov.model.lock import Lock


def the_node(lock: Lock, names: Sequence[str], *, stated: bool) -> str:
    """Return the name of the node that this machine is.

    The first of these rules that fits exactly one candidate decides: the user named it, or it is the only
    one; its address is `local`; it has this machine's host name, with or without domain.

    Args:
        names: candidates.
        stated: whether the user named them.

    Raises:
        InvalidInput: it is ambiguous.
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
    """Return the lock with this machine in place of one node: the node's address becomes `local`."""
    groups = {
        name: group.model_copy(update={"hosts": {**group.hosts, node: LOCAL}})
        if node in group.hosts
        else group
        for name, group in lock.groups.items()
    }
    return lock.model_copy(update={"groups": groups})


def as_stated(lock: Lock, before: Lock) -> Lock:
    """Return the lock with addresses from `before` for nodes whose address is `local`: undo `with_here`."""
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

"""Communicators of a log: ranks of one communicator, gathered from lines of many processes.

Since 2.15 a communicator has an id that all its ranks log. Before, a rank logs only a pointer of its process,
and ranks are matched by the order in which they join communicators of one size.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gpuprov.nccl.lines import Member

Process = tuple[str | None, int | None]
COMMUNICATORS = 4096
"""Maximum number of communicators of a log; further ones are ignored. A job has a few for each of its ranks.
"""
MEMBERS = 1 << 20
"""Maximum number of members of all communicators of a log; further ones are ignored."""
LATEST = 64
"""Maximum number of a process's communicators with one rank in which a peer is looked up: the latest."""


@dataclass
class Communicator:
    """One communicator, gathered from the lines of its ranks."""

    comm_id: str | None
    nranks: int
    hosts: dict[int, str | None] = field(default_factory=dict)
    complete: set[int] = field(default_factory=set)
    layout: tuple[int, int] | None = None
    key: str | tuple[int, int] = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data: `nodes` and `local_ranks` are NCCL's own count, `waiting` ranks never became
        ready.
        """
        nodes, local_ranks = self.layout or (None, None)
        return {
            "id": self.comm_id,
            "nranks": self.nranks,
            "ranks_seen": len(self.hosts),
            "ranks_complete": len(self.complete),
            "waiting": sorted(set(self.hosts) - self.complete),
            "nodes": nodes,
            "local_ranks": local_ranks,
            "hosts": sorted({host for host in self.hosts.values() if host}),
        }


class _Nameless:
    """Communicators of one size without an id, numbered in their order."""

    def __init__(self) -> None:
        self._found: list[Communicator] = []
        self._following = [0]
        """Number → itself, or a later one if the communicator got an id; the last one is not yet used."""
        self._reached: dict[int, int] = {}

    def next_of(self, rank: int) -> tuple[int, Communicator | None]:
        """Return the first communicator that a rank has not joined yet, with its number.

        None without one: a new one gets this number. A rank's search continues where the last one ended.
        """
        at = self._from(self._reached.get(rank, 0))
        while at < len(self._found) and rank in self._found[at].hosts:
            at = self._from(at + 1)
        self._reached[rank] = at
        return at, self._found[at] if at < len(self._found) else None

    def add(self, communicator: Communicator) -> None:
        """Add a communicator with the next number."""
        self._found.append(communicator)
        self._following.append(len(self._found))

    def remove(self, number: int) -> None:
        """Remove a communicator that got an id; the other numbers stay the same."""
        self._following[number] = number + 1

    def _from(self, number: int) -> int:
        """Return the first number from this one on that was not removed, and shorten the way to it."""
        way = self._following
        while way[number] != number:
            way[number] = way[way[number]]
            number = way[number]
        return number


class Communicators:
    """All communicators of a log, in the order in which they appear; at most `COMMUNICATORS`."""

    def __init__(self) -> None:
        self._known: dict[str | tuple[int, int], Communicator] = {}
        self._nameless: dict[int, _Nameless] = defaultdict(_Nameless)
        self._members = 0
        self._pointers: dict[tuple[Process, str], Communicator] = {}
        self._memberships: dict[tuple[Process, int], deque[Communicator]] = defaultdict(
            partial(deque, maxlen=LATEST)
        )

    def __iter__(self) -> Iterator[Communicator]:
        return iter(self._known.values())

    def hear(self, process: Process, member: Member) -> None:
        """Add a process's line about a communicator to which it belongs; after `gone` its pointer may mean
        another one.
        """
        communicator = self._of(process, member)
        if communicator is None:
            return
        if member.rank not in communicator.hosts:
            communicator.hosts[member.rank] = process[0]
            self._memberships[process, member.rank].append(communicator)
        communicator.layout = member.layout or communicator.layout
        if member.stage in ("complete", "gone"):
            communicator.complete.add(member.rank)
        if member.stage == "gone":
            self._pointers.pop((process, member.pointer), None)

    def place(self, hosts: Sequence[str]) -> None:
        """Set the hosts of all ranks of the communicators with as many ranks, where the log has not all."""
        for comm in self:
            if comm.nranks == len(hosts):
                comm.hosts = dict(enumerate(hosts))

    @property
    def largest(self) -> Communicator | None:
        """Return the communicator with most ranks: the job itself, not a group in it; None without any."""
        return max(self, key=lambda comm: comm.nranks, default=None)

    def same_node(self, process: Process, own: int, peer: int) -> bool | None:
        """Return whether `peer` runs on the node of this process, rank `own`; None if the log does not show
        it.

        A process may have the same rank in several communicators: the last one that knows the peer counts.
        """
        for comm in reversed(self._memberships.get((process, own), ())):
            other = comm.hosts.get(peer)
            if other is not None and process[0] is not None:
                return other == process[0] or (comm.layout is not None and comm.layout[0] == 1)
        return None

    def _of(self, process: Process, member: Member) -> Communicator | None:
        """Return the communicator of a member; create it if it is new.

        None if there are `COMMUNICATORS` others, or `MEMBERS` other members.
        """
        place = (process, member.pointer)
        known = self._pointers.get(place)
        if known is None or member.rank not in known.hosts:
            self._members += 1
            if self._members > MEMBERS:
                return None
        if known is None or (member.comm_id and known.comm_id not in (None, member.comm_id)):
            known = self._named(member, member.comm_id) if member.comm_id else self._unnamed(member)
        elif member.comm_id and known.comm_id is None:
            known = self._identified(known, member.comm_id)
        if known is not None:
            self._pointers[place] = known
        return known

    def _named(self, member: Member, comm_id: str) -> Communicator | None:
        """Return the communicator with an id; create it if it is new. None as `_created`."""
        known = self._known.get(comm_id)
        return known or self._created(Communicator(comm_id, member.nranks, key=comm_id))

    def _unnamed(self, member: Member) -> Communicator | None:
        """Return the first communicator of this size without an id that lacks the rank, or a new one. None as
        `_created`.
        """
        alike = self._nameless[member.nranks]
        number, known = alike.next_of(member.rank)
        if known is not None:
            return known
        new = self._created(Communicator(None, member.nranks, key=(member.nranks, number)))
        if new is not None:
            alike.add(new)
        return new

    def _created(self, new: Communicator) -> Communicator | None:
        """Register a new communicator under its key; None if there are `COMMUNICATORS` others."""
        if len(self._known) >= COMMUNICATORS:
            return None
        self._known[new.key] = new
        return new

    def _identified(self, known: Communicator, comm_id: str) -> Communicator:
        """Register a communicator under its id, which its first lines lacked; merge it with one already
        there.
        """
        del self._known[known.key]
        if isinstance(known.key, tuple):
            self._nameless[known.nranks].remove(known.key[1])
        other = self._known.setdefault(comm_id, known)
        known.comm_id = known.key = comm_id
        if other is not known:
            other.hosts.update(known.hosts)
            other.complete |= known.complete
            known.hosts, known.complete = other.hosts, other.complete
        return other

"""Communicators of a log: ranks of one communicator, gathered from lines of many processes.

Since 2.15 a communicator has an id that all its ranks log. Before, a rank logs only a pointer of its process,
and ranks are matched by the order in which they join communicators of one size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpuprov.nccl.lines import Member

Process = tuple[str | None, int | None]


@dataclass
class Communicator:
    """One communicator, gathered from the lines of its ranks."""

    comm_id: str | None
    nranks: int
    hosts: dict[int, str | None] = field(default_factory=dict)
    complete: set[int] = field(default_factory=set)
    layout: tuple[int, int] | None = None

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


class Communicators:
    """All communicators of a log, in the order in which they appear."""

    def __init__(self) -> None:
        self._known: dict[str | tuple[int, int], Communicator] = {}
        self._pointers: dict[tuple[Process, str], Communicator] = {}
        self._memberships: dict[Process, list[tuple[Communicator, int]]] = defaultdict(list)

    def __iter__(self) -> Iterator[Communicator]:
        return iter(self._known.values())

    def hear(self, process: Process, member: Member) -> None:
        """Add a process's line about a communicator to which it belongs; after `gone` its pointer may mean
        another one.
        """
        communicator = self._of(process, member)
        if member.rank not in communicator.hosts:
            communicator.hosts[member.rank] = process[0]
            self._memberships[process].append((communicator, member.rank))
        communicator.layout = member.layout or communicator.layout
        if member.stage in ("complete", "gone"):
            communicator.complete.add(member.rank)
        if member.stage == "gone":
            self._pointers.pop((process, member.pointer), None)

    @property
    def largest(self) -> Communicator | None:
        """Return the communicator with most ranks: the job itself, not a group within it."""
        return max(self, key=lambda comm: comm.nranks, default=None)

    def same_node(self, process: Process, own: int, peer: int) -> bool | None:
        """Return whether `peer` runs on the node of this process, rank `own`; None if the log does not show
        it.

        A process may have the same rank in several communicators: the last one that knows the peer counts.
        """
        for comm, rank in reversed(self._memberships[process]):
            other = comm.hosts.get(peer)
            if rank == own and other is not None and process[0] is not None:
                return other == process[0] or (comm.layout is not None and comm.layout[0] == 1)
        return None

    def _of(self, process: Process, member: Member) -> Communicator:
        """Return the communicator of a member; create it if it is new."""
        place = (process, member.pointer)
        known = self._pointers.get(place)
        if known is None or (member.comm_id and known.comm_id not in (None, member.comm_id)):
            key = member.comm_id or self._next_without(member)
            known = self._known.setdefault(key, Communicator(member.comm_id, member.nranks))
        elif member.comm_id and known.comm_id is None:
            known = self._identified(known, member.comm_id)
        self._pointers[place] = known
        return known

    def _next_without(self, member: Member) -> tuple[int, int]:
        """Return the key of the first communicator of this size that the rank has not joined yet."""
        order = 0
        while (known := self._known.get((member.nranks, order))) and member.rank in known.hosts:
            order += 1
        return (member.nranks, order)

    def _identified(self, known: Communicator, comm_id: str) -> Communicator:
        """Register a communicator under its id, which its first lines lacked; merge it with one already
        there.
        """
        self._known = {key: comm for key, comm in self._known.items() if comm is not known}
        other = self._known.setdefault(comm_id, known)
        known.comm_id = comm_id
        if other is not known:
            other.hosts.update(known.hosts)
            other.complete |= known.complete
            known.hosts, known.complete = other.hosts, other.complete
        return other

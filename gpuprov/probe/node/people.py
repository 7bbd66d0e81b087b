"""Shares of a node's users: none hides what is another's by the number, size or slowness of their own."""

import bisect
import heapq
import json
import re
import threading
import time

from gpuprov.probe.node.base import blot_value, read_or_none

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, TypeVar

    from gpuprov.probe.node.base import Values

    Answer = TypeVar("Answer")
    Costly = Iterator[tuple[float, list[Any]]]

SUBORDINATE = "/etc/subuid"
OF_MANY = ("root", "containers", "dockremap", "kubelet", "lxd")
"""Names in subuid(5) whose ranges are for containers of many users."""
CONTAINER = re.compile(
    r"(?m)^\d+:[^:\n]*:("
    r"/(?:lxc\.payload[^/\n]*|(?:lxc|machine\.slice)/[^/\n]+)"
    r"|(?!/user\.slice/)(?:/(?![^/\n]+\.(?:service|scope)/)[^/\n]+)*?"
    r"/[^/\n]*(?:pod[0-9a-f_-]{32}|[0-9a-f]{64})[^/\n]*)"
)
"""Control group of a pod, or of a container by its id or its folder, in /proc/PID/cgroup.

Only what root's programs name counts: a container, a service and a user's session can have groups below
their own.
"""
VARIABLES_AT_MOST = 256
VARIABLE_LIMIT = 300
"""Maximum number of characters of a variable's name, and of its value."""
ENVIRONMENT_LIMIT = 65536
"""Bytes of a program's variables that are read: a user chooses their number and length."""
ANSWER_S = 0.01
"""Seconds for the kernel to answer about a process, which needs microseconds; only more counts as waiting."""
WAIT_S = 2.0
"""Seconds of waiting for all users of a node together in a collector; each has an eighth of what is left."""
ROW_S = 0.02
"""Processor seconds for one row, which needs a tenth of them; one that takes more counts as several."""


class People:
    """The users of a node's processes, as one collector asks about them.

    A container that root's programs have started is a user of its own, with all its numbers: it can choose
    any of them. So are all the numbers that a user has for own containers.
    """

    def __init__(self) -> None:
        """Read the ranges of numbers; nothing was asked."""
        self._ranges = _ranges()
        self._left = WAIT_S
        self._patience = {}  # type: dict[str, float]

    def owner(self, pid: str) -> str:
        """Return a process's user: number, name, or a container's control group; "-1" if it has ended."""
        folder = "/proc/" + pid
        container = CONTAINER.search(read_or_none(folder + "/cgroup") or "")
        if container:
            return container.group(1)
        uid = word_of(read_or_none(folder + "/status") or "", "Uid") or "-1"
        first, end, name = self._ranges[bisect.bisect(self._ranges, (int(uid), 1 << 40)) - 1]
        return name if first <= int(uid) < end else uid

    def ask(self, pid: str, question: "Callable[..., Answer]", *about: "Any") -> "Answer | None":
        """Return the answer of a function about a process, which raises nothing; None if its user keeps it
        from answering.

        It may wait for what a user can keep: a lock of the process's memory, as for environ and io in /proc,
        or a program on a file system that does not answer, as their own (FUSE). No process of a user who has
        given no answer is asked about again.
        """
        owner, answers = self.owner(pid), []  # type: str, list[Answer]
        patience = self._patience.setdefault(owner, max(0.0, self._left) / 8)
        if patience >= 0:
            begun = time.monotonic()
            thread = threading.Thread(target=lambda: answers.append(question(*about)), daemon=True)
            thread.start()
            thread.join(ANSWER_S + patience)
            waited = max(0.0, time.monotonic() - begun - ANSWER_S)
            self._left -= waited
            self._patience[owner] = max(0.0, patience - waited) if answers else -1
        return answers[0] if answers else None

    def read(self, pid: str, name: str, limit: int) -> "str | None":
        """Return the text of a file of a process in /proc, "" if it is not readable; None if its user keeps
        it from being read.
        """
        return self.ask(pid, lambda: read_or_none("/proc/" + pid + "/" + name, limit) or "")

    def rows(
        self, pids: "Iterable[str]", row: "Callable[[str], Any]", most: int, least: int = 4096
    ) -> "list[Any]":
        """Return at most `most` rows of processes, whose users take turns by the cost of their rows.

        The cost is the size, or the processor time in units of `ROW_S`.

        Args:
            row: returns the row of a process, given its number.
            least: bytes as which a smaller row counts; all together cost at most as much as `most` such
                rows.
        """
        shares = {}  # type: dict[str, list[str]]
        for pid in sorted(pids, key=int):
            shares.setdefault(self.owner(pid), []).append(pid)

        def costly(pids: "list[str]") -> "Costly":
            for pid in pids:
                begun = time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID)
                value = row(pid)
                took = time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID) - begun
                yield max(len(json.dumps(value)), least, least * took / ROW_S), [value]

        return in_turn(map(costly, shares.values()), most * least)[0]


def in_turn(sources: "Iterable[Costly]", limit: float) -> "tuple[list[Any], bool]":
    """Return the values of several sources until all together have cost `limit`, and whether these are all.

    The next values are always those of the source that has cost least.

    Args:
        sources: each yields a cost and a list of values.
    """
    found = []  # type: list[Any]
    turns = [(0.0, place, source) for place, source in enumerate(sources)]
    while turns and limit > 0:
        cost, place, source = turns[0]
        more, values = next(source, (None, found))
        if more is None:
            heapq.heappop(turns)
        else:
            heapq.heapreplace(turns, (cost + more, place, source))
            limit -= more
            found.extend(values)
    return found, not turns


def _ranges() -> "list[tuple[int, int, str]]":
    """Return begin and end of the ranges of further numbers that users have for their containers, with the
    users' names, sorted; at least one.
    """
    text = read_or_none(SUBORDINATE) or ""
    rows = re.findall(r"(?m)^([^:\n]+):(\d{1,10}):(\d{1,10})$", text)
    found = [(int(first), int(first) + int(count), name) for name, first, count in rows]
    return sorted([(0, 0, ""), *(row for row in found if row[2] not in OF_MANY)])


def word_of(status: str, name: str) -> "str | None":
    """Return the first word after `name:` in /proc/PID/status, or None."""
    found = re.search(rf"(?m)^{name}:\s*(\S+)", status)
    return found.group(1) if found else None


def variables_of(pid: str, wanted: "re.Pattern[str]", people: People) -> "Values | None":
    """Return those of a process's variables whose name matches, each cut, and secrets hidden; None if its
    user keeps them from being read.
    """
    found, text = {}, people.read(pid, "environ", ENVIRONMENT_LIMIT)  # type: Values, str | None
    if text is None:
        return None
    for entry in text.split("\0"):
        name, equals, value = entry.partition("=")
        fits = equals and len(name) <= VARIABLE_LIMIT
        if fits and len(found) < VARIABLES_AT_MOST and wanted.match(name):
            found[name] = blot_value(value[:VARIABLE_LIMIT], name)[:VARIABLE_LIMIT]
    return found

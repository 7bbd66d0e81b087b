"""Shares of a node's users: none hides what is another's by the number, size or slowness of their own."""

import bisect
import heapq
import json
import re
import threading

from gpuprov.probe.node.base import blot_value, read_or_none

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from gpuprov.probe.node.base import Values

    Costly = Iterator[tuple[float, list[Any]]]

SUBORDINATE = "/etc/subuid"
OF_MANY = ("root", "containers", "dockremap", "kubelet", "lxd")
"""Names in subuid(5) whose ranges are for containers of many users."""
VARIABLES_AT_MOST = 256
VARIABLE_LIMIT = 300
"""Maximum number of characters of a variable."""
ENVIRONMENT_LIMIT = 65536
"""Bytes of a program's variables that are read: a user chooses their number and length."""
ANSWER_S = 0.5
"""Seconds for the kernel to answer about a process; it needs microseconds."""


class Patience:
    """Questions about the processes of one user that wait for what the user can keep: a lock of their memory,
    as for environ and io in /proc, or a program on a file system that does not answer, as their own (FUSE).

    After the first one that is not answered in time, none is asked.
    """

    def __init__(self) -> None:
        """Begin with a user of whom nothing was asked."""
        self._is_over = False

    def ask(self, question: "Callable[..., Any]", *about: "Any") -> "Any":
        """Return the answer of a function, which raises nothing; None if the user keeps it from answering."""
        answers = []  # type: list[Any]
        if not self._is_over:
            thread = threading.Thread(target=lambda: answers.append(question(*about)), daemon=True)
            thread.start()
            thread.join(ANSWER_S)
            self._is_over = not answers
        return None if self._is_over else answers[0]

    def read(self, path: str, limit: int) -> "str | None":
        """Return the text of a file, "" if it is not readable; None if the user keeps it from being read."""
        text = self.ask(lambda: read_or_none(path, limit) or "")
        return text if isinstance(text, str) else None


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


def rows_of(
    pids: "Iterable[str]", row: "Callable[[str, Patience], Any]", most: int, least: int = 4096
) -> "list[Any]":
    """Return at most `most` rows of processes, whose users take turns by the size of their rows.

    Args:
        row: returns the row of a process, given its number and the patience with its user.
        least: bytes as which a smaller row counts; all together have at most the size of `most` such rows.
    """
    ranges, shares = _ranges(), {}  # type: list[tuple[int, int, str]], dict[str, list[str]]
    for pid in sorted(pids, key=int):
        uid = word_of(read_or_none("/proc/" + pid + "/status") or "", "Uid") or "-1"
        first, end, name = ranges[bisect.bisect(ranges, (int(uid), 1 << 40)) - 1]
        shares.setdefault(name if first <= int(uid) < end else uid, []).append(pid)

    def rows(pids: "list[str]") -> "Costly":
        patience = Patience()
        for value in (row(pid, patience) for pid in pids):
            yield max(len(json.dumps(value)), least), [value]

    return in_turn(map(rows, shares.values()), most * least)[0]


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


def variables_of(pid: str, wanted: "re.Pattern[str]", patience: Patience) -> "Values | None":
    """Return those of a process's variables whose name matches, each cut, and secrets hidden; None if its
    user keeps them from being read.
    """
    found, text = {}, patience.read("/proc/" + pid + "/environ", ENVIRONMENT_LIMIT)  # type: Values, str | None
    if text is None:
        return None
    for entry in text.split("\0"):
        name, equals, value = entry.partition("=")
        if equals and len(found) < VARIABLES_AT_MOST and wanted.match(name):
            found[name] = blot_value(value[:VARIABLE_LIMIT], name)[:VARIABLE_LIMIT]
    return found

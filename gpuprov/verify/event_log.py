"""Events of a pytest run, one JSON object a line, so that an aborted run keeps its results.

`{"node", "plan": [check…]}` when a node's tests are known, one `{"node", …CheckResult}` per test, and
`{"node", "lost": status, "message"}` for a node that cannot be judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpuprov.errors import GpuprovError, Unreachable
from gpuprov.untrusted import json_line
from gpuprov.untrusted.parsing import without_surrogates
from gpuprov.verify.verdict import CheckResult, NodeVerdict


class EventLog:
    """Writer of events to a file, which is replaced; without a path all events are discarded."""

    def __init__(self, path: Path | None) -> None:
        self._file = path.open("w", buffering=1, encoding="utf-8") if path else None

    def plan(self, node: str, checks: list[str]) -> None:
        """Write the ids of the checks that will run on a node, in order; there may be none."""
        self._write({"node": node, "plan": checks})

    def result(self, node: str, result: CheckResult) -> None:
        """Write the result of one check of a node."""
        self._write({"node": node} | asdict(result))

    def lost(self, node: str, error: GpuprovError) -> None:
        """Write why a node cannot be judged (any further), with status `unreachable` or `error`."""
        status = "unreachable" if isinstance(error, Unreachable) else "error"
        self._write({"node": node, "lost": status, "message": str(error)})

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file:
            self._file.close()

    def _write(self, entry: dict[str, Any]) -> None:
        """Write one event as a line of JSON, which is in the file at once."""
        if self._file:
            self._file.write(json_line(entry) + "\n")


@dataclass
class _NodeEvents:
    """The events of one node: its plan, the status and message with which it was lost, its results."""

    plan: list[str] | None = None
    lost: tuple[Any, str] | None = None
    results: list[CheckResult] = field(default_factory=list)

    def verdict(self, name: str, cut_short: str) -> NodeVerdict:
        """Return the node's verdict.

        The status of a lost node takes precedence. A node without a plan, or with fewer results than planned,
        has an error with the message `cut_short`; results so far are kept.
        """
        if self.lost:
            return NodeVerdict(name, self.lost[0], self.results, self.lost[1])
        if self.plan is None or len(self.results) < len(self.plan):
            return NodeVerdict(name, "error", self.results, cut_short)
        failed = any(result.status == "failed" for result in self.results)
        return NodeVerdict(name, "failed" if failed else "passed", self.results)


def read_events(path: Path, names: Iterable[str], cut_short: str) -> list[NodeVerdict]:
    """Return the verdicts of the nodes, in the order of `names`, from the file of an `EventLog`.

    Args:
        path: the file; if it does not exist, every node has an error.
        names: all nodes that have events, and others.
        cut_short: message for a node with incomplete events.
    """
    known = {name: _NodeEvents() for name in names}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        _note(known, without_surrogates(json.loads(line)))
    return [node.verdict(name, cut_short) for name, node in known.items()]


def _note(known: dict[str, _NodeEvents], entry: dict[str, Any]) -> None:
    """Add one event to those of its node, which must be known."""
    node = known[entry.pop("node")]
    if "plan" in entry:
        node.plan = entry["plan"]
    elif "lost" in entry:
        node.lost = (entry["lost"], entry["message"])
    else:
        node.results.append(CheckResult(**entry))

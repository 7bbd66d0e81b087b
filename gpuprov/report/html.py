"""A run as one self-contained HTML file: a heat map of nodes and checks, and each node's details."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

from gpuprov.drift.judge import Difference, NodeDrift, Status
from gpuprov.drift.text import value
from gpuprov.history import Run
from gpuprov.model.documents import write_text
from gpuprov.model.nodeset import fold
from gpuprov.report.pages import page_template
from gpuprov.report.text import note_lines
from gpuprov.untrusted import json_text

ROWS_OF_ONE_NODE = 200
"""Most nodes with a row each; with more, nodes with equal results share a row."""


@dataclass(frozen=True)
class Cell:
    """One check on one row. `kind` is a class of the style sheet, `mark` a symbol independent of colour."""

    kind: str
    mark: str
    title: str


@dataclass(frozen=True)
class Row:
    """One node, or several with equal results."""

    label: str
    count: int
    group: str
    node: NodeDrift
    cells: list[Cell]


HOLDS = Cell("holds", "", "matches the lock")
OTHER_GROUP = Cell("none", "", "not stated for this group")
NO_ANSWER = Cell("lost", "", "the node did not answer")


def write_html(run: Run, path: Path) -> None:
    """Write the report of a run.

    Raises:
        InvalidInput: the file cannot be written.
    """
    write_text(path, render(run))


def render(run: Run) -> str:
    """Return the HTML of a run."""
    template = page_template("run.html.j2", words=value, json=partial(json_text, indent=None))
    checks = list(dict.fromkeys(check for group in run.groups.values() for check in group.checks))
    counts = Counter(node.status for node in run.nodes)
    return template.render(
        run=run,
        checks=checks,
        rows=list(_rows(run, checks)),
        found=_found(run.nodes),
        notes=[line.partition(" note: ")[::2] for line in note_lines(run.notes)],
        counts={status: counts[status] for status in get_args(Status)},
    )


def _rows(run: Run, checks: list[str]) -> Iterator[Row]:
    """Yield the rows of the heat map, group by group.

    In a run with more than `ROWS_OF_ONE_NODE` nodes, equal ones of a group share a row.
    """
    seen = {node.name: node for node in run.nodes}
    for name, group in run.groups.items():
        alike: dict[object, list[NodeDrift]] = defaultdict(list)
        for node in (seen[each] for each in group.nodes if each in seen):
            story = (node.status, node.reason, repr(node.drift))
            alike[story if len(seen) > ROWS_OF_ONE_NODE else node.name].append(node)
        for nodes in alike.values():
            cells = _cells(nodes[0], checks, group.checks)
            yield Row(fold(node.name for node in nodes), len(nodes), name, nodes[0], cells)


def _cells(node: NodeDrift, checks: list[str], stated: tuple[str, ...]) -> list[Cell]:
    """Return a node's cell for each check; without facts, `NO_ANSWER` for the checks of its group
    (`stated`).
    """
    if node.reason is not None:
        return [NO_ANSWER if check in stated else OTHER_GROUP for check in checks]
    found = {each.check: _differs(each) for each in node.drift}
    return [found.get(check, HOLDS if check in stated else OTHER_GROUP) for check in checks]


def _differs(each: Difference) -> Cell:
    """Return the cell of a difference: an unknown value, a warning, or an error."""
    title = f"expected {value(each.expected)}, is {value(each.actual)}"
    if str(each.actual).startswith("unknown: "):
        return Cell("unknown", "?", title)
    return Cell("warning", "!", title) if each.severity == "warning" else Cell("differs", "\u2715", title)


def _found(nodes: Iterable[NodeDrift]) -> list[tuple[str, Difference]]:
    """Return each difference once, with its nodes; the most common first."""
    where: dict[str, list[str]] = defaultdict(list)
    what: dict[str, Difference] = {}
    for node in nodes:
        for each in node.drift:
            where[repr(each)].append(node.name)
            what[repr(each)] = each
    common = sorted(where, key=lambda key: -len(where[key]))
    return [(fold(where[key]), what[key]) for key in common]

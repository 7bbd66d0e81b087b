"""A run as one self-contained HTML file: a heat map of nodes and checks, and each node's details."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import get_args

from gpuprov.drift.judge import Difference, NodeDrift, Status
from gpuprov.drift.text import value
from gpuprov.history import Run
from gpuprov.model.documents import write_text
from gpuprov.model.nodeset import fold
from gpuprov.report.limits import DIFFERENCES, limited
from gpuprov.report.pages import page_template
from gpuprov.report.text import note_lines
from gpuprov.roles.causes import causes
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
class Cause:
    """Differences of the same nodes with the same remedy.

    Attributes:
        nodes: folded names.
        count: number of nodes.
        role: the role that corrects them, `reboot`, or None if neither does.
        mend: the line to type.
    """

    nodes: str
    count: int
    role: str | None
    differences: list[Difference]
    mend: str


@dataclass(frozen=True)
class Row:
    """One node, or several with equal results; `more` is the number of differences that are not shown."""

    label: str
    count: int
    group: str
    node: NodeDrift
    cells: list[Cell]
    more: int = 0


HOLDS = Cell("holds", "", "matches the lock")
OTHER_GROUP = Cell("none", "", "not stated for this group")
NO_ANSWER = Cell("lost", "", "the node did not answer")
EVEN = {each.kind for each in (HOLDS, OTHER_GROUP, NO_ANSWER)}
"""Kinds of cells that state nothing about a check; a narrow screen shows no column with only these."""


def write_html(run: Run, path: Path) -> None:
    """Write the report of a run.

    Raises:
        InvalidInput: the file cannot be written.
    """
    write_text(path, render(run))


def render(run: Run) -> str:
    """Return the HTML of a run: a headline, its causes, and a table of nodes and checks, of limited size for
    each node.
    """
    left_out = {
        node.name: len(node.drift) - DIFFERENCES for node in run.nodes if len(node.drift) > DIFFERENCES
    }
    run = replace(run, nodes=[limited(node) for node in run.nodes])
    template = page_template("run.html.j2", words=value, json=partial(json_text, indent=None))
    checks = list(dict.fromkeys(check for group in run.groups.values() for check in group.checks))
    counts = Counter(node.status for node in run.nodes)
    rows = list(_rows(run, checks, left_out))
    return template.render(
        run=run,
        checks=checks,
        rows=rows,
        even=[all(row.cells[n].kind in EVEN for row in rows) for n in range(len(checks))],
        headline=headline(run),
        causes=causes_of(run.nodes),
        notes=[line.partition(" note: ")[::2] for line in note_lines(run.notes)],
        counts={status: counts[status] for status in get_args(Status)},
    )


def _rows(run: Run, checks: list[str], left_out: Mapping[str, int]) -> Iterator[Row]:
    """Yield the rows of the heat map, group by group.

    In a run with more than `ROWS_OF_ONE_NODE` nodes, equal ones of a group share a row.

    Args:
        left_out: node → number of its differences that are not in the run.
    """
    seen = {node.name: node for node in run.nodes}
    for name, group in run.groups.items():
        alike: dict[object, list[NodeDrift]] = defaultdict(list)
        for node in (seen[each] for each in group.nodes if each in seen):
            story = (node.status, node.reason, repr(node.drift), left_out.get(node.name))
            alike[story if len(seen) > ROWS_OF_ONE_NODE else node.name].append(node)
        for nodes in alike.values():
            cells = _cells(nodes[0], checks, group.checks)
            more = left_out.get(nodes[0].name, 0)
            yield Row(fold(node.name for node in nodes), len(nodes), name, nodes[0], cells, more)


def _cells(node: NodeDrift, checks: list[str], stated: tuple[str, ...]) -> list[Cell]:
    """Return a node's cell for each check: its difference, else `HOLDS`; `OTHER_GROUP` for a check that is
    not `stated` for its group. Without facts, `NO_ANSWER` for the stated ones.
    """
    if node.reason is not None:
        return [NO_ANSWER if check in stated else OTHER_GROUP for check in checks]
    found = {each.check: _differs(each) for each in node.drift}
    return [found.get(check, HOLDS if check in stated else OTHER_GROUP) for check in checks]


def _differs(each: Difference) -> Cell:
    """Return the cell of a difference: an unknown value, a warning, or an error."""
    title = f"expected {value(each.expected)}, is {value(each.actual)}"
    if each.unread:
        return Cell("unknown", "?", title)
    return Cell("warning", "!", title) if each.severity == "warning" else Cell("differs", "\u2715", title)


def headline(run: Run) -> str:
    """Return the result in one sentence: `1 of 2 nodes differs, 1 did not answer`, or how many match."""
    total = len(run.nodes)
    differ = sum(node.status == "drifted" for node in run.nodes)
    silent = sum(node.reason is not None for node in run.nodes)
    nodes = f"{total} node{'s' * (total != 1)}"
    if differ:
        said = f"{differ} of {nodes} differ{'s' * (differ == 1)}"
    else:
        said = f"{total - silent} of {nodes} match{'es' * (total - silent == 1)}"
    return said + (f", {silent} did not answer" if silent else "")


def causes_of(nodes: Iterable[NodeDrift]) -> list[Cause]:
    """Return the differences grouped by nodes and remedy; the cause on most nodes first.

    A difference that another one of its node explains belongs to that one's group.
    """
    where: dict[str, list[str]] = defaultdict(list)
    what: dict[str, tuple[str | None, Difference]] = {}
    for node in nodes:
        for each, role in _remedies(node):
            where[repr((each, role))].append(node.name)
            what[repr((each, role))] = role, each
    grouped: dict[tuple[str, str | None], list[Difference]] = defaultdict(list)
    count: dict[str, int] = {}
    for key in sorted(where, key=lambda key: -len(where[key])):
        names, (role, each) = fold(where[key]), what[key]
        count[names] = len(where[key])
        grouped[names, role].append(each)
    return [
        Cause(names, count[names], role, found, _line(names, role, found))
        for (names, role), found in grouped.items()
    ]


def _remedies(node: NodeDrift) -> Iterator[tuple[Difference, str | None]]:
    """Yield each difference with the role that corrects it, `reboot`, or None; with the role of another one
    that explains it, if it only needs a reboot.
    """
    failed = [each.check for each in node.drift]
    roles = {each.check: each.role for each in node.drift}
    for each in node.drift:
        explained = causes(each.check, failed) if each.reboot else []
        role = each.role or ("reboot" if each.reboot else None)
        yield each, roles[explained[0]] if explained else role


def _line(names: str, role: str | None, found: Sequence[Difference]) -> str:
    """Return the line to type that corrects differences; without a role, the one that finds their cause."""
    nodes, failed = shlex.quote(names), [each.check for each in found]
    if role is None:
        return f"gpuprov doctor {nodes}"
    reboot = any(each.reboot and not causes(each.check, failed) for each in found)
    return f"gpuprov apply{' --reboot' if reboot else ''} -l {nodes}"

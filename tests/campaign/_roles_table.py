"""The table of roles, systems and columns: its cells and its output."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.campaign._roles_fleet import STACKS
from tests.campaign._roles_trials import COLUMNS, OWN_TESTS, TRIALS, WITHOUT, Trial, excuse
from tests.systems import DEBIAN, IMAGES, OF_DNF

SEEN, NOT_SHOWN = "seen", "not shown"
PLAYED_ONLY = (
    f"Nodes of {', '.join(OF_DNF)} are played ({', '.join(IMAGES[each] for each in OF_DNF)}): docs/proof.md"
    " has what they do not show. `tests/lab/test_rhel_9_chain.py` has all roles but containerd and imex on a"
    " fresh node of rhel9, their second run, an upgrade and its rollback; `tests/lab/test_played_releases.py`"
    " has a fresh node and a second run of the others."
)
OTHERS = f"{DEBIAN[0]} with the system's os-release, and an archive in its layout"
"""Nodes of systems without an image."""
BY_ROLE = {trial.role: trial for trial in TRIALS}
Cell = tuple[str, str, str]
"""Role, system, column."""


class Table:
    """Results by cell; the first complaint about a cell is kept."""

    def __init__(self, systems: list[str]) -> None:
        self.systems = systems
        self.cells: dict[Cell, str] = {}
        self.began = time.monotonic()
        for trial in TRIALS:
            for system in systems:
                excuses = {column: excuse(trial, system, column) for column in COLUMNS}
                self.cells |= {(trial.role, system, column): why for column, why in excuses.items() if why}

    def judge(self, column: str, complaints: Callable[[Trial, str], str]) -> None:
        """Fill a column: a cell without a complaint is `seen`; a cell with an earlier reason keeps it."""
        for trial in TRIALS:
            for system in (each for each in self.systems if not excuse(trial, each, column)):
                said = complaints(trial, system)
                before = self.cells.get((trial.role, system, column), SEEN)
                self.cells[trial.role, system, column] = before if before != SEEN else said or SEEN
                if said:
                    self.say(f"  BAD  {trial.role} on {system}, {column}: {said}")

    def bad(self) -> list[Cell]:
        """Return the cells that are neither seen nor excused."""
        moot = {why for trial in TRIALS for why in trial.moot.values()}
        moot |= {why for systems in WITHOUT.values() for why in systems.values()}
        return [cell for cell, said in self.cells.items() if said != SEEN and said not in moot]

    def join(self, path: Path) -> None:
        """Add a file's results for other systems, and write both to it."""
        rows = json.loads(path.read_text()) if path.exists() else []
        earlier = {(role, system, column): said for role, system, column, said in rows}
        self.cells = {
            cell: said for cell, said in earlier.items() if cell[1] not in self.systems
        } | self.cells
        self.systems = [each for each in STACKS if each in {system for _, system, _ in self.cells}]
        path.write_text(json.dumps([[*cell, said] for cell, said in self.cells.items()], indent=0) + "\n")

    def say(self, text: str) -> None:
        """Print a line with the time since the start."""
        print(f"{time.monotonic() - self.began:6.0f} s  {text}")


def lines(table: Table) -> Iterator[str]:
    """Yield the table for a terminal: on how many systems each cell was seen."""
    width = max(len(trial.role) for trial in TRIALS)
    yield f"{'':<{width}}  " + "  ".join(f"{column:<8}" for column in COLUMNS)
    for trial in TRIALS:
        yield f"{trial.role:<{width}}  " + "  ".join(f"{_cell(table, trial, each):<8}" for each in COLUMNS)


def _cell(table: Table, trial: Trial, column: str) -> str:
    """Return a cell of the table: the number of systems on which a column was seen, `-` if it is moot."""
    if column in trial.moot:
        return "-"
    if not any((trial.role, system, column) in table.cells for system in table.systems):
        return NOT_SHOWN
    systems = [
        system
        for system in table.systems
        if (trial.role, system, column) in table.cells and not excuse(trial, system, column)
    ]
    good = sum(table.cells[trial.role, system, column] == SEEN for system in systems)
    return f"{good} of {len(systems)}" if systems else "-"


def markdown(table: Table) -> Iterator[str]:
    """Yield the table for the documentation."""
    yield "# Test results of roles on lab nodes"
    yield ""
    yield "`scripts/campaign roles --markdown` generates this page. A cell is the number of systems on which"
    yield "the test passed, of those on which it ran."
    yield ""
    yield from _of_systems(table)
    yield ""
    yield "| role | " + " | ".join(COLUMNS) + " |"
    yield "|---" * (len(COLUMNS) + 1) + "|"
    for trial in TRIALS:
        yield f"| {trial.role} | " + " | ".join(_cell(table, trial, each) for each in COLUMNS) + " |"
    for role in OWN_TESTS:
        yield f"| {role} | " + " | ".join(NOT_SHOWN for _ in COLUMNS) + " |"
    yield ""
    yield from _notes(table)


def _of_systems(table: Table) -> Iterator[str]:
    """Yield a table of the systems: what their nodes are, and how many cells were seen there."""
    yield "| System | node | seen |"
    yield "|---|---|---|"
    for system in table.systems:
        tested = [
            said
            for (role, each, column), said in table.cells.items()
            if each == system and not excuse(BY_ROLE[role], system, column)
        ]
        kind = "Debian" if system in DEBIAN else f"played, `{IMAGES[system]}`" if system in IMAGES else OTHERS
        yield f"| {system} | {kind} | {tested.count(SEEN)} of {len(tested)} |"


def _without_results(table: Table) -> Iterator[str]:
    """Yield a line for each role that has no result on some system."""
    there = {(role, system) for role, system, _ in table.cells}
    for trial in TRIALS:
        without = [system for system in table.systems if (trial.role, system) not in there]
        if without == table.systems:
            yield f"- {trial.role} is {NOT_SHOWN}: this run has no result of it."
        elif without:
            yield f"- {trial.role} did not run on {', '.join(without)}."


def _notes(table: Table) -> Iterator[str]:
    """Yield the lines below the table: what the columns are, what has no test and why, what was not seen."""
    for column, means in COLUMNS.items():
        yield f"- **{column}**: {means}."
    for trial in TRIALS:
        for column, why in trial.moot.items():
            yield f"- {trial.role} has no test *{column}*: {why}."
    yield from _without_results(table)
    for role, test in OWN_TESTS.items():
        yield f"- {role} is {NOT_SHOWN} here: `{test}` tests it apart from the other roles."
    for role, systems in WITHOUT.items():
        for why in dict.fromkeys(systems.values()):
            there = ", ".join(system for system, each in systems.items() if each == why)
            yield f"- {role} has no test on {there}: {why}."
    if absent := [system for system in STACKS if system not in table.systems]:
        yield f"- Not in this run: {', '.join(absent)}."
    yield f"- {PLAYED_ONLY}"
    for role, system, column in table.bad():
        yield f"- not seen: {role} on {system}, *{column}*: {table.cells[role, system, column]}."

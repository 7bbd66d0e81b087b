"""Search for runs of this controller that have a journal: by name, the latest, or unfinished ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpuprov.errors import InvalidInput, Refused
from gpuprov.files.runs import run_folders
from gpuprov.model.nodeset import fold
from gpuprov.upgrade.context import is_of_fleet
from gpuprov.upgrade.header import ended
from gpuprov.upgrade.journal import NAME, read

LATEST = "latest"


def find_run(name: str, *verbs: str, fleet: Path | None = None) -> Path:
    """Return the folder of a run with a journal: by id, by the end of an id, or the latest.

    Args:
        verbs: `upgrade`, `rollback`.
        fleet: the fleet file whose latest run is meant; None: of all fleets.

    Raises:
        InvalidInput: no such run, or several.
    """
    runs = _with_journal(*verbs)
    latest = [run for run in runs if is_of_fleet(run, fleet)][-1:]
    found = latest if name == LATEST else [each for each in runs if name and each.name.endswith(name)]
    if len(found) != 1:
        seen = f"{len(found)} runs match" if found else "no run of " + " or ".join(verbs) + " is"
        raise InvalidInput(f"{seen} {name!r}", do="`gpuprov history` lists the runs")
    return found[0]


def find_unfinished(name: str, verb: str, fleet: Path | None = None) -> Path:
    """Return the folder of a run that has not ended; arguments are those of `find_run`.

    Raises:
        InvalidInput: no such run, or it has ended.
    """
    run = find_run(name, verb, fleet=fleet)
    if ended(read(run)):
        raise InvalidInput(f"{run.name} has ended", do=f"gpuprov history --run {run.name}")
    return run


def find_upgrade(name: str | None, nodes: Sequence[str], fleet: Path | None = None) -> tuple[Path, list[str]]:
    """Return an upgrade's folder, and which of the nodes it changed and no rollback has returned since.

    Args:
        name: as for `find_run`; None means the latest upgrade of the fleet that changed one of the nodes.
        fleet: the fleet file of the nodes' lock.

    Raises:
        InvalidInput: no such run, or it changed none of the nodes.
        Refused: all nodes that it changed have been returned already.
    """
    runs = [find_run(name, "upgrade")] if name else _of_fleet(fleet)
    for run in runs:
        changed = {entry.node for entry in read(run) if entry.step == "apply"}
        if touched := [node for node in nodes if node in changed]:
            back = {node: _returned_by(run, node) for node in touched}
            if left := [node for node in touched if not back[node]]:
                return run, left
            by = ", ".join(sorted({name for name in back.values() if name}))
            raise Refused(
                f"{fold(touched)}: already returned to the state before {run.name}, by {by}",
                do="`gpuprov history` lists earlier upgrades, for --to",
            )
    if name:
        raise InvalidInput(f"{runs[0].name} did not touch {fold(nodes)}", do="name other nodes or runs")
    raise InvalidInput(
        f"no upgrade run from here has touched {fold(nodes)}",
        expected="a run of `gpuprov upgrade`: --to names one that `gpuprov history` lists",
        do="what apply changed goes back by the former lock: gpuprov apply --lock OLD --allow-downgrade",
    )


def _returned_by(upgrade: Path, node: str) -> str:
    """Return the rollback that returned a node to its state before an upgrade; raises as `read`.

    Returns:
        its id; empty without one, or if a later upgrade or rollback has changed the node since.
    """
    for run in _with_journal("upgrade", "rollback")[::-1]:
        if run == upgrade:
            break
        entries = read(run)
        steps = {(entry.step, entry.event) for entry in entries if entry.node == node}
        if any(step in ("apply", "restore") for step, _ in steps):
            source = entries[0].data["source"] if isinstance(entries[0].data, dict) else ""
            return run.name if source == upgrade.name and ("confirm", "done") in steps else ""
    return ""


def _of_fleet(fleet: Path | None) -> list[Path]:
    """Return the folders of a fleet's upgrades, of all fleets if None, the latest first."""
    return [run for run in _with_journal("upgrade")[::-1] if is_of_fleet(run, fleet)]


def _with_journal(*verbs: str) -> list[Path]:
    """Return the folders of runs that have a journal, in the order of `run_folders`."""
    return [folder for folder in run_folders(*verbs) if (folder / NAME).exists()]

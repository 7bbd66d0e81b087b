"""How a run begins, fresh or over the journal of one whose controller died."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from gpuprov.errors import InvalidInput, Refused
from gpuprov.model.lock import Lock
from gpuprov.nodeset import fold
from gpuprov.runs import state_dir
from gpuprov.upgrade.batches import Batch, batches
from gpuprov.upgrade.context import UpgradeContext
from gpuprov.upgrade.journal import NAME, read
from gpuprov.upgrade.state import Entry

LATEST = "latest"
DEBIANS = ("debian", "ubuntu")
ORPHANS_S = 1800.0


def check(context: UpgradeContext, names: Sequence[str]) -> list[Batch]:
    """The batches of an upgrade, if both locks can speak of its nodes.

    Raises:
        Refused: a node is not in the new lock, changes its system, or has one that cannot be taken back.
        InvalidInput: the rules of the rollout are not valid.
    """
    if missing := [name for name in names if name not in context.groups]:
        raise Refused(f"the new lock has no {fold(missing)}", do="name the nodes that are in both locks")
    for name in names:
        old, new = context.groups[name]
        if (old.os, old.arch) != (new.os, new.arch):
            raise Refused(
                f"{name} would go from {old.os} {old.arch} to {new.os} {new.arch}", do="reinstall it"
            )
        if not old.os.startswith(DEBIANS):
            raise Refused(f"{name} runs {old.os}", expected=f"a system of {' or '.join(DEBIANS)} to upgrade")
    return batches(grouped(context.lock, names), context.rollout)


def grouped(lock: Lock, names: Iterable[str]) -> dict[str, list[str]]:
    """Nodes by group, in the lock's order."""
    wanted = set(names)
    found = {name: [host for host in group.hosts if host in wanted] for name, group in lock.groups.items()}
    return {name: hosts for name, hosts in found.items() if hosts}


def who() -> str:
    """The person and the machine that a run is started by."""
    return f"{os.environ.get('SUDO_USER') or os.environ.get('USER', 'root')}@{platform.node()}"


def find_run(name: str, *verbs: str) -> Path:
    """The folder of a run with a journal: by id, by the end of one, or the latest.

    Args:
        verbs: `upgrade`, `rollback`.

    Raises:
        InvalidInput: no such run, or several.
    """
    folders = (path.parent for path in (state_dir() / "runs").glob(f"*/{NAME}"))
    runs = sorted(each for each in folders if each.name.split("-")[2] in verbs)
    found = runs[-1:] if name == LATEST else [each for each in runs if name and each.name.endswith(name)]
    if len(found) != 1:
        seen = f"{len(found)} runs match" if found else "no run of " + " or ".join(verbs) + " is"
        raise InvalidInput(f"{seen} {name!r}", do="`gpuprov history` lists the runs")
    return found[0]


def ended(entries: Sequence[Entry]) -> bool:
    """Whether a run came to its end, good or bad."""
    return bool(entries) and entries[-1].step == "run" and entries[-1].event != "begun"


def last_upgrade_of(names: Sequence[str]) -> Path:
    """The latest upgrade that touched one of the nodes.

    Raises:
        InvalidInput: none did.
    """
    runs = sorted((path.parent for path in (state_dir() / "runs").glob(f"*-upgrade-*/{NAME}")), reverse=True)
    for folder in runs:
        if {entry.node for entry in read(folder) if entry.step == "apply"}.intersection(names):
            return folder
    raise InvalidInput(f"no upgrade from here has touched {fold(names)}", do="name the run with --to")


def outlive(context: UpgradeContext) -> None:
    """Wait for what a dead controller left at work here: Ansible goes on when gpuprov is killed.

    It is left to finish: a transaction that is cut off is worse than one that is waited for.
    """
    deadline = time.monotonic() + ORPHANS_S
    told = False
    while orphans := _orphans(context.folder):
        if not told:
            context.narrate(f"waiting for what the last controller left at work (process {orphans[0]})")
            told = True
        if time.monotonic() > deadline:
            raise Refused(f"process {orphans[0]} of this run is still at work", do="end it and resume again")
        time.sleep(0.5)


def _orphans(run: Path) -> list[int]:
    """Ansible's own processes that write events of this run; ssh masters they left are none."""
    mark = f"GPUPROV_EVENTS={run}/".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = mark in (process / "environ").read_bytes()
            if ours and b"ansible-playbook" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue  # ended meanwhile, or another user's
    return found

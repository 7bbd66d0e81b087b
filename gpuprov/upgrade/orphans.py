"""What a dead controller left at work on this machine: Ansible goes on when gpuprov is killed."""

from __future__ import annotations

import time
from pathlib import Path

from gpuprov.errors import Refused
from gpuprov.upgrade.context import UpgradeContext

WAIT_S = 1800.0


def wait_for_orphans(context: UpgradeContext) -> None:
    """Let it finish: a transaction that is cut off is worse than one that is waited for.

    Raises:
        Refused: it is still at work after `WAIT_S`.
    """
    deadline = time.monotonic() + WAIT_S
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

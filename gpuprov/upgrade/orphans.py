"""Processes that a dead controller left on this machine: Ansible continues when gpuprov is killed."""

from __future__ import annotations

import time

from gpuprov.apply.attempts import ansible_at_work
from gpuprov.errors import Refused
from gpuprov.upgrade.context import UpgradeContext

WAIT_S = 1800.0


def wait_for_orphans(context: UpgradeContext) -> None:
    """Wait until Ansible's processes of this run have ended: a broken transaction is worse than a delay.

    Raises:
        Refused: one still runs after `WAIT_S`.
    """
    deadline = time.monotonic() + WAIT_S
    result = False
    while orphans := ansible_at_work(context.folder):
        if not result:
            context.narrate(f"waiting for process {orphans[0]}, which the last controller left running")
            result = True
        if time.monotonic() > deadline:
            raise Refused(f"process {orphans[0]} of this run still runs", do="end it and resume again")
        time.sleep(0.5)

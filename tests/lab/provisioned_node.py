"""A node that `gpuprov apply` has made: real packages, real DKMS; only the compiler's work is played."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from gpuprov.lab import Lab, Node
from gpuprov.model.lock import read_lock
from tests.lab.command_line import gpuprov
from tests.lab.stub_compiler import play_compiler

PROFILE = "hgx-a100-4"
MACHINE = "a100x4"


def provision(lab: Lab, folder: Path, *, settings: dict[str, Any] | None = None) -> Node:
    """Bring up a node and make it what the lock in `folder` says, rebooted and verified.

    Args:
        settings: of the fleet, beyond those of the profile.
    """
    [node] = lab.up(1, gpu=MACHINE)
    fleet = yaml.safe_load(lab.fleet(PROFILE))
    [group] = fleet["groups"].values()
    group["settings"] |= settings or {}
    (folder / "fleet.yml").write_text(yaml.safe_dump(fleet))
    gpuprov(folder, "lock")
    [locked] = read_lock(folder / "fleet.lock.yml").groups.values()
    play_compiler(node, locked.components.driver.version)
    gpuprov(folder, "apply", "--reboot", "--yes")
    return node

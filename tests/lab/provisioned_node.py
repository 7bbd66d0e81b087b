"""A node provisioned by `gpuprov apply`: real packages and DKMS, with a stub in place of the compiler."""

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
    """Start a node and bring it to the state in the lock of `folder`, rebooted and verified.

    Args:
        settings: settings of the fleet in addition to the profile's.
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

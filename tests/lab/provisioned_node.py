"""Nodes that `gpuprov apply` has made: real packages and real DKMS, a simulated compiler.

The first node is provisioned and saved as an image, once for each state of the program; the others start from
that image.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any

import yaml

from gpuprov.errors import InvalidInput
from gpuprov_lab import Lab, Node
from gpuprov_lab.host import CACHE, locked
from gpuprov_lab.images import drop_image, saved_images
from tests import ROOT
from tests.lab.command_line import gpuprov
from tests.lab.stub_compiler import play_compiler

PROFILE = "hgx-a100-4"
MACHINE = "a100x4"
NEWER, OLDER = "535.309.01", "535.261.03"
"""Drivers in Debian's archive; nodes have the newer one, and the compiler is simulated for both."""
PREFIX = "provisioned-"
PARTS = ("roles", "plugins", "playbooks", "inventory", "gpuprov", "lab")
"""Folders that decide how a provisioned node looks, with this file's."""


def provision(lab: Lab, folder: Path, *, settings: dict[str, Any] | None = None) -> Node:
    """Start a provisioned node and bring it to the lock in `folder`, rebooted and verified.

    Args:
        settings: of the fleet, beyond those of the profile.
    """
    [node] = lab.up(1, gpu=MACHINE, image=provisioned_image())
    _state(lab, folder, settings or {})
    gpuprov(folder, "apply", "--reboot", "--yes")
    return node


def provisioned_image() -> str:
    """Return the name of a saved image of a provisioned node; make it if the program has changed since."""
    name = PREFIX + _digest()
    with locked(CACHE / f"{PREFIX}image.lock"):
        if name not in saved_images():
            _save(name)
            for other in saved_images():
                if other.startswith(PREFIX) and other != name:
                    _drop(other)
    return name


def _save(name: str) -> None:
    """Provision a node from nothing, and save it as an image."""
    from tests.lab.conftest import fresh_lab_name

    with Lab(fresh_lab_name()) as lab, tempfile.TemporaryDirectory(prefix="gpuprov-provisioned-") as scratch:
        folder = Path(scratch)
        [node] = lab.up(1, gpu=MACHINE)
        _state(lab, folder, {})
        play_compiler(node, NEWER, OLDER)
        applied = gpuprov(folder, "apply", "--reboot", "--yes")
        assert "rebooted  verified" in applied.stdout, applied.stdout
        lab.save(node, name)


def _state(lab: Lab, folder: Path, settings: dict[str, Any]) -> None:
    """Write a fleet with settings, and lock it."""
    fleet = yaml.safe_load(lab.fleet(PROFILE))
    [group] = fleet["groups"].values()
    group["settings"] |= settings
    (folder / "fleet.yml").write_text(yaml.safe_dump(fleet))
    gpuprov(folder, "lock")


def _digest() -> str:
    """Return a digest of all files that decide what a provisioned node has."""
    files = (path for part in PARTS for path in sorted((ROOT / part).rglob("*")) if path.is_file())
    digest = hashlib.sha256()
    for path in (*files, Path(__file__)):
        if path.suffix != ".pyc":
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _drop(name: str) -> None:
    """Remove an image; a missing one is no error."""
    try:
        drop_image(name)
    except InvalidInput:  # nodes of another run use it
        return

"""Nodes with file systems small enough to be filled to the last byte."""

from __future__ import annotations

from pathlib import Path

from gpuprov_lab import Node, engine
from gpuprov_lab.host import execute, locked

STATE = "var/lib/gpuprov"
FULL = """
mount -t tmpfs -o size=1m,mode=1777 full {folder}
setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'cat /dev/zero >{folder}/full || true' 2>/dev/null
"""
"""Commands by which a user has no room left in a folder."""


def move_to_small_disks(node: Node, root_mib: int, state_mib: int = 0) -> None:
    """Move a node to its own ext4, and gpuprov's state to another if that has a size; boot the node.

    The images are in the lab's folder and are removed with it.
    """
    with locked(node.lab_folder / "lock"):  # without the lock, a node without its root would count as broken
        node.stop()
        engine.unmount_below(node.root)
        execute(["rm", "-rf", node.upper / "var/cache/apt/archives"])
        kept = node.lab_folder / f"{node.name}.kept"
        execute(["cp", "-a", node.folder, kept])
        _mount(node.lab_folder / f"{node.name}.disk", root_mib, node.folder)
        execute(["cp", "-a", f"{kept}/.", node.folder])
        execute(["rm", "-rf", kept])
        _log_elsewhere(node)
        node.mount()
        if state_mib:
            _mount(node.lab_folder / f"{node.name}.state", state_mib, node.root / STATE)
        node.start()


def _log_elsewhere(node: Node) -> None:
    """Move the console's log off the node's disk: systemd-nspawn ends when its output has no space."""
    log = node.lab_folder / f"{node.name}.console"
    log.write_bytes(node.console.read_bytes())
    node.console.unlink()
    node.console.symlink_to(log)


def _mount(image: Path, mib: int, place: Path) -> None:
    """Mount a new file system of this size, without reserved blocks."""
    execute(["truncate", "-s", f"{mib}M", image])
    execute(["mkfs.ext4", "-q", "-b", "4096", "-m", "0", image])
    place.mkdir(parents=True, exist_ok=True)
    execute(["mount", "-o", "loop", image, place])

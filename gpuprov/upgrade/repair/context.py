"""Context of a repair's steps: that of an upgrade with one lock, and what only a repair needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuprov.files.writing import make_folders
from gpuprov.upgrade.context import UpgradeContext
from gpuprov.upgrade.journal import read
from gpuprov.upgrade.repair.bmc import Bmc
from gpuprov.upgrade.repair.header import RepairHeader, repair_header
from gpuprov.upgrade.repair.state import Progress, progress_by_node


@dataclass(frozen=True, kw_only=True)
class RepairContext(UpgradeContext):
    """A run of repair; `old` and `lock` are the same lock.

    Attributes:
        bmcs: node → how to reach its BMC.
        lock_path: absolute path of the lock, which names the fleet in the history.
    """

    lock_path: Path
    bmcs: Mapping[str, Bmc] = field(default_factory=dict)

    @property
    def about(self) -> RepairHeader:
        """The header of the run's journal; raises as `read`."""
        return repair_header(read(self.folder))

    def progress(self) -> dict[str, Progress]:
        """Return the progress of every node, from the journal on the disk; raises as `read`."""
        entries = read(self.folder)
        return progress_by_node(entries, repair_header(entries).patients)

    def place(self, node: str, name: str) -> Path:
        """Return the path of a file about a node in the run's folder; the file's folder is created."""
        folder = self.folder / "nodes"
        make_folders(folder)
        return folder / f"{node}.{name}"

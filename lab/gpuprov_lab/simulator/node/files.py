"""Every path of a node that the simulator reads or writes, under a root that tests can change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from .places import HOME, ROOT_VARIABLE, RUN


class Files(NamedTuple):
    """The node's files that the simulator uses."""

    root: Path

    @classmethod
    def here(cls) -> Files:
        """Return the node that this program runs on, or the root tree named by GPUPROV_SIMULATOR_ROOT."""
        return cls(Path(os.environ.get(ROOT_VARIABLE, "/")))

    @property
    def real(self) -> bool:
        """Whether this is a running node, where device nodes can be made and processes looked up."""
        return self.root == Path("/")

    def at(self, path: str) -> Path:
        """Return an absolute path of the node, as seen from this program."""
        return self.root / path.lstrip("/")

    @property
    def machine(self) -> Path:
        """Description of the node's hardware, written once, before its first boot."""
        return self.root / HOME / "machine.json"

    @property
    def durable_state(self) -> Path:
        """State that a GPU keeps without power: ECC and MIG mode."""
        return self.root / HOME / "durable.json"

    @property
    def power_state(self) -> Path:
        """Faults that only a power cycle removes."""
        return self.root / HOME / "power.json"

    @property
    def pci(self) -> Path:
        """The devices bound (read-only) over /sys/bus/pci/devices, writable here."""
        return self.root / HOME / "pci"

    @property
    def boot_state(self) -> Path:
        """State that a driver keeps until the next boot; on a tmpfs."""
        return self.root / RUN / "state.json"

    @property
    def kernel_choice(self) -> Path:
        """A file that names the booted kernel release, for when it is not the newest one in /boot."""
        return self.root / "etc/gpuprov-sim/kernel"

    @property
    def proc_driver(self) -> Path:
        """Folder of the driver's state in /proc."""
        return self.root / "proc/driver/nvidia"

    @property
    def proc_switches(self) -> Path:
        """Folder with one file for each NVSwitch."""
        return self.root / "proc/driver/nvidia-nvswitch/devices"

    @property
    def sys_module(self) -> Path:
        return self.root / "sys/module"

    @property
    def dev(self) -> Path:
        return self.root / "dev"

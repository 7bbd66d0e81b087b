"""The driver as a program sees it: library and kernel module, or the error of their initialisation."""

from __future__ import annotations

import re
import time
from pathlib import Path

from .files import Files
from .kernel import Kernel
from .machine import SimGpu
from .places import LIBRARY, LIBRARY_FOLDERS
from .settings import Settings


class NvmlError(Exception):
    """Error of NVML; `code` is nvidia-smi's exit status (nvmlReturn_t of nvml.h)."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Driver:
    """An initialised driver. Raises NvmlError with nvidia-smi's text if initialisation fails; with the fault
    `hang` it never returns.
    """

    def __init__(self, files: Files) -> None:
        self.files = files
        self.kernel = Kernel(files)
        self.machine = self.kernel.machine
        self.settings = Settings(self.kernel)
        faults = self.settings.faults()
        if "hang" in faults:
            _hang()
        library = library_version(files)
        if library is None:
            raise NvmlError(12, _LIBRARY_MISSING)
        loaded = self.kernel.modules().get("nvidia")
        if loaded is None:
            raise NvmlError(9, _NOT_LOADED)
        if loaded["version"] != library or "mismatch" in faults:
            raise NvmlError(18, _MISMATCH + nvml_version(library))
        self.version = library
        self.settings.settle()
        self.gpus = self._working_gpus(loaded["flavour"], faults)

    @property
    def branch(self) -> int:
        """The first number of the version, such as 580."""
        return int(self.version.split(".")[0])

    def lost(self, gpu: SimGpu) -> bool:
        """Return whether a GPU fell off the bus, by the fault `gpu-lost` or until the next power cycle."""
        dead = self.kernel.power.read().get("dead", [])
        return str(gpu.number) in [*self.settings.faults().get("gpu-lost", []), *dead]

    def remap_pending(self, gpu: SimGpu) -> bool:
        """Return whether a repair of memory waits for a reset or a reboot."""
        faults = self.settings.faults()
        return str(gpu.number) in [*faults.get("remap", []), *faults.get("remap-stuck", [])]

    def fabric_manager_runs(self) -> bool:
        """Return whether the fabric manager's process is alive, by its pid file."""
        pid_file = self.files.at("/run/nvidia-fabricmanager/nv-fabricmanager.pid")
        return pid_file.exists() and Path(f"/proc/{pid_file.read_text().strip()}").exists()

    def _working_gpus(self, flavour: str, faults: dict[str, object]) -> list[SimGpu]:
        """Return the machine's GPUs; none if the loaded module's flavour does not support them, or with the
        fault `no-devices`.
        """
        if flavour not in self.machine.model.modules or "no-devices" in faults:
            return []
        return list(self.machine.gpus)


def library_version(files: Files) -> str | None:
    """Return the version of the NVML library that the loader finds, from the name of the file behind its
    link; None without one.
    """
    for folder in LIBRARY_FOLDERS:
        link = files.at(folder) / f"{LIBRARY}.1"
        match = re.fullmatch(re.escape(LIBRARY) + r"\.(\d+(\.\d+)+)", link.resolve().name)
        if link.exists() and match:
            return match[1]
    return None


def nvml_version(library: str) -> str:
    """Return NVML's own version: the first two numbers (580.159 of 580.159.04)."""
    return ".".join(library.split(".")[:2])


def _hang() -> None:
    while True:
        time.sleep(3600)


_NOT_LOADED = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)
_LIBRARY_MISSING = (
    f"NVIDIA-SMI couldn't find {LIBRARY} library in your system. "
    "Please make sure that the NVIDIA Display Driver is properly installed and present in your system.\n"
    f"Please also try adding directory that contains {LIBRARY} to your system PATH."
)
_MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: "

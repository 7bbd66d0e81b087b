"""`host.gpu`: the GPUs of a node on its PCI bus and in its driver."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from functools import cached_property
from typing import NamedTuple

from gpuprov.untrusted.parsing import whole_number
from gpuprov.verify.observers.base import Observed

NVIDIA = "0x10de"
"""PCI vendor id of NVIDIA."""
DISPLAY_CLASSES = ("0x0300", "0x0302")  # PCI code assignments: VGA controller, 3D controller
PCI_DEVICES = (
    "grep -sH . /sys/bus/pci/devices/*/class /sys/bus/pci/devices/*/vendor /sys/bus/pci/devices/*/device"
)
FORMAT = "--format=csv,noheader,nounits"
STATE = f"nvidia-smi --query-gpu=index,pci.bus_id,name,driver_version,persistence_mode {FORMAT}"
CLOCKS = (
    "nvidia-smi --query-gpu=index,clocks.applications.graphics,clocks.applications.memory,"
    f"clocks.current.graphics {FORMAT}"
)
MODES = (
    "nvidia-smi --query-gpu=index,power.limit,compute_mode,ecc.mode.current,ecc.mode.pending,"
    f"mig.mode.current,mig.mode.pending {FORMAT}"
)
POWER_RANGE = f"nvidia-smi --query-gpu=index,power.min_limit,power.max_limit {FORMAT}"
PROTECTED = f"nvidia-smi --query-gpu=index,protected_memory.total {FORMAT}"
INSTANCES = "nvidia-smi mig -lgi"
Clocks = dict[str, int | None]
"""Clock (`graphics`, `memory`) → MHz; None for an unknown one."""


class PciGpu(NamedTuple):
    """A GPU on the bus: address as `0000:00:06.0`, vendor and device id as `10de:2335`."""

    address: str
    id: str


class DriverGpu(NamedTuple):
    """A GPU as `nvidia-smi` reports it; the address has the form of `PciGpu`."""

    number: int
    address: str
    name: str
    driver_version: str
    persistence: bool


class Modes(NamedTuple):
    """Power limit in watts and modes of one GPU; None for a mode that it lacks.

    The pending modes are in effect after the next reset of the GPU.
    """

    power_limit: float | None
    compute_mode: str
    ecc: bool | None
    ecc_pending: bool | None
    mig: bool | None
    mig_pending: bool | None


class Gpus(Observed):
    """Observer of the GPUs of a node.

    >>> host.gpu.count
    4
    >>> host.gpu.on_bus[0].id
    '10de:2335'
    """

    @cached_property
    def on_bus(self) -> list[PciGpu]:
        """NVIDIA's GPUs on the PCI bus, sorted by address, independent of the driver."""
        return parse_pci(self.run(PCI_DEVICES).stdout)

    @cached_property
    def in_driver(self) -> list[DriverGpu]:
        """The driver's GPUs by its index; empty if `nvidia-smi` fails; raises as `parse_state`."""
        answer = self.run(STATE)
        return parse_state(answer.stdout) if answer.succeeded else []

    @property
    def complaint(self) -> str | None:
        """The first line that `nvidia-smi` prints when it fails, or its exit status; None if it succeeds."""
        answer = self.run(STATE)
        if answer.succeeded:
            return None
        return (answer.stdout + answer.stderr).strip().partition("\n")[0] or f"status {answer.rc}"

    @property
    def count(self) -> int:
        """The number of GPUs in the driver; 0 if `nvidia-smi` fails."""
        return len(self.in_driver)

    @property
    def persistence(self) -> dict[str, bool]:
        """Whether persistence mode is on, by GPU: {'GPU 0': True}; empty if `nvidia-smi` fails."""
        return {f"GPU {gpu.number}": gpu.persistence for gpu in self.in_driver}

    @cached_property
    def clocks(self) -> dict[str, Clocks]:
        """The configured clocks in MHz, by GPU; empty if `nvidia-smi` fails; raises as `parse_clocks`.

        These are the application clocks, or without support for those the current graphics clock (locked
        clocks cannot be read back otherwise).
        """
        answer = self.run(CLOCKS)
        return parse_clocks(answer.stdout) if answer.succeeded else {}

    @cached_property
    def modes(self) -> dict[str, Modes]:
        """Power limit and modes, by GPU (`GPU 0`); empty if `nvidia-smi` fails; raises as `parse_modes`."""
        answer = self.run(MODES)
        return parse_modes(answer.stdout) if answer.succeeded else {}

    @cached_property
    def power_range(self) -> dict[str, tuple[float, float]] | None:
        """The lowest and the highest power limit in watts, by GPU; without GPUs whose range is unknown.

        None if `nvidia-smi` fails.
        """
        answer = self.run(POWER_RANGE)
        return parse_power_range(answer.stdout) if answer.succeeded else None

    @cached_property
    def confidential(self) -> list[str]:
        """The numbers of the GPUs with protected memory; empty if `nvidia-smi` fails."""
        answer = self.run(PROTECTED)
        rows = _rows(answer.stdout) if answer.succeeded else []
        return [row[0] for row in rows if len(row) == 2 and whole_number(row[1])]

    @cached_property
    def instances(self) -> dict[str, list[str]]:
        """Profiles of the GPU instances of MIG, one for each instance, sorted, by GPU.

        A GPU without instances is left out; empty if `nvidia-smi` fails.
        """
        found: defaultdict[str, list[str]] = defaultdict(list)
        for number, profile in re.findall(
            r"^\|\s+(\d+)\s+MIG (\S+)", self.run(INSTANCES).stdout, re.MULTILINE
        ):
            found[f"GPU {number}"].append(profile)
        return {gpu: sorted(profiles) for gpu, profiles in found.items()}

    def __repr__(self) -> str:
        return "<gpu>"


def parse_pci(text: str) -> list[PciGpu]:
    """Parse `/sys/bus/pci/devices/ADDRESS/FIELD:VALUE` lines to NVIDIA's GPUs, sorted by address."""
    devices: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for line in text.splitlines():
        path, _, value = line.rpartition(":")
        address, _, name = path.removeprefix("/sys/bus/pci/devices/").rpartition("/")
        devices[address][name] = value.strip()
    return [
        PciGpu(address, f"{device['vendor'][2:]}:{device['device'][2:]}")
        for address, device in sorted(devices.items())
        if device.get("vendor") == NVIDIA and device.get("class", "").startswith(DISPLAY_CLASSES)
    ]


def parse_state(text: str) -> list[DriverGpu]:
    """Parse lines of the `STATE` query to GPUs; a line with another number of columns raises ValueError."""
    return [
        DriverGpu(int(index), address.lower()[-12:], name, version, persistence == "Enabled")
        for index, address, name, version, persistence in _rows(text)
    ]


def parse_clocks(text: str) -> dict[str, Clocks]:
    """Parse lines of the `CLOCKS` query to each GPU's clocks; None for an unknown clock.

    A GPU without application clocks has only `graphics`, its current clock. A line with another number of
    columns raises ValueError.
    """
    clocks: dict[str, Clocks] = {}
    for index, *row in _rows(text):
        graphics, memory, current = map(_mhz, row)
        application = {"graphics": graphics, "memory": memory}
        clocks[f"GPU {index}"] = {"graphics": current} if graphics is None else application
    return clocks


def parse_modes(text: str) -> dict[str, Modes]:
    """Parse lines of the `MODES` query, by GPU; None for a mode that a GPU lacks, and an unknown power limit.

    The compute mode is in lower case. A line with another number of columns raises ValueError or TypeError.
    """
    found = {}
    for index, power, compute, *switches in _rows(text):
        result = [None if "N/A" in word or "Not" in word else word == "Enabled" for word in switches]
        watts = float(power) if re.fullmatch(r"[\d.]+", power) else None
        found[f"GPU {index}"] = Modes(watts, compute.lower(), *result)
    return found


def parse_power_range(text: str) -> dict[str, tuple[float, float]]:
    """Parse lines of the `POWER_RANGE` query, by GPU; lines without two numbers of watts are left out."""
    rows = re.findall(r"(?m)^(\d+), (\d{1,9}(?:\.\d{1,9})?), (\d{1,9}(?:\.\d{1,9})?)$", text)
    return {f"GPU {index}": (float(least), float(most)) for index, least, most in rows}


def _rows(text: str) -> list[list[str]]:
    """Return the cells of each line of CSV, without the blanks in front of them."""
    return list(csv.reader(text.splitlines(), skipinitialspace=True))


def _mhz(cell: str) -> int | None:
    """Parse `1980` as a number; `[N/A]`, `[Not Supported]` and other text as None."""
    return whole_number(cell)

"""The hardware of a node, as `machine.json` describes it."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from .files import Files


class Model(NamedTuple):
    """Values common to all GPUs of one model. Clocks in MHz, power in watts."""

    name: str
    device: dict[str, str]
    features: frozenset[str]
    modules: tuple[str, ...]
    clocks: dict[str, Any]
    power: dict[str, float]
    mig: str | None
    nvlink: dict[str, Any] | None
    values: dict[str, str]

    @property
    def default_clocks(self) -> tuple[int, int]:
        """Memory and graphics clock that the driver starts with, MHz."""
        memory, graphics = self.clocks["default"]
        return memory, graphics

    def supported_clocks(self) -> dict[int, list[int]]:
        """Return each memory clock with its graphics clocks, both highest first, MHz."""
        return {
            int(memory): [
                int(highest - position * step) for position in range(int((highest - lowest) / step) + 1)
            ]
            for memory, (highest, lowest, step) in self.clocks["supported"].items()
        }


class SimGpu(NamedTuple):
    """One GPU: its place and its own values."""

    number: int
    address: str
    numa_node: int
    uuid: str
    values: dict[str, str]

    @property
    def bus_id(self) -> str:
        """The address with the eight-digit domain that nvidia-smi prints."""
        return "0000" + self.address.upper()


class Machine(NamedTuple):
    """A server: GPUs of one model, the switches between them, the CPUs near them.

    `cpus` maps a NUMA node to its CPU list; `links` is what `topo -m` prints for two GPUs joined by NVLink,
    or '' without; `fabric_outside` marks a virtual machine whose NVSwitches the host manages.
    """

    name: str
    model: Model
    gpus: tuple[SimGpu, ...]
    switches: tuple[str, ...]
    cpus: dict[int, str]
    links: str
    fabric_outside: bool

    @classmethod
    def load(cls, files: Files) -> Machine:
        """Return the machine that the node's `machine.json` describes.

        Raises:
            OSError, ValueError, KeyError: the file is missing, or has another form.
        """
        document = json.loads(files.machine.read_text())
        model = document["model"]
        return cls(
            name=document["name"],
            model=Model(
                name=model["values"]["name"],
                device=model["device"],
                features=frozenset(model["features"]),
                modules=tuple(model["modules"]),
                clocks=model["clocks"],
                power=model["power"],
                mig=model["mig"],
                nvlink=model["nvlink"],
                values=model["values"],
            ),
            gpus=tuple(SimGpu(**gpu) for gpu in document["gpus"]),
            switches=tuple(document["switches"]),
            cpus={int(node): cpus for node, cpus in document["cpus"].items()},
            links=document["links"],
            fabric_outside=document["fabric_outside"],
        )

"""Machines that can be simulated: data files of this package, combined for a node."""

from __future__ import annotations

import hashlib
import json
import uuid
from importlib.resources import files
from typing import Any

from gpuprov.errors import InvalidInput

_DATA = files(__package__)


def machines() -> list[str]:
    """Return the names of all simulated machines, sorted."""
    names = (entry.name for entry in (_DATA / "machines").iterdir())
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))


def describe(machine: str) -> dict[str, Any]:
    """Return one machine from its data file, with its GPUs' `model` resolved to that model's facts.

    Raises InvalidInput for an unknown name.
    """
    if machine not in machines():
        raise InvalidInput(
            f"no simulated machine is called {machine!r}",
            expected=f"one of {', '.join(machines())}",
        )
    document: dict[str, Any] = json.loads((_DATA / "machines" / f"{machine}.json").read_text())
    document["name"] = machine
    document["model"] = json.loads((_DATA / "models" / f"{document['model']}.json").read_text())
    return document


def for_node(machine: str) -> dict[str, Any]:
    """Return the content of the node's `machine.json`, which `node.machine.Machine` reads.

    Raises:
        InvalidInput: no such machine.
    """
    document = describe(machine)
    return {
        "name": machine,
        "model": document["model"],
        "gpus": [_gpu(machine, index, dict(gpu)) for index, gpu in enumerate(document["gpus"])],
        "switches": [switch["address"] for switch in document["switches"]],
        "cpus": document["cpus"],
        "links": document["links"],
        "fabric_outside": document["fabric_outside"],
    }


def pci_devices(machine: str) -> list[dict[str, Any]]:
    """Return every PCI device of a machine (GPUs, switches, others) as a dictionary; raises as `describe`.

    Its keys are address, class, vendor, device, subsystem_vendor, subsystem_device (hex, no 0x), numa_node
    (-1 if not stated).
    """
    document = describe(machine)
    gpus = [{**document["model"]["device"], **gpu} for gpu in document["gpus"]]
    return [{"numa_node": -1, **device} for device in gpus + document["switches"] + document["others"]]


def _gpu(machine: str, index: int, gpu: dict[str, Any]) -> dict[str, Any]:
    """Return a GPU with an identity: the one in the data, otherwise one derived from machine and index."""
    seed = hashlib.sha256(f"{machine} {index}".encode()).digest()
    values = {
        "serial": str(1650000000000 + index),
        "pdi": f"0x{seed[16:24].hex()}",
        **{key: value for key, value in gpu.items() if key not in ("address", "numa_node", "uuid")},
    }
    return {
        "number": index,
        "address": gpu["address"],
        "numa_node": gpu["numa_node"],
        "uuid": gpu.get("uuid", f"GPU-{uuid.UUID(bytes=seed[:16], version=4)}"),
        "values": values,
    }

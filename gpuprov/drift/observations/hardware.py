"""Observations of a node's hardware."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuprov.drift import hardware
from gpuprov.drift.observations.gpus import gpus_of
from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.model.hardware import NicHardware
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation
from gpuprov.roles.hardware import CONFIDENTIAL, NOT_CONFIDENTIAL


@observes("gpu.model", "pci")
def _model(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected PCI ids if every GPU on the bus has one of them, also without a GPU; else all ids
    found.
    """
    seen = sorted({device.id for device in facts.pci_gpus})
    return expectation.expected if set(seen) <= set(expectation.expected) else seen


@observes("gpu.count", "pci")
def _count(facts: Facts, expectation: Expectation) -> Any:
    """Return the number of NVIDIA GPUs on the bus."""
    return len(facts.pci_gpus)


@observes("gpu.visible", "pci", "smi")
def _visible(facts: Facts, expectation: Expectation) -> Any:
    """Return the number of GPUs of the driver, with the differences from the bus if the number is as
    expected.

    Raises:
        Missing: nvidia-smi does not answer.
    """
    seen = {gpu.pci_address for gpu in gpus_of(facts)}
    strays = sorted(map(str, seen ^ {device.address for device in facts.pci_gpus}))
    if strays and len(seen) == expectation.expected:
        return f"{len(seen)}, but driver and bus disagree on {', '.join(strays)}"
    return len(seen)


@observes("gpu.confidential", "smi")
def _confidential(facts: Facts, expectation: Expectation) -> str:
    """Return whether the GPUs have protected memory: `on`, `off`, or the GPUs that have it.

    Raises:
        Missing: nvidia-smi does not answer.
    """
    on = [gpu.index for gpu in gpus_of(facts) if gpu.protected_mib]
    if on and len(on) == len(gpus_of(facts)):
        return CONFIDENTIAL
    return f"on for GPU {', '.join(map(str, on))}" if on else NOT_CONFIDENTIAL


@names_who("gpu.confidential")
def _host(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield nothing: the mode is set on the host, not at a place on the node."""
    yield from ()


@observes("gpu.nvswitches", "pci")
def _nvswitches(facts: Facts, expectation: Expectation) -> Any:
    """Return the number of NVSwitches on the bus, or the expected one if there are more."""
    return at_least(expectation.expected, hardware.nvswitches(facts))


@observes("hardware.cpu_cores", "cpu")
def _cores(facts: Facts, expectation: Expectation) -> Any:
    """Return the number of physical cores, or the expected one if there are more."""
    return at_least(expectation.expected, hardware.cores(facts))


@observes("hardware.memory_mib", "memory")
def _memory(facts: Facts, expectation: Expectation) -> Any:
    """Return the memory in MiB, or the expected one if there is more."""
    return at_least(expectation.expected, facts.memory.total_mib)


@observes("hardware.nvme", "pci", "disks")
def _nvme(facts: Facts, expectation: Expectation) -> Any:
    """Return number and total capacity (TB) of NVMe drives, each as expected if there is more.

    A capacity that the kernel does not show passes.
    """
    seen = {"count": hardware.nvme_drives(facts), "total_tb": hardware.nvme_tb(facts)}
    return {
        key: least if seen[key] is None else at_least(least, round(float(seen[key] or 0), 2))
        for key, least in expectation.expected.items()
    }


@observes("hardware.nics", "hcas", "nics", "pci")
def _nics(facts: Facts, expectation: Expectation) -> Any:
    """Return the texts of expected ports; for those without enough ports a text of the ports found."""
    have = hardware.ports(facts)
    return [
        text if hardware.fulfilled(wanted, have) else hardware.instead(wanted, have)
        for text, wanted in ((text, parse_nic(text)) for text in expectation.expected)
    ]


@observes("secure_boot.state", "state", "secure_boot")
def _secure_boot(facts: Facts, expectation: Expectation) -> Any:
    """Return the state of Secure Boot: `on`, `on, and not enforced`, `off` or `no EFI`.

    If a certificate is expected, also whether it is enrolled.
    """
    seen = facts.secure_boot
    if not seen.on:
        return "no EFI" if seen.on is None else "off"
    state = "on" if seen.enforced else "on, and not enforced"
    if expectation.subject is None:
        return state
    return f"{state}, certificate {'enrolled' if expectation.subject in seen.enrolled else 'not enrolled'}"


def at_least(least: Any, seen: Any) -> Any:
    """Return the expected value if there is at least as much, otherwise the actual value."""
    return least if seen >= least else seen


def parse_nic(text: str) -> NicHardware:
    """Parse `8 x 400 Gb/s RDMA`, the text of an expected port, into a record."""
    count, _, speed, _, word = text.split()
    kinds = {word: kind for kind, word in hardware.WORDS.items()}
    return NicHardware.model_validate({"kind": kinds[word], "speed_gbits": speed, "count": count})

"""Uniformity: differences between nodes that should be alike, without a lock.

Each aspect of a node's facts is compared with the value of more than half of the nodes; a mapping is compared
key by key. Values specific to one node (addresses, serial numbers, disks' names) are not compared.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from gpuprov.drift.judge import Difference, NodeDrift, without_facts
from gpuprov.errors import GpuprovError
from gpuprov.probe.facts import Facts, Missing
from gpuprov.probe.parse.gpu import Gpu
from gpuprov.ssh.contained import contained

NO_MAJORITY = "no majority"
KEYS = 2048
"""Maximum number of keys of an aspect that are compared: a recorded node has 40 packages."""
CHARACTERS = 128 * 1024
"""Maximum number of characters of an aspect's keys and values that are compared; recorded: 1,300."""
OF_ONE_NODE = ("root=", "BOOT_IMAGE=", "initrd=", "resume=", "ip=", "rd.", "systemd.machine_id=")
OF_ONE_SSHD = ("hostkey", "listenaddress")

Aspects = dict[tuple[str, str], str]
"""(aspect, key or "") → the value as JSON."""


def aspects_of(name: str, answer: Facts | GpuprovError) -> Aspects | GpuprovError:
    """Return the values of a node that are compared, or the error of one without readable facts.

    They have a limited size, and are kept for all nodes; facts can have many times that size.
    """
    return answer if isinstance(answer, GpuprovError) else contained(name, partial(_aspects, answer))


def majority(nodes: Mapping[str, Aspects | GpuprovError]) -> list[NodeDrift]:
    """Return each node's difference from the majority, in order.

    A node with an error has no vote; its result is that error, which is not raised.
    """
    common = _common(aspects for aspects in nodes.values() if isinstance(aspects, dict))
    return [
        _compared(name, aspects, common) if isinstance(aspects, dict) else without_facts(name, aspects)
        for name, aspects in nodes.items()
    ]


def _compared(name: str, aspects: Aspects, common: Mapping[tuple[str, str], str | None]) -> NodeDrift:
    """Return a node's differences from the common values; without a common value, every value differs."""
    odd: dict[str, dict[str, tuple[Any, Any]]] = {}
    order = {aspect: at for at, aspect in enumerate(ASPECTS)}
    for aspect, key in sorted(dict.fromkeys((*common, *aspects)), key=lambda name: order[name[0]]):
        usual, actual = common.get((aspect, key), "null"), aspects.get((aspect, key), "null")
        if actual != usual:
            expected = NO_MAJORITY if usual is None else json.loads(usual)
            odd.setdefault(aspect, {})[key] = (expected, json.loads(actual))
    drift = tuple(_difference(aspect, found) for aspect, found in odd.items())
    return NodeDrift(name, "drifted" if drift else "in_sync", drift)


def _difference(aspect: str, found: dict[str, tuple[Any, Any]]) -> Difference:
    """Return the difference in an aspect, as a warning.

    Args:
        found: key, or "" for an aspect without keys → expected and actual value.
    """
    if "" in found:
        expected, actual = found[""]
    else:
        expected = {key: pair[0] for key, pair in found.items()}
        actual = {key: pair[1] for key, pair in found.items()}
    return Difference(aspect, expected, actual, "warning", None, reboot=False)


def _common(nodes: Iterable[Aspects]) -> dict[tuple[str, str], str | None]:
    """Return the value of more than half of the nodes for each aspect; None without a majority.

    A node that lacks a key counts with the value `null`. Keys that less than half of the nodes have, whose
    value is therefore `null`, are left out: one node can have many.
    """
    listed = list(nodes)
    counts = Counter(key for aspects in listed for key in aspects)
    keys = [key for key, times in counts.items() if times * 2 >= len(listed)]
    common: dict[tuple[str, str], str | None] = {}
    for key in keys:
        [(value, times)] = Counter(aspects.get(key, "null") for aspects in listed).most_common(1)
        common[key] = value if times * 2 > len(listed) else None
    return common


def _aspects(facts: Facts) -> Aspects:
    """Return the values of all aspects of a node; for missing facts the value is the reason."""
    found: Aspects = {}
    for aspect, read in ASPECTS.items():
        try:
            value = read(facts)
        except Missing as missing:
            value = f"unknown: {missing.reason}"
        pairs = value.items() if isinstance(value, Mapping) else [("", value)]
        written = {str(key): json.dumps(each, sort_keys=True) for key, each in pairs}
        found |= {(aspect, key): each for key, each in _limited(written).items()}
    return found


def _limited(written: dict[str, str]) -> dict[str, str]:
    """Return an aspect's key → value as JSON; for too many or too long ones their number and their hash,
    which a node with the same ones has too.
    """
    size = sum(len(key) + len(value) for key, value in written.items())
    if len(written) <= KEYS and size <= CHARACTERS:
        return written
    digest = hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()
    return {"": json.dumps(f"{len(written)} values with {size} characters, SHA-256 {digest}")}


def _on_gpus(read: Callable[[Gpu], Any]) -> Callable[[Facts], Any]:
    """Return a reader of the value that all GPUs share, or of each value with its number of GPUs.

    The reader raises Missing if nvidia-smi does not answer.
    """

    def values(facts: Facts) -> Any:
        if facts.smi.error:
            raise Missing("smi", facts.smi.error)
        counted = Counter(str(read(gpu)) for gpu in facts.smi.gpus)
        if len(counted) == 1:
            return next(iter(counted))
        return ", ".join(f"{value} on {times} GPUs" for value, times in sorted(counted.items()))

    return values


def _packages(facts: Facts) -> dict[str, str | None]:
    """Return package → version, None if it is not installed."""
    return {name: facts.packages.version(name) for name in facts.packages.by_name}


def _sshd(facts: Facts) -> dict[str, list[str]]:
    """Return sshd's effective keyword → values, without those specific to one node."""
    return {name: list(values) for name, values in facts.sshd.items() if name not in OF_ONE_SSHD}


def _units(facts: Facts) -> dict[str, str]:
    """Return unit → its state at boot and now, for units that exist."""
    return {
        name: f"{unit.file_state or unit.load_state}, {unit.active_state}"
        for name, unit in facts.units.items()
        if unit.exists
    }


def _cmdline(facts: Facts) -> list[str]:
    """Return the words of the kernel's command line, without those specific to one node."""
    return [word for word in facts.cmdline.split() if not word.startswith(OF_ONE_NODE)]


def _sources(facts: Facts) -> list[str]:
    """Return the enabled apt sources as `URIS SUITES`, sorted."""
    enabled = (source for source in facts.apt.sources if source.enabled)
    return sorted(" ".join((*source.uris, *source.suites)) for source in enabled)


def _modules(facts: Facts) -> dict[str, str | None]:
    """Return `MODULE for KERNEL` → version of the kernel modules on disk."""
    return {
        f"{name} for {kernel}": module.version
        for kernel, modules in facts.disk_modules.items()
        for name, module in modules.items()
    }


def _loaded(facts: Facts) -> str | None:
    """Return version and flavour of the loaded driver, or None."""
    loaded = facts.loaded_driver
    return f"{loaded.version} {'open' if loaded.open else 'proprietary'}" if loaded else None


ASPECTS: dict[str, Callable[[Facts], Any]] = {
    "system.os": lambda facts: facts.os.name,
    "system.arch": lambda facts: facts.arch,
    "system.cmdline": _cmdline,
    "system.cpu": lambda facts: f"{facts.cpu.logical} of {facts.cpu.model}",
    "system.memory_gib": lambda facts: round(facts.memory.total_mib / 1024),
    "system.disks": lambda facts: sorted(disk.size for disk in facts.disks if disk.type == "disk"),
    "system.reboot_required": lambda facts: facts.state.reboot_required,
    "kernel.running": lambda facts: facts.kernel,
    "kernel.next": lambda facts: facts.kernels.next_boot,
    "driver.loaded": _loaded,
    "driver.answers": lambda facts: facts.smi.error or "yes",
    "driver.modules": _modules,
    "modprobe.blacklist": lambda facts: sorted(facts.modprobe.blacklisted),
    "modprobe.options": lambda facts: {name: dict(each) for name, each in facts.modprobe.options.items()},
    "gpu.count": lambda facts: len(facts.pci_gpus),
    "gpu.models": lambda facts: sorted({device.id for device in facts.pci_gpus}),
    "gpu.vbios": _on_gpus(lambda gpu: gpu.vbios),
    "gpu.persistence": _on_gpus(lambda gpu: gpu.persistence_mode),
    "gpu.clocks": _on_gpus(lambda gpu: f"{gpu.application_clocks.graphics}/{gpu.application_clocks.memory}"),
    "gpu.ecc": _on_gpus(lambda gpu: gpu.ecc.current),
    "gpu.mig": _on_gpus(lambda gpu: gpu.mig.current),
    "gpu.power_limit": _on_gpus(lambda gpu: gpu.power.limit),
    "gpu.compute_mode": _on_gpus(lambda gpu: gpu.compute_mode),
    "network.hcas": lambda facts: {
        f"{hca.name}/{hca.port}": f"{hca.state}, {hca.rate}, {hca.firmware}" for hca in facts.hcas
    },
    "packages": _packages,
    "packages.held": lambda facts: sorted(facts.packages.held),
    "packages.broken": lambda facts: [f"{each.name} {each.state}" for each in facts.packages.broken],
    "apt.sources": _sources,
    "apt.unattended": lambda facts: sorted(facts.apt.unattended_blacklist),
    "units": _units,
    "sshd": _sshd,
    "limits": lambda facts: dict(facts.limits.systemd),
    "docker": lambda facts: dict(facts.daemon_json or {}),
    "nccl.settings": lambda facts: dict(facts.nccl.settings),
    "nccl.libraries": lambda facts: dict(facts.nccl.libraries),
    "environment": lambda facts: facts.environment,
}

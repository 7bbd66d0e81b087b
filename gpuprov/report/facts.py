"""A node's facts as text, and nvidia-smi's output as one JSON document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

from gpuprov.probe.facts import Facts, Missing
from gpuprov.probe.parse.gpu import Gpu
from gpuprov.probe.parse.smi import Smi
from gpuprov.report.table import aligned

SMI_SCHEMA = "gpuprov.smi/1"


def smi_document(smi: Smi) -> dict[str, Any]:
    """Return `gpuprov.smi/1`, with the error, if any, versions, GPUs and warnings: MHz, MiB, W and degrees C
    as numbers, modes as booleans, missing values as null.
    """
    document: dict[str, Any] = {"schema": SMI_SCHEMA}
    if smi.error:
        document["error"] = smi.error
    return {
        **document,
        "driver_version": smi.driver_version,
        "cuda_version": smi.cuda_version,
        "attached_gpus": smi.attached,
        "gpus": [_gpu_document(gpu) for gpu in smi.gpus],
        "warnings": list(smi.warnings),
    }


def _gpu_document(gpu: Gpu) -> dict[str, Any]:
    """Return a GPU's fields as plain data, with all clocks (current, application, default, maximum) in
    one object.
    """
    document = asdict(gpu)
    clocks = document.pop("clocks")
    for kind in ("applications", "default_applications"):
        fixed = document.pop(kind.replace("applications", "application_clocks"))
        clocks |= {f"{kind}_graphics": fixed["graphics"], f"{kind}_memory": fixed["memory"]}
    clocks |= {f"max_{name}": clock for name, clock in document.pop("max_clocks").items()}
    return {**document, "clocks": clocks}


def describe_smi(smi: Smi) -> Iterator[str]:
    """Yield driver and warnings, errors first, then a table of GPUs, and a line for each problem of a GPU."""
    if smi.error:
        yield f"error    {smi.error}"
    if smi.driver_version or smi.cuda_version:
        yield f"driver   {smi.driver_version or 'unknown'}, CUDA up to {smi.cuda_version or 'unknown'}"
    yield from (f"warning  {line}" for line in smi.warnings)
    if not smi.gpus:
        return
    header = ("GPU", "NAME", "PCI", "MEMORY", "PERSISTENCE", "CLOCKS", "ECC", "MIG", "POWER", "UUID")
    yield from aligned([header, *(_row(gpu) for gpu in smi.gpus)])
    for gpu in smi.gpus:
        yield from (f"GPU {gpu.index}: {problem}" for problem in gpu.problems)


def _row(gpu: Gpu) -> tuple[str, ...]:
    """Return a GPU's cells of the table; `-` for a missing value."""
    memory = "-" if gpu.memory_total_mib is None else f"{gpu.memory_total_mib} MiB"
    power = "-" if gpu.power.limit is None else f"{gpu.power.limit:g} W"
    fixed = gpu.application_clocks if gpu.application_clocks.graphics else gpu.clocks
    clocks = "-" if fixed.graphics is None else f"{fixed.graphics}/{fixed.memory or '-'} MHz"
    return (
        str(gpu.index),
        gpu.name or "-",
        gpu.pci_address or "-",
        memory,
        _on(gpu.persistence_mode),
        clocks,
        _pair(gpu.ecc.current, gpu.ecc.pending),
        _pair(gpu.mig.current, gpu.mig.pending),
        power,
        gpu.uuid or "-",
    )


def _on(mode: bool | None) -> str:
    """Return a mode as text: `on`, `off`, or `-` for None."""
    return "-" if mode is None else "on" if mode else "off"


def _pair(current: bool | None, pending: bool | None) -> str:
    """Return a mode as text, with the one after the next reset if it differs: `off, then on`."""
    return _on(current) if current == pending else f"{_on(current)}, then {_on(pending)}"


def describe(facts: Facts) -> Iterator[str]:
    """Yield the lines of each subject; `unknown: REASON` for one that raises Missing."""
    yield f"{'host':<12}{facts.host}, {facts.collected_at}, in {facts.seconds:.2f} s"
    for name, words in _LINES.items():
        try:
            said = list(words(facts))
        except Missing as missing:
            said = [f"unknown: {missing.reason}"]
        for label, line in zip([name, *[""] * len(said)], said, strict=False):
            yield f"{label:<12}{line}".rstrip()


def _kernel(facts: Facts) -> Iterator[str]:
    """Yield the running kernel and that of the next boot, then the one that is held back, if any."""
    kernels = facts.kernels
    following = kernels.next_boot or "not known"
    yield f"{facts.kernel} {facts.arch}; next boot {following} ({kernels.next_boot_reason})"
    if kernels.held_back:
        yield f"{kernels.held_back} held back"


def _on_the_bus(facts: Facts) -> Iterator[str]:
    """Yield the NVIDIA GPUs on the PCI bus with their drivers; `none` without any."""
    if not facts.pci_gpus:
        yield "none"
    for gpu in facts.pci_gpus:
        yield f"{gpu.address} {gpu.id} {gpu.driver or 'without a driver'}"


def _driver(facts: Facts) -> Iterator[str]:
    """Yield the loaded NVIDIA module, then the modules on disk for each kernel."""
    loaded = facts.loaded_driver
    flavour = f"{'open' if loaded.open else 'proprietary'} module" if loaded else ""
    yield f"loaded {loaded.version}, {flavour}" if loaded else "no NVIDIA module loaded"
    for kernel, modules in facts.disk_modules.items():
        for name, module in modules.items():
            yield f"on disk for {kernel}: {name} {module.version or 'without a version'}"


def _packages(facts: Facts) -> Iterator[str]:
    """Yield the number of packages of the stack, then each broken one."""
    packages = facts.packages
    yield f"{len(packages.by_name)} of the stack by {packages.manager}, {len(packages.held)} held"
    yield from (f"broken: {package.name} {package.version} is {package.state}" for package in packages.broken)


def _state(facts: Facts) -> Iterator[str]:
    """Yield reboot and Secure Boot, free space, then files that another driver has left."""
    state = facts.state
    secure = {True: "on", False: "off", None: "no EFI"}[state.secure_boot]
    yield f"reboot {'required' if state.reboot_required else 'not required'}; Secure Boot {secure}"
    yield f"free {', '.join(f'{place} {mib} MiB' for place, mib in state.free_mib.items())}"
    yield from (f"left by another driver: {path}" for path in state.foreign_drivers)


def _nics(facts: Facts) -> Iterator[str]:
    """Yield a line for each network interface, then for each port of an InfiniBand or RoCE adapter."""
    for nic in facts.nics.values():
        speed = f"{nic.speed} Mbit/s" if nic.speed else "speed not known"
        addresses = " ".join(nic.addresses) or "no address"
        yield f"{nic.name} {nic.kind} {nic.state}, {speed}, MTU {nic.mtu}, {nic.driver or '-'}, {addresses}"
    for hca in facts.hcas:
        yield f"{hca.name} port {hca.port} {hca.link_layer} {hca.state}, {hca.rate}"


def _machine(facts: Facts) -> Iterator[str]:
    """Yield one line with processors and memory; Missing if either is unknown."""
    cpu = facts.cpu
    yield f"{cpu.logical} x {cpu.model or facts.arch}, {facts.memory.total_mib} MiB"


def _use(facts: Facts) -> Iterator[str]:
    """Yield one line: the processes and containers that use a GPU, or that none does."""
    use = facts.gpu_use
    holders = [f"{name} ({pid})" for pid, name in use.processes.items()] + list(use.containers)
    yield ", ".join(holders) or "no process uses a GPU"


_LINES: dict[str, Callable[[Facts], Iterable[str]]] = {
    "system": lambda facts: [facts.os.name],
    "kernel": _kernel,
    "machine": _machine,
    "pci gpus": _on_the_bus,
    "driver": _driver,
    "nvidia-smi": lambda facts: describe_smi(facts.smi),
    "gpu use": _use,
    "packages": _packages,
    "network": _nics,
    "state": _state,
}

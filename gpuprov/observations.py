"""How a node's facts answer each expectation: one small reading a check, in the words of the expectation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuprov.expectations import CLOCKS_UNIT, FOREIGN_MODULES, PERSISTENCE_UNIT, Expectation
from gpuprov.facts import Facts, Missing
from gpuprov.probe.parse.gpu import Gpu
from gpuprov.probe.parse.modules import DiskModule

Observer = Callable[[Facts, Expectation], Any]
OBSERVERS: dict[str, Observer] = {}


def observes(check: str) -> Callable[[Observer], Observer]:
    """Register the reading for one check."""

    def register(observer: Observer) -> Observer:
        OBSERVERS[check] = observer
        return observer

    return register


@observes("system.os")
def _os(facts: Facts, expectation: Expectation) -> Any:
    full, major = facts.os.id + facts.os.version, facts.os.id + facts.os.major
    return expectation.expected if expectation.expected in (full, major) else full


@observes("system.arch")
def _arch(facts: Facts, expectation: Expectation) -> Any:
    return facts.arch


@observes("dpkg.consistent")
def _dpkg(facts: Facts, expectation: Expectation) -> Any:
    broken = [f"{package.name} {package.state}" for package in facts.packages.broken]
    return broken + ["dpkg was interrupted"] * facts.packages.interrupted


@observes("driver.packages")
def _packages(facts: Facts, expectation: Expectation) -> Any:
    return {name: facts.packages.version(name) for name in expectation.expected}


@observes("kernel.headers")
def _headers(facts: Facts, expectation: Expectation) -> Any:
    without = [kernel for kernel in _kernels(facts, expectation) if kernel not in facts.kernels.headers]
    return expectation.expected if not without else f"no headers for {', '.join(without)}"


@observes("driver.module_on_disk")
def _module_on_disk(facts: Facts, expectation: Expectation) -> Any:
    found = {kernel: _module(facts, kernel) for kernel in _kernels(facts, expectation)}
    wrong = {
        kernel: module.version if module else None
        for kernel, module in found.items()
        if module is None or module.version != expectation.expected
    }
    if not wrong:
        return expectation.expected
    return ", ".join(f"{version or 'none'} for kernel {kernel}" for kernel, version in wrong.items())


@observes("driver.module_flavour")
def _module_flavour(facts: Facts, expectation: Expectation) -> Any:
    modules = [_module(facts, kernel) for kernel in _kernels(facts, expectation)]
    flavours = {"open" if module.open else "proprietary" for module in modules if module}
    return expectation.expected if flavours == {expectation.expected} else ", ".join(sorted(flavours)) or None


@observes("driver.loaded")
def _loaded(facts: Facts, expectation: Expectation) -> Any:
    return facts.loaded_driver.version if facts.loaded_driver else None


@observes("driver.answers")
def _answers(facts: Facts, expectation: Expectation) -> Any:
    return facts.smi.error or expectation.expected


@observes("nouveau.blacklist")
def _blacklist(facts: Facts, expectation: Expectation) -> Any:
    shut = {**facts.modprobe.blacklisted, **facts.modprobe.disabled}
    return [name for name in expectation.expected if name in shut]


@observes("nouveau.loaded")
def _foreign(facts: Facts, expectation: Expectation) -> Any:
    return [name for name in FOREIGN_MODULES if name in facts.loaded_modules]


@observes("gpu.model")
def _model(facts: Facts, expectation: Expectation) -> Any:
    seen = sorted({device.id for device in facts.pci_gpus})
    return expectation.expected if set(seen) <= set(expectation.expected) else seen


@observes("gpu.count")
def _count(facts: Facts, expectation: Expectation) -> Any:
    return len(facts.pci_gpus)


@observes("gpu.visible")
def _visible(facts: Facts, expectation: Expectation) -> Any:
    return len(_gpus(facts))


@observes("gpu.persistence_unit")
def _persistence_unit(facts: Facts, expectation: Expectation) -> Any:
    return _enabled(facts, PERSISTENCE_UNIT)


@observes("gpu.persistence")
def _persistence(facts: Facts, expectation: Expectation) -> Any:
    return _on_every_gpu(facts, expectation.expected, lambda gpu: gpu.persistence_mode)


@observes("gpu.clocks_unit")
def _clocks_unit(facts: Facts, expectation: Expectation) -> Any:
    return _enabled(facts, CLOCKS_UNIT)


@observes("gpu.clocks")
def _clocks(facts: Facts, expectation: Expectation) -> Any:
    return _on_every_gpu(facts, expectation.expected, lambda gpu: _fixed_clocks(gpu, expectation.expected))


@observes("pins.hold")
def _holds(facts: Facts, expectation: Expectation) -> Any:
    return [name for name in expectation.expected if name in facts.packages.held]


@observes("pins.unattended")
def _unattended(facts: Facts, expectation: Expectation) -> Any:
    return [pattern for pattern in expectation.expected if pattern in facts.apt.unattended_blacklist]


def _kernels(facts: Facts, expectation: Expectation) -> list[str]:
    """The kernels that a module must fit: the named one, or the running one and the one that boots next."""
    if expectation.subject != "running":
        return [str(expectation.subject)]
    following = facts.kernels.next_boot
    return list(dict.fromkeys([facts.kernel, *([following] if following else [])]))


def _module(facts: Facts, kernel: str) -> DiskModule | None:
    """nvidia.ko for a kernel; Debian's own is called nvidia-current.ko."""
    modules = facts.disk_modules.get(kernel, {})
    return modules.get("nvidia") or modules.get("nvidia_current")


def _gpus(facts: Facts) -> tuple[Gpu, ...]:
    if facts.smi.error:
        raise Missing("smi", facts.smi.error)
    return facts.smi.gpus


def _enabled(facts: Facts, unit: str) -> str:
    known = facts.units.get(unit)
    if known is None or not known.exists:
        return "not installed"
    return "enabled" if known.enabled else known.file_state or "disabled"


def _on_every_gpu(facts: Facts, expected: Any, read: Callable[[Gpu], Any]) -> Any:
    """`expected` where every GPU has it, else what the odd ones have: `False on GPU 0, 3`."""
    odd: dict[str, list[str]] = {}
    for gpu in _gpus(facts):
        value = read(gpu)
        if value != expected:
            odd.setdefault(_words(value), []).append(str(gpu.index))
    return "; ".join(f"{value} on GPU {', '.join(where)}" for value, where in odd.items()) or expected


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name} {each}" for name, each in value.items())
    return {True: "on", False: "off", None: "not stated"}.get(value, str(value))


def _fixed_clocks(gpu: Gpu, expected: dict[str, int]) -> dict[str, int | None]:
    """Application clocks; of a GPU without them the clocks it runs at, which locking fixes."""
    fixed = gpu.application_clocks
    if fixed.graphics is None and fixed.memory is None:
        return {"graphics": gpu.clocks.graphics, "memory": expected["memory"]}
    return {"graphics": fixed.graphics, "memory": fixed.memory}

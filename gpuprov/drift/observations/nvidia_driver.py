"""Observations of the driver: module on disk, loaded module, nvidia-smi."""

from __future__ import annotations

from typing import Any

from gpuprov.drift.observations.registry import observes
from gpuprov.probe.facts import Facts
from gpuprov.probe.parse.modules import DiskModule
from gpuprov.roles import Expectation
from gpuprov.roles.nvidia_driver import FOREIGN_MODULES


@observes("kernel.headers", "system", "kernels")
def _headers(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected kernel if all kernels that count have headers, else those without as text."""
    without = [kernel for kernel in _kernels(facts, expectation) if kernel not in facts.kernels.headers]
    return expectation.expected if not without else f"no headers for {', '.join(without)}"


@observes("driver.module_on_disk", "system", "kernels", "disk_modules")
def _module_on_disk(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected version if every kernel that counts has such a module, else the others as text."""
    found = {kernel: _module(facts, kernel) for kernel in _kernels(facts, expectation)}
    wrong = {
        kernel: module.version if module else None
        for kernel, module in found.items()
        if module is None or module.version != expectation.expected
    }
    if not wrong:
        return expectation.expected
    said = (
        f"{version or 'none'} for kernel {kernel}{_role(facts, kernel)}" for kernel, version in wrong.items()
    )
    return ", ".join(said)


@observes("driver.module_flavour", "system", "kernels", "disk_modules")
def _module_flavour(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected flavour if all modules on disk have it, else the flavours found, or None."""
    modules = [_module(facts, kernel) for kernel in _kernels(facts, expectation)]
    flavours = {"open" if module.open else "proprietary" for module in modules if module}
    return expectation.expected if flavours == {expectation.expected} else ", ".join(sorted(flavours)) or None


@observes("module.signature", "system", "kernels", "disk_modules")
def _signature(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected signature if all NVIDIA modules on disk have it, else the others as text.

    None if there is no NVIDIA module.
    """
    seen = {
        (module.signature or "unsigned", kernel)
        for kernel in _kernels(facts, expectation)
        for module in facts.disk_modules.get(kernel, {}).values()
        if module.path.rpartition("/")[2].startswith("nvidia")
    }
    wrong = sorted(
        f"{signature} for kernel {kernel}" for signature, kernel in seen if signature != expectation.expected
    )
    return ", ".join(wrong) or (expectation.expected if seen else None)


@observes("driver.loaded", "modules")
def _loaded(facts: Facts, expectation: Expectation) -> Any:
    """Return the version of the loaded driver, or None."""
    return facts.loaded_driver.version if facts.loaded_driver else None


@observes("driver.answers", "smi")
def _answers(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected value if nvidia-smi answers, else its error."""
    return facts.smi.error or expectation.expected


@observes("nouveau.blacklist", "system", "modprobe")
def _blacklist(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected modules that modprobe must not load: blacklisted or disabled."""
    shut = {**facts.modprobe.blacklisted, **facts.modprobe.disabled}
    return [name for name in expectation.expected if name in shut]


@observes("nouveau.loaded", "modules")
def _foreign(facts: Facts, expectation: Expectation) -> Any:
    """Return the loaded modules among `FOREIGN_MODULES`."""
    return [name for name in FOREIGN_MODULES if name in facts.loaded_modules]


def _kernels(facts: Facts, expectation: Expectation) -> list[str]:
    """Return the kernels that a module must match: the stated one, else the running, next, held back ones."""
    return list(facts.kernels.counting) if expectation.subject == "running" else [str(expectation.subject)]


def _role(facts: Facts, kernel: str) -> str:
    """Return a note about a kernel that boots next or is held back; empty for others."""
    kernels = facts.kernels
    if kernel == kernels.held_back:
        return f" (held back: {kernels.next_boot} boots next)"
    if kernel == kernels.next_boot != kernels.running:
        return f" (boots next: {kernels.next_boot_reason})"
    return ""


def _module(facts: Facts, kernel: str) -> DiskModule | None:
    """Return nvidia.ko of a kernel on disk, None if it has none; Debian's own is called nvidia-current.ko."""
    modules = facts.disk_modules.get(kernel, {})
    return modules.get("nvidia") or modules.get("nvidia_current")

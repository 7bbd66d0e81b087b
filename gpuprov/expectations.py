"""The lock's statements, one by one: what a node of a group is expected to be.

Each has an id that drift and verify share, the value, the role that mends it, and whether it takes a
reboot to come true.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gpuprov.lock import LockedGroup

Severity = Literal["error", "warning"]

CLOCKS_UNIT = "gpuprov-gpu-clocks.service"
PERSISTENCE_UNIT = "nvidia-persistenced.service"
FOREIGN_MODULES = ("nouveau", "nova_core")


@dataclass(frozen=True, slots=True)
class Expectation:
    """One checkable statement.

    `role` is None where no role can mend it: a missing GPU, or what only a reboot (`reboot`) brings.
    A mapping or a list in `expected` is compared item by item, and only items that
    differ are reported. What `needs_driver` cannot be observed while nvidia-smi has no answer.
    """

    check: str
    expected: Any
    role: str | None
    reboot: bool = False
    severity: Severity = "error"
    needs_driver: bool = False
    subject: str | None = None
    """What the statement is about, where the id does not say: the kernel of a module."""


def expectations(group: LockedGroup) -> list[Expectation]:
    """Everything that the lock says of one node of a group, in the order in which it is brought about."""
    return [*_system(group), *_driver(group), *_gpus(group), *_settings(group), *_pins(group)]


def _system(group: LockedGroup) -> list[Expectation]:
    return [
        Expectation("system.os", group.os, None),
        Expectation("system.arch", group.arch, None),
        Expectation("dpkg.consistent", [], "preflight"),
    ]


def _driver(group: LockedGroup) -> list[Expectation]:
    driver = group.components.driver
    role = "nvidia_driver"
    kernel = group.setting("kernel") or "running"
    return [
        Expectation("driver.packages", driver.closure, role),
        Expectation("kernel.headers", kernel, role, subject=kernel),
        Expectation("driver.module_on_disk", driver.version, role, subject=kernel),
        Expectation("driver.module_flavour", driver.module, role, subject=kernel),
        Expectation("nouveau.blacklist", list(FOREIGN_MODULES), role),
        Expectation("nouveau.loaded", [], None, reboot=True),
        Expectation("driver.loaded", driver.version, None, reboot=True),
        Expectation("driver.answers", True, None, reboot=True),
    ]


def _gpus(group: LockedGroup) -> list[Expectation]:
    hardware = group.hardware
    return [
        Expectation("gpu.model", hardware.gpu_pci_ids, None),
        Expectation("gpu.count", hardware.gpu_count, None),
        Expectation("gpu.visible", hardware.gpu_count, None, reboot=True, needs_driver=True),
    ]


def _settings(group: LockedGroup) -> list[Expectation]:
    role = "gpu_settings"
    stated = []
    persistence = group.setting("persistence")
    if persistence is not None:
        unit = "enabled" if persistence else "disabled"
        stated += [
            Expectation("gpu.persistence_unit", unit, role),
            Expectation("gpu.persistence", persistence, role, needs_driver=True),
        ]
    clocks = group.setting("clocks")
    if clocks is not None:
        stated += [
            Expectation("gpu.clocks_unit", "enabled", role),
            Expectation("gpu.clocks", clocks, role, needs_driver=True),
        ]
    return stated


def _pins(group: LockedGroup) -> list[Expectation]:
    held = sorted(name for _, component in group.components.each() for name in component.closure)
    return [
        Expectation("pins.hold", held, "package_pins"),
        Expectation("pins.unattended", group.components.driver.hold_patterns, "package_pins"),
    ]

"""Expectations that an image cannot show before the first boot of a machine made from it."""

from __future__ import annotations

from collections.abc import Iterable

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import APPLIED_BY
from gpuprov.roles.table import BY_NAME, UNITS

HARDWARE, BOOT, SERVICES = "the machine's hardware", "a boot of its own", "running services"
KERNEL, DRIVES, LOGIN = "the machine's own kernel", "the machine's drives", "a login that proves it"
AT_FIRST_BOOT = {"storage": DRIVES, "ssh_hardening": LOGIN, "firewall": LOGIN}
"""Role → the reason to postpone all of it."""
OF_HARDWARE = ("gpu.model", "gpu.count", "gpu.nvswitches", "secure_boot.state")
OF_SERVICES = (
    "health.verdict",
    "docker.config",  # a drop-in of the unit could override it
    "docker.daemon",
    "docker.limits",
    "containerd.config",
    "containerd.plugin",
    "podman.limits",
    "ssh.logins",
    "ssh.loaded",
    "ssh.offered",
    "driver.unpackaged",  # depends on the library path of services
    "cuda.unpackaged",
    "cudnn.unpackaged",
    "nccl.unpackaged",
    "cuda.environment",  # depends on the environment of services
    "nccl.configuration",
    "tuning.environment",
    "tuning.debugging",
    "tuning.limits",
    "tuning.service_limits",
)
OF_KERNEL = ("tuning.sysctl", "tuning.hugepages", "tuning.governor")


def waits_for(expectation: Expectation) -> str | None:
    """Return the event that a statement waits for; None if an image shows it."""
    check = expectation.check
    if expectation.role in AT_FIRST_BOOT:
        return AT_FIRST_BOOT[expectation.role]
    if expectation.needs_driver or check in OF_HARDWARE or check.startswith("hardware."):
        return HARDWARE
    if expectation.reboot:
        return BOOT
    if check in UNITS or check in APPLIED_BY or check in OF_SERVICES:
        return SERVICES
    return KERNEL if check in OF_KERNEL else None


def postponed_roles(group: LockedGroup) -> dict[str, str]:
    """Return role → the event it waits for, for roles with settings of the group that no image runs."""
    return {
        role: what
        for role, what in AT_FIRST_BOOT.items()
        if any(group.setting(each) is not None for each in BY_NAME[role].settings)
    }


def postponed(expected: Iterable[Expectation]) -> dict[str, list[str]]:
    """Return the event to wait for → the ids of the checks that an image cannot show before it."""
    found: dict[str, list[str]] = {}
    for each in expected:
        if what := waits_for(each):
            found.setdefault(what, []).append(each.check)
    return found

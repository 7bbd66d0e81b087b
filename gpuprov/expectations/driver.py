"""The driver: packages, module on disk, module loaded, nothing foreign."""

from __future__ import annotations

from gpuprov.expectations.statement import Expectation
from gpuprov.model.lock import LockedGroup

FOREIGN_MODULES = ("nouveau", "nova_core")


def driver(group: LockedGroup) -> list[Expectation]:
    """The driver of the lock, on disk and in the kernel."""
    driver = group.components.driver
    role = "nvidia_driver"
    kernel = group.setting("kernel") or "running"
    headers = Expectation("kernel.headers", kernel, role, subject=kernel)
    return [
        Expectation("driver.packages", driver.closure, role),
        *([headers] if driver.compiled else []),
        Expectation("driver.module_on_disk", driver.version, role, subject=kernel),
        Expectation("driver.module_flavour", driver.module, role, subject=kernel),
        Expectation("nouveau.blacklist", list(FOREIGN_MODULES), role),
        Expectation("nouveau.loaded", [], None, reboot=True),
        Expectation("driver.loaded", driver.version, None, reboot=True),
        Expectation("driver.answers", True, None, reboot=True),
    ]

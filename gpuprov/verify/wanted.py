"""What the tests compare with: the lock's expectations, and proofs that follow from them.

A proof states nothing new: it is another way to see that an expectation is really so, one that needs a
command on the node (a simulated upgrade, four versions side by side) and so belongs to this witness alone.
"""

from __future__ import annotations

from gpuprov.expectations import Expectation, expectations
from gpuprov.lock import LockedGroup


def wanted(group: LockedGroup) -> dict[str, Expectation]:
    """Everything to be checked on a node of the group, by check id, in the order of bringing it about."""
    return {each.check: each for each in [*expectations(group), *proofs(group)]}


def proofs(group: LockedGroup) -> list[Expectation]:
    """The proofs for one group; `driver.dkms` only where the module is built on the node."""
    driver = group.components.driver
    versions = dict.fromkeys(("package", "module on disk", "module loaded", "nvidia-smi"), driver.version)
    built_here = "dkms" in driver.module_package
    dkms = [Expectation("driver.dkms", {driver.version: "installed"}, "nvidia_driver")]
    return [
        Expectation("driver.library", driver.version, "nvidia_driver"),
        Expectation("driver.four_versions", versions, "nvidia_driver", reboot=True),
        *(dkms if built_here else []),
        Expectation("nouveau.initramfs", [], "nvidia_driver"),
        Expectation("pins.simulated", [], "package_pins"),
        Expectation("reboot.not_required", [], None, reboot=True),
    ]


def to_mend(expectation: Expectation, node: str) -> str:
    """What to type, or do, when the expectation does not hold on a node."""
    if expectation.reboot:
        return f"gpuprov apply --reboot -l {node}"
    if expectation.role:
        return f"gpuprov apply -l {node}"
    return f"look at {node} itself: no role can mend this"

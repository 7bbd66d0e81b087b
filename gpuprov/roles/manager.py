"""Package managers of the systems that a lock can name."""

from __future__ import annotations

from typing import Literal

from gpuprov.model.lock import LockedGroup

Manager = Literal["apt", "dnf"]

MANAGERS: dict[str, Manager] = {
    "debian": "apt",
    "ubuntu": "apt",
    "rhel": "dnf",
    "amzn": "dnf",
    "fedora": "dnf",
    "azl": "dnf",
    "cm": "dnf",
    "kylin": "dnf",
}
"""Name of a system without its release → its package manager, as in the catalog's table of systems."""


def manager(group: LockedGroup) -> Manager:
    """Return the package manager of a group's system; apt if the name is not known."""
    return MANAGERS.get(group.os.rstrip("0123456789."), "apt")

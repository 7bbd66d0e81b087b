"""Package managers of the systems that a lock can name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from gpuprov.catalog.platforms import platform
from gpuprov.model.lock import LockedGroup

Manager = Literal["apt", "dnf"]
"""Package managers that the roles know."""
OWN_FILES: dict[Manager, str] = {by: platform(by).repository_file or "" for by in get_args(Manager)}
"""Package manager → the file of sources that the role `repositories` writes."""


OTHER_NAMES: dict[str, dict[Manager, str]] = {"iproute2": {"dnf": "iproute"}}
"""Package's name in Debian and Ubuntu → its name for other package managers, if it differs."""


def package_names(names: Iterable[str], by: Manager) -> list[str]:
    """Return the names that packages of Debian and Ubuntu have for a package manager."""
    return [OTHER_NAMES.get(name, {}).get(by, name) for name in names]


def manager(group: LockedGroup) -> Manager:
    """Return the package manager of a group's system.

    apt also for a system of zypper, whose nodes preflight refuses.

    Raises:
        InvalidInput: the system has no row in the table of platforms.
    """
    return "dnf" if platform(group.os).manager == "dnf" else "apt"

"""Package managers of the systems that a lock can name."""

from __future__ import annotations

from typing import Literal, get_args

from gpuprov.catalog.platforms import platform
from gpuprov.model.lock import LockedGroup

Manager = Literal["apt", "dnf"]
"""Package managers that the roles know."""
OWN_FILES: dict[Manager, str] = {by: platform(by).repository_file or "" for by in get_args(Manager)}
"""Package manager → the file of sources that the role `repositories` writes."""


def manager(group: LockedGroup) -> Manager:
    """Return the package manager of a group's system.

    apt also for a system of zypper, whose nodes preflight refuses.

    Raises:
        InvalidInput: the system has no row in the table of platforms.
    """
    return "dnf" if platform(group.os).manager == "dnf" else "apt"

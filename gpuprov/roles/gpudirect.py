"""Variables and expectations of GPUDirect: DOCA-OFED, nvidia-fs, and the module for peer memory."""

from __future__ import annotations

from typing import Any

from gpuprov.model.lock import LockedGroup
from gpuprov.model.settings.gpudirect import PEERMEM
from gpuprov.roles.components import closure, packages, unwanted, version
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import NOT_APPLIED, NOT_BY_SYSTEMD, fails

ROLE = "gpudirect"
PEERMEM_MODULE, FS_MODULE = "nvidia_peermem", "nvidia_fs"

OVERRULED = (
    *fails("doca_ofed", "pins.hold", "APT::Ignore-Hold in apt.conf.d"),
    *fails("gds", "gpudirect.at_boot", "a blacklist in modprobe.d"),
    *fails("peer_memory", "gpudirect.at_boot", "a blacklist in modprobe.d", NOT_APPLIED, NOT_BY_SYSTEMD),
)


def modules(group: LockedGroup) -> list[str]:
    """Return the modules that a boot loads after NVIDIA's driver, in their order."""
    wanted = [PEERMEM_MODULE] if group.setting("peer_memory") == PEERMEM else []
    return wanted + ([FS_MODULE] if group.components.gds else [])


def managed(group: LockedGroup) -> bool:
    """Return whether the lock states anything of the role."""
    parts = group.components
    stated = group.setting("peer_memory") is not None
    return stated or parts.gds is not None or parts.doca_ofed is not None


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return the expected packages, and the modules that are loaded at boot, and now after a reboot."""
    found = [
        *packages("doca_ofed.packages", group.components.doca_ofed, ROLE),
        *packages("gds.packages", group.components.gds, ROLE),
    ]
    if not managed(group):
        return found
    wanted = modules(group)
    found.append(Expectation("gpudirect.at_boot", wanted, ROLE))
    if wanted:
        found.append(Expectation("gpudirect.loaded", wanted, None, reboot=True, needs_driver=True))
    return found


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return versions, packages and unwanted packages, and the modules to load at boot; these are None if the
    lock states nothing of the role.
    """
    parts = group.components
    return {
        "gpudirect_doca_version": version(parts.doca_ofed),
        "gpudirect_doca_packages": closure(parts.doca_ofed),
        "gpudirect_doca_unwanted": unwanted(group, "doca_ofed"),
        "gpudirect_fs_version": version(parts.gds),
        "gpudirect_fs_packages": closure(parts.gds),
        "gpudirect_fs_unwanted": unwanted(group, "gds"),
        "gpudirect_modules": modules(group) if managed(group) else None,
    }

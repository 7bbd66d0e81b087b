"""Variables of `preflight`."""

from __future__ import annotations

from typing import Any

from gpuprov.model.lock import LockedGroup


def preflight(group: LockedGroup) -> dict[str, Any]:
    """The system that was locked, and whether Secure Boot needs a key of DKMS there."""
    return {
        "preflight_os": group.os,
        "preflight_arch": group.arch,
        "preflight_compiles_module": group.components.driver.compiled,
    }

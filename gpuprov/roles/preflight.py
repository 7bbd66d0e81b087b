"""Variables and expectations of a node's system and its package manager."""

from __future__ import annotations

from typing import Any

from gpuprov.catalog.platforms import beside, system_of, tested
from gpuprov.model.lock import LockedGroup
from gpuprov.roles.expectation import Expectation


def is_system(expected: str, identity: str, version: str) -> bool:
    """Return whether a node is the system that a lock states: Rocky Linux 9.6 is `rhel9`.

    Args:
        expected: name in the catalog; of some systems with the major release only.
        identity: ID in the node's os-release.
        version: VERSION_ID there.
    """
    name = system_of(identity)
    return expected in (name + version, name + version.partition(".")[0])


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return the expected system and architecture, and no inconsistent package."""
    return [
        Expectation("system.os", group.os, None),
        Expectation("system.arch", group.arch, None),
        Expectation("dpkg.consistent", [], "preflight"),
    ]


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return the locked system and architecture, whether the driver compiles modules, the systems that are
    accepted, and the fingerprint that Secure Boot needs.

    Also the packages that the driver needs from repositories that the system does not enable at first. The
    fingerprint is left out if the fleet does not sign, or if each node compiles its own modules.
    """
    driver = group.components.driver
    signed = group.secure_boot if driver.shared else None
    needed = beside(group.os, group.arch) if driver.compiled else []
    return {
        "preflight_os": group.os,
        "preflight_arch": group.arch,
        "preflight_systems": tested(),
        "preflight_compiles_module": driver.compiled,
        **({"preflight_beside": needed} if needed else {}),
        **({"preflight_certificate": signed.fingerprint} if signed else {}),
    }

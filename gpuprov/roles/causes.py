"""Expectations that a role or a reboot does not correct, and what corrects them."""

from __future__ import annotations

from collections.abc import Collection

from gpuprov.catalog.platforms import platform
from gpuprov.roles.manager import OWN_FILES

DRIVER_FILES = ("driver.library", "driver.unpackaged")
"""Checks of the libraries that programs load to reach the driver. The next boot loads the same ones."""
KERNEL = ("driver.loaded", "nouveau.loaded", "reboot.not_required")
"""Checks that a reboot corrects whichever libraries are installed."""

REINSTALL = [
    f"`{(platform(by).reinstall or '').format(package='NAME', version='VERSION')}`" for by in OWN_FILES
]
"""Commands that bring back a package's files, one for each package manager."""
BY_HAND = {
    "pins.files": f"on the node, bring back the package's files with {' or '.join(REINSTALL)}, end a"
    " diversion with dpkg-divert, or state another mode with dpkg-statoverride",
    "pins.candidates": "on the node, remove that preference",
}
"""Check → what a person has to do, as its role changes no files and preferences of others."""
WITHOUT_ROLE = dict.fromkeys(
    ("ssh.logins", "ssh.pam", "ssh.loaded"),
    "correct the file that `gpuprov drift` names and reload sshd, or state settings: {ssh: {}} in fleet.yml",
)
"""Check → what a person has to do, if the lock states no settings for a role."""


def causes(check: str, failed: Collection[str]) -> list[str]:
    """Return which of a node's failed checks explain why this one fails, although a reboot is its remedy.

    Empty if a reboot corrects it.
    """
    return [] if check in KERNEL else [each for each in failed if each in DRIVER_FILES and each != check]

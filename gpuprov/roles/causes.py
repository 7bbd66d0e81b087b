"""Expectations that fail because another one fails, for which a reboot would be proposed in vain."""

from __future__ import annotations

from collections.abc import Collection

DRIVER_FILES = ("driver.library", "driver.unpackaged")
"""Checks of the libraries that programs load to reach the driver. The next boot loads the same ones."""
KERNEL = ("driver.loaded", "nouveau.loaded", "reboot.not_required")
"""Checks that a reboot corrects whichever libraries are installed."""


def causes(check: str, failed: Collection[str]) -> list[str]:
    """Return which of a node's failed checks explain why this one fails, although a reboot is its remedy.

    Empty if a reboot corrects it.
    """
    return [] if check in KERNEL else [each for each in failed if each in DRIVER_FILES and each != check]

"""Ways to override a setting or a component, and the reaction of apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Answer = Literal["mends", "fails"]
BY_HAND = "systemctl disable, stop or mask by hand"
COMMAND = "a drop-in of the unit with another command"
DROP_IN = "any other drop-in of the unit"
OWN_FILE = "another command in gpuprov's own unit file"
OTHER_PROGRAM = "a drop-in of the unit that starts another program"
CONDITION = "a drop-in of the unit with conditions that fail"
OTHER_FILE = "a file of the unit's name in /etc/systemd/system or /run/systemd/system"
UNMET = "enabled, with conditions that fail"
"""State of a unit that is enabled, and that systemd does not start."""
APPLIED_BY: Mapping[str, tuple[str, ...]] = {
    "tuning.sysctl_at_boot": ("systemd-sysctl.service",),
    "gpudirect.at_boot": ("systemd-modules-load.service",),
    "scratch.read_ahead_at_boot": ("systemd-udevd.service", "systemd-udev-trigger.service"),
}
"""Check of settings that are applied at boot → the units of systemd that apply them."""
NOT_APPLIED = "systemd's unit that applies it, masked or with conditions that fail"
NOT_BY_SYSTEMD = "systemd's unit that applies it, replaced or with another program"


@dataclass(frozen=True, slots=True)
class Overruling:
    """One way to override gpuprov's value.

    `of` is a key of `settings` or the name of a component, `check` the expectation that detects it, `by` what
    overrides. Apply corrects it (the role sets the value again), or fails for that node and reports
    the place: a file that gpuprov did not write is neither changed nor removed.
    """

    of: str
    check: str
    by: str
    apply: Answer


def fails(of: str, check: str, *by: str) -> tuple[Overruling, ...]:
    """Return ways that apply does not correct: it fails and reports the place."""
    return tuple(Overruling(of, check, each, "fails") for each in by)


def mends(of: str, check: str, *by: str) -> tuple[Overruling, ...]:
    """Return ways that apply corrects."""
    return tuple(Overruling(of, check, each, "mends") for each in by)

"""Variables and expectations of package holds, and of the held packages' files."""

from __future__ import annotations

import re
from typing import Any

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.manager import manager
from gpuprov.roles.overruling import fails

OVERRULED = (
    *fails("packages", "pins.hold", "APT::Ignore-Hold in apt.conf.d"),
    *fails("packages", "pins.unattended", "#clear in a later file of apt.conf.d"),
    *fails(
        "packages",
        "pins.candidates",
        "a preference for another version, by name, pattern or release",
        "APT::Default-Release",
    ),
    *fails(
        "packages",
        "pins.files",
        "a file of a package that was removed",
        "a file of a package that was truncated or replaced, also by a link",
        "dpkg-divert by hand",
        "chmod or chown of a file of a package",
    ),
)


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return the names of packages to hold, and the patterns that unattended upgrades must not change.

    The files of a held package have to be the package's. With apt, no other version may be preferred; dnf has
    no preferences, and a lock leaves no other version.
    """
    preferred = Expectation("pins.candidates", [], "package_pins")
    return [
        Expectation("pins.hold", sorted(_held(group)), "package_pins"),
        Expectation("pins.unattended", _patterns(group), "package_pins"),
        *([preferred] if manager(group) == "apt" else []),
        Expectation("pins.files", [], "package_pins"),
    ]


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return the held packages with their versions, and the patterns of names for unattended upgrades."""
    return {"package_pins_packages": _held(group), "package_pins_patterns": _patterns(group)}


def _held(group: LockedGroup) -> dict[str, str]:
    """Return package → version of all packages in the lock."""
    closures = (component.closure for _, component in group.components.each())
    return {name: full for closure in closures for name, full in closure.items()}


def _patterns(group: LockedGroup) -> list[str]:
    """Return the hold patterns of all components in the lock, in their order and each once.

    Unattended upgrades must not change packages whose names match one. For dnf they are shell patterns.
    """
    found = (each for _, component in group.components.each() for each in component.hold_patterns)
    patterns = list(dict.fromkeys(found))
    return [_shell_pattern(each) for each in patterns] if manager(group) == "dnf" else patterns


def _shell_pattern(expression: str) -> str:
    r"""Return `libnccl*` of `libnccl.*$`, and `g++` of `g\+\+$`: the reverse of what the lock has."""
    plain = expression.removesuffix("$").replace(".*", "*")
    return re.sub(r"\\(.)|\.", lambda found: found[1] or "?", plain)

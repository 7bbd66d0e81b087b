"""Commands for the packages of a machine, by the table of platforms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuprov.doctor.examination import Examination
from gpuprov.errors import InvalidInput
from gpuprov.untrusted import ShellLine, shell, shell_words

if TYPE_CHECKING:
    from gpuprov.catalog.records import Platform

MANAGERS = {"dpkg": "apt", "rpm": "dnf"}
"""Database of packages → the row of the table for a system that is not in it."""


def platform_of(seen: Examination) -> Platform:
    """Return how the machine's system works; of an unknown system that of its package manager."""
    from gpuprov.catalog.platforms import platform

    try:
        return platform(seen.os.id + seen.os.version)
    except InvalidInput:
        return platform(MANAGERS.get(seen.packages.manager, "apt"))


def install(seen: Examination, *names: str) -> ShellLine:
    """Return the command that installs packages by name; `NAME=VERSION` for an exact or partial version."""
    row = platform_of(seen)
    exact = (name.partition("=") for name in names)
    words = [name + (row.exact.format(version=version) if version else "") for name, _, version in exact]
    return shell("sudo {} install {}", shell_words([row.manager]), shell_words(words))


def headers(seen: Examination, kernel: str) -> ShellLine:
    """Return the command that installs the headers of a kernel."""
    from gpuprov.catalog.platforms import headers_package

    return install(seen, headers_package(platform_of(seen), kernel))

# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""dnf's version locks. Runs on nodes: Python 3.6 or newer and its standard library."""

import configparser
import fnmatch
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

SETTINGS = "/etc/dnf/plugins/versionlock.conf"
"""Settings of dnf's plugin; its package brings them."""
LIST = "/etc/dnf/plugins/versionlock.list"
"""The plugin's list, unless its settings name another."""
WILDCARD = re.compile(r"[*?\[]")
OFF = ("0", "no", "false", "off")


def text_of(path: str) -> "str | None":
    """Return the text of a file; None if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def place() -> "str | None":
    """Return the path of the list in effect; None without the plugin, or if its settings disable it."""
    content = text_of(SETTINGS)
    if content is None:
        return None
    settings = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        settings.read_string(content)
    except configparser.Error:
        return None
    stated = dict(settings.items("main")) if settings.has_section("main") else {}
    return None if stated.get("enabled", "1").strip().lower() in OFF else stated.get("locklist", LIST).strip()


def locks() -> "list[str]":
    """Return the patterns of the list in effect, without comments and exclusions (`!pattern`)."""
    path = place()
    return patterns(text_of(path) or "") if path else []


def patterns(text: str) -> "list[str]":
    """Return the patterns in a list's text."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith(("#", "!"))]


def entry(name: str, version: str) -> str:
    """Return the line that locks a package: `nvidia-driver-cuda-3:580.95.05-1.el9.*`.

    Args:
        version: `epoch:version-release`; without an epoch it is 0.
    """
    return f"{name}-{version if ':' in version else '0:' + version}.*"


def is_locked(name: str, version: str, arch: str, locks: "Iterable[str]") -> bool:
    """Return whether one of the patterns is for this version of a package; `version` as in `entry`."""
    epoch, _colon, rest = version.rpartition(":")
    with_epoch = f"{name}-{epoch or 0}:{rest}"
    spellings = (name, f"{name}-{rest}", f"{name}-{rest}.{arch}", with_epoch, f"{with_epoch}.{arch}")
    return any(
        fnmatch.fnmatchcase(spelling, lock)
        for lock in locks
        if lock.startswith(name) or WILDCARD.search(lock[: len(name)])
        for spelling in spellings
    )

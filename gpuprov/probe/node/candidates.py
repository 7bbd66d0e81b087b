"""Collector of versions that apt prefers to the installed ones.

apt itself is asked, so that every preference, pattern and `APT::Default-Release` counts. A newer version from
a source of the same priority is no preference: that upgrade is prevented by the hold.
"""

import glob
import re

from gpuprov.probe.node.base import collector, lines_of, redact, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from gpuprov.probe.node.base import Values

    Row = tuple[str, str, int, str]
    Versions = dict[str, tuple[int, str]]

FORCED = 1000
"""Priority from which on apt installs a version even if that is a downgrade."""
PLACES = ("/etc/apt/preferences", "/etc/apt/preferences.d/*", "/etc/apt/apt.conf", "/etc/apt/apt.conf.d/*")
VERSION = re.compile(r" (?:\*\*\*|   ) (\S+) (-?\d+)(?: \(phased \d+%\))?\Z")
SOURCE = re.compile(r" +-?\d+ (?!/var/lib/dpkg/status\Z)(\S.*)\Z")


@collector(seconds=20)
def candidates(parameters: "Values") -> "Any":
    """Return the versions that apt prefers to those of held packages, and `path:line` of the preferences;
    raises as `run`.
    """
    names = parameters["held"]
    rows = list(_preferred(run("apt-cache", "policy", "--", *names, seconds=15))) if names else []
    return {"rows": rows, "places": _places({row[2] for row in rows}) if rows else []}


def _preferred(text: str) -> "Iterator[Row]":
    """Yield name, version, priority and source of the versions that apt would take by preference: of a higher
    priority than the installed one's, or from `FORCED` on if no source offers that.

    If a preference excludes all versions of an installed package, its version is `none`.
    """
    for name, installed, candidate, versions in _parsed(text):
        if candidate == "(none)" != installed:
            yield (name, "none", -1, "")
        elif candidate != installed and installed in versions and candidate in versions:
            (priority, source), (ours, offered) = versions[candidate], versions[installed]
            if priority > (ours if offered else FORCED - 1):
                yield (name, candidate, priority, redact(source))


def _parsed(text: str) -> "Iterator[tuple[str, str, str, Versions]]":
    """Yield name, installed version, candidate, and version -> (priority, first source) of each package in
    the output of `apt-cache policy`; the source is "" if no repository has the version.
    """
    for part in re.split(r"(?m)^(?=\S)", text):
        lines = part.splitlines()
        if len(lines) < 4:
            continue
        versions, last = {}, ""  # type: Versions, str
        for line in lines[3:]:
            head, source = VERSION.match(line), SOURCE.match(line)
            if head:
                last = head.group(1)
                versions[last] = (int(head.group(2)), "")
            elif source and last and not versions[last][1]:
                versions[last] = (versions[last][0], source.group(1))
        installed, candidate = (line.partition(": ")[2].strip() for line in lines[1:3])
        yield lines[0].rstrip(":"), installed, candidate, versions


def _places(priorities: "set[int]") -> "list[str]":
    """Return `path:line` of apt's configuration that states one of these priorities, or a release."""
    stated = "|".join(map(str, sorted(priorities)))
    pattern = re.compile(rf"(?i)\s*Pin-Priority:\s*(?:{stated})\Z|.*\bDefault-Release\b")
    return [
        place
        for each in PLACES
        for path in sorted(glob.glob(each))
        for place, line in lines_of(path)
        if pattern.match(line)
    ]

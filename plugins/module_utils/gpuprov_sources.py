# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sources of packages that are neither the lock's nor the distribution's. Runs on a node: Python 3.6 on."""

import glob
import re

from gpuprov_node import output

TARGETS = "$(REPO_URI)\t$(RELEASE)\t$(ORIGIN)\t$(SOURCESENTRY)\t$(FILENAME)"
UNSIGNED = re.compile(r"(?im)\b(?:trusted|allow-insecure)\s*[=:]\s*(?:yes|true|1)\b")
IN_URL = re.compile(r"(?<=://)[^/@\s]+@")
ARCHIVES = ("Debian", "Ubuntu")
NAMED_AT_MOST = 5
LISTED = '/usr/lib/apt/apt-helper cat-file "$1" | grep -m "$3" -F -x -e "$2"'


def offers(own: "list[str]", packages: "list[str]") -> "list[list]":
    """Sources that bring packages which the lock names, or that are NVIDIA's by their address.

    Rows of `file:number` as apt counts, address without credentials, the option that has apt take it without
    a signature or nothing, and some of the names; none of a source that was never read.

    Args:
        own: addresses of the lock's repositories, without a slash at the end.
    """
    rows = {}
    for uri, suite, origin, entry, path in targets():
        if uri.rstrip("/") in own:
            continue
        option = UNSIGNED.search(source_text(entry))
        if origin in ARCHIVES and not option:
            rows.pop((entry, suite), None)
            continue
        names = offered(path, packages)
        if names or re.search("nvidia", uri, re.I):
            rows[entry, suite] = [entry, IN_URL.sub("", uri), option.group(0) if option else "", names]
    return sorted(rows.values())


def targets() -> "list[list[str]]":
    """What apt reads packages from; first all of it as the files say, then with what Release files say."""
    found = []
    for options in (["--no-release-info"], []):
        listed = output("apt-get", "indextargets", *options, "--format", TARGETS, "Created-By: Packages")
        found += [line.split("\t") for line in listed.splitlines()]
    return [row for row in found if len(row) == len(TARGETS.split("\t"))]


def source_text(entry: str) -> str:
    """The text of a source as apt names it: `file:number` of the line (one-line) or stanza (deb822)."""
    path, _colon, number = entry.rpartition(":")
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return ""
    parts = text.splitlines()
    if path.endswith(".sources"):
        parts = [part for part in re.split(r"\n\s*\n", text) if re.search(r"(?im)^Types:", part)]
    return parts[int(number) - 1] if number.isdigit() and 0 < int(number) <= len(parts) else ""


def offered(path: str, packages: "list[str]") -> "list[str]":
    """Some of the packages that an index on disk has."""
    if not packages or not glob.glob(path + "*"):
        return []
    patterns = "\n".join("Package: " + name for name in packages)
    lines = output("sh", "-c", LISTED, "sh", path, patterns, str(NAMED_AT_MOST), seconds=10).splitlines()
    return sorted({line.partition(": ")[2] for line in lines})

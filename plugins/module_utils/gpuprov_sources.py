# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Package sources that are neither the lock's nor the distribution's. Runs on nodes: Python 3.6 or newer."""

import glob
import re

from gpuprov_node import answer, output

TARGETS = "$(REPO_URI)\t$(RELEASE)\t$(ORIGIN)\t$(SOURCESENTRY)\t$(FILENAME)"
UNSIGNED = re.compile(r"(?i)\b(trusted|allow-insecure)\s*[=:]\s*(yes|true|1|with|on|enable)\b")
"""Options with which apt accepts a source without a signature."""
IN_URL = re.compile(r"(?<=://)[^/@\s]+@")
"""User and password in a URL, with the `@`."""
ARCHIVES = ("Debian", "Ubuntu")
"""Origins in the Release files of the distribution's archives."""
NAMED_AT_MOST = 5
LISTED = f'/usr/lib/apt/apt-helper cat-file "$0" | LC_ALL=C grep -m {NAMED_AT_MOST} -ixEe "$1"'
"""Shell command that prints the first lines of an index, `$0`, that match a pattern, `$1`; in UTF-8 grep
takes ten times as long. apt reads a field's name in any case, and blanks around it and its value.
"""


def offers(own: "list[str]", packages: "list[str]", rewritten: str = "") -> "list[list]":
    """Return the sources that offer packages of the lock, or whose address has `nvidia` in it; sorted.

    A row has `file:number` as apt counts, the address without credentials, the option that makes apt accept
    the source unsigned (or an empty string), and up to `NAMED_AT_MOST` of the packages; none if the source
    was never read. The distribution's archives are left out, unless they are accepted unsigned.

    Args:
        own: addresses of the lock's repositories, without a slash at the end.
        packages: names of packages of the lock.
        rewritten: file whose sources do not count, as it is about to be written again.
    """
    rows, listed = {}, targets()
    # An archive's indexes have some 50 MB, and targets are first listed without origins.
    archives = {(entry, suite) for _, suite, origin, entry, _ in listed if origin in ARCHIVES}
    for uri, suite, _, entry, path in listed:
        if uri.rstrip("/") in own or entry.rpartition(":")[0] == rewritten:
            continue
        option = UNSIGNED.search(source_text(entry))
        if (entry, suite) in archives and not option:
            continue
        names = offered(path, packages)
        if names or re.search("nvidia", uri, re.I):
            rows[entry, suite] = [entry, IN_URL.sub("", uri), option.group(0) if option else "", names]
    return sorted(rows.values())


def targets() -> "list[list[str]]":
    """Return apt's index targets, each with the fields of `TARGETS`.

    First all of them as files state them, then those with data of Release files.

    Raises:
        Failed: apt-get fails, as with compressed indexes if a user has filled /tmp.
    """
    found = []
    for options in (["--no-release-info"], []):
        listed = answer("apt-get", "indextargets", *options, "--format", TARGETS, "Created-By: Packages")
        found += [line.split("\t") for line in listed.splitlines()]
    return [row for row in found if len(row) == len(TARGETS.split("\t"))]


def source_text(entry: str) -> str:
    """Return a source's text, by apt's name `file:number` of the line (one-line) or stanza (deb822).

    Empty if the file cannot be read or has no such line or stanza.
    """
    path, _colon, number = entry.rpartition(":")
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return ""
    parts = text.splitlines()
    if path.endswith(".sources"):
        parts = [part for part in re.split(r"\n\s*\n", text) if re.search(r"(?im)^Types:", part)]
    return parts[int(number) - 1] if number.isdecimal() and 0 < int(number) <= len(parts) else ""


def offered(path: str, packages: "list[str]") -> "list[str]":
    """Return names of packages that an index on the disk has, sorted, up to `NAMED_AT_MOST` lines of it.

    It is `?` for a field whose value is not in its line.

    Args:
        path: path of the index without the suffix of its compression; a missing one offers nothing.
    """
    if not packages or not glob.glob(path + "*"):
        return []
    names = "|".join(map(re.escape, packages))
    lines = output("sh", "-c", LISTED, path, rf"package\s*:\s*(|{names})\s*", seconds=10).splitlines()
    return sorted({line.partition(":")[2].strip() or "?" for line in lines})

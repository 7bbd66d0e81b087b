# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""dnf's repositories that are neither the lock's nor the distribution's, as `gpuprov_sources` for apt.

Runs on nodes: Python 3.6 or newer and its standard library.
"""

import configparser
import glob
import os
import re
from typing import NamedTuple

from gpuprov_locks import RUN_DNF
from gpuprov_node import answer, output
from gpuprov_sources import IN_URL, NAMED_AT_MOST
from gpuprov_versionlock import text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

FOLDER, SETTINGS = "/etc/yum.repos.d", "/etc/dnf/dnf.conf"
ON = ("1", "yes", "true", "on")
RELEASE_PACKAGES = re.compile(
    r"(?:(?:alma|centos|centos-stream|epel|oracle|redhat|rocky|system)(?:linux)?-(?:release|repos)[a-z0-9-]*"
    r"|(?:amazon-linux|kernel-livepatch)-repo-(?:cdn|s3))\Z"
)
"""Packages whose files state the repositories of a distribution, or of EPEL."""
GENERATED = ("/etc/yum.repos.d/redhat.repo",)
"""Files of RHEL's own repositories, which subscription-manager(8) writes."""
ID = re.compile(r"[A-Za-z0-9_.:-]+\Z")
"""Ids of repositories that dnf uses; it leaves out others, and `main`, and refuses them as options."""
FORM = "%{repoid}\t%{name}\n"


class Repository(NamedTuple):
    """A section of a file: its id, addresses without a slash at the end, and the options that count.

    Attributes:
        checked: whether dnf requires a signature of each package, by the repository or by `SETTINGS`.
        open_key: an address of `gpgkey` over http or ftp, where no certificate is checked; "" without one.
    """

    path: str
    line: int
    id: str
    urls: "tuple[str, ...]"
    enabled: bool
    unsigned: str
    open_key: str = ""
    checked: bool = True


def repositories(folder: str = FOLDER) -> "list[Repository]":
    """Return the repositories in dnf's files; a file that cannot be parsed has none."""
    return [each for path in sorted(glob.glob(folder + "/*.repo")) for each in _parsed(path)]


def _sections(text: str) -> configparser.ConfigParser:
    """Return the sections of a file; none of one that cannot be parsed."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        parser.clear()
    return parser


def _parsed(path: str) -> "Iterable[Repository]":
    """Yield the repositories in a file; none if it cannot be read or parsed."""
    text = text_of(path) or ""
    parser = _sections(text)
    usual = _sections(text_of(SETTINGS) or "").get("main", "gpgcheck", fallback="0")
    for name in parser.sections():
        values = dict(parser.items(name))
        stated = " ".join(values.get(key, "") for key in ("baseurl", "mirrorlist", "metalink"))
        urls = tuple(_spelled(url) for url in re.split(r"[\s,]+", stated) if url)
        line = text[: text.find(f"[{name}]")].count("\n") + 1
        signed = [values.get(key, "0").lower() in ON for key in ("gpgcheck", "repo_gpgcheck")]
        unsigned = "" if any(signed) else "gpgcheck=0"
        keys = re.split(r"[\s,]+", values.get("gpgkey", ""))
        open_key = next((key for key in keys if re.match(r"(?i)(http|ftp):", key)), "")
        enabled, checked = values.get("enabled", "1"), values.get("gpgcheck", usual)
        yield Repository(
            path, line, name, urls, enabled.lower() in ON, unsigned, open_key, checked.lower() in ON
        )


def _spelled(url: str) -> str:
    """Return an address with the machine's architecture, and without a slash at the end."""
    return re.sub(r"\$(?:basearch|arch)\b", os.uname().machine, url).rstrip("/")


def foreign(ours: str, urls: "list[str]", folder: str = FOLDER) -> "list[dict]":
    """Return the other files that name one of these repositories, and whether they name only these."""
    wanted = {url.rstrip("/") for url in urls}
    named = {}  # type: dict[str, set[str]]
    for each in repositories(folder):
        if each.path != ours:
            named.setdefault(each.path, set()).update(each.urls)
    return [{"path": path, "only_ours": all_ <= wanted} for path, all_ in named.items() if all_ & wanted]


def offers(own: "list[str]", packages: "list[str]", rewritten: str = "") -> "list[list]":
    """Return the enabled repositories that offer packages of the lock, or whose address has `nvidia` in it.

    Those of the distribution and of EPEL are left out, unless dnf accepts them unsigned. A row has
    `file:line`, the address without credentials, the option that makes dnf accept the repository unsigned (or
    an empty string), and up to `NAMED_AT_MOST` of the packages; none if it was never read.

    Args:
        own: addresses of the lock's repositories, without a slash at the end.
        packages: names of packages of the lock.
        rewritten: file whose repositories do not count, as it is about to be written again.
    """
    others = [
        each
        for each in repositories()
        if each.enabled and each.path != rewritten and not set(each.urls) & set(own)
    ]
    known = {path: is_of_distribution(path) for path in {each.path for each in others}}
    others = [each for each in others if each.unsigned or not known[each.path]]
    offered = _offered([each.id for each in others], packages)
    rows = []
    for each in others:
        address, names = " ".join(each.urls[:1]), sorted(offered.get(each.id, ()))
        if names or re.search("nvidia", address, re.I):
            place = f"{each.path}:{each.line}"
            rows.append([place, IN_URL.sub("", address), each.unsigned, names[:NAMED_AT_MOST]])
    return sorted(rows)


def is_of_distribution(path: str) -> bool:
    """Return whether a file states the repositories of the distribution or of EPEL, by its package."""
    owners = output("rpm", "-q", "--qf", "%{NAME}\n", "-f", path).split()
    return path in GENERATED or any(map(RELEASE_PACKAGES.match, owners))


def _offered(ids: "list[str]", packages: "list[str]") -> "dict[str, set[str]]":
    """Return id of a repository → those of the packages that it has, in dnf's cache and in any stream.

    Raises:
        Failed: dnf does not answer.
    """
    found = {}  # type: dict[str, set[str]]
    ids = [each for each in ids if ID.match(each) and each != "main"]
    if ids and packages:
        chosen = [f"--repo={each}" for each in ids]
        asked = ["--cacheonly", "--quiet", "--setopt=*.module_hotfixes=1", "--setopt=skip_if_unavailable=1"]
        listed = answer(*RUN_DNF, *asked, *chosen, "repoquery", "--qf", FORM.strip(), *packages, seconds=25)
        for line in listed.splitlines():
            identity, tab, name = line.partition("\t")
            if tab:
                found.setdefault(identity, set()).add(name)
    return found

"""State of a node for the role repositories, as one JSON document. Changes nothing.

Runs on the node, with the modules of plugins/module_utils. Argument:
{"ours": {"apt": path, "dnf": path}, "urls": [url, …], "packages": [name, …]}. With dnf `archive` is empty,
`offers` has other sources as for apt, and `key_files` are the role's own, also those of earlier locks.

    {"manager": "apt",
     "archive": [{"uri": "…/debian/", "suite": "bookworm", "component": "main", "signed_by": "…" or null}],
     "foreign": [{"path": "/etc/apt/sources.list.d/cuda-ubuntu2404-x86_64.list", "only_ours": true}],
     "offers": [["/etc/apt/sources.list.d/site.list:1", "file:/srv/extra/", "trusted=yes", ["libcuda1"]]],
     "key_files": []}
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import gpuprov_repos as repos
from gpuprov_apt import rejects_sources
from gpuprov_failures import Failed
from gpuprov_manager import package_manager
from gpuprov_node import answer
from gpuprov_sources import offers

ARCHIVES = ("Debian", "Ubuntu", "")  # "": apt has no Release file yet, before a node's first update
FOLDERS = (Path("/etc/apt"), Path("/etc/apt/sources.list.d"))
KEYS = Path("/etc/pki/rpm-gpg")
FORM = "$(REPO_URI)\t$(RELEASE)\t$(COMPONENT)\t$(SOURCESENTRY)\t$(ORIGIN)"


def targets() -> list[list[str]]:
    """Return address, suite, component, `file:number` and origin of each of apt's package indexes.

    Raises:
        Failed: apt fails, as without room in /tmp, which a user can fill, or where it rejects all sources.
    """
    options = ["--no-release-info"] if not any(Path("/var/lib/apt/lists").glob("*Release")) else []
    listed = answer("apt-get", "indextargets", *options, "--format", FORM, "Created-By: Packages")
    return [line.split("\t") for line in listed.splitlines()]


def signed_by(entry: str) -> str | None:
    """Return a source's Signed-By, by apt's name `file:number` of the line (one-line) or stanza (deb822);
    None without one.

    apt refuses the same repository with two different values, so that the role's file must repeat this one.
    """
    path, _colon, number = entry.rpartition(":")
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    if path.endswith(".sources"):
        stanzas = [part for part in re.split(r"\n\s*\n", text) if re.search(r"(?m)^Types:", part)]
        found = re.search(r"(?mi)^Signed-By:\s*(.+(?:\n[ \t].*)*)", stanzas[int(number) - 1])
    else:
        found = re.search(r"\[[^]]*signed-by=([^] ]+)", text.splitlines()[int(number) - 1])
    return found.group(1).strip() if found else None


def archive(ours: str) -> list[dict]:
    """Return the distribution's archive as this node's sources state it, without the role's own file."""
    found: list[dict] = []
    for uri, suite, component, entry, origin in targets():
        source = {"uri": uri, "suite": suite, "component": component}
        known = [{key: other[key] for key in source} for other in found]
        theirs = not entry.startswith(ours)
        if origin.replace("$(ORIGIN)", "") in ARCHIVES and theirs and source not in known:
            found.append({**source, "signed_by": signed_by(entry)})
    return found


def addresses(path: Path) -> list[str]:
    """Return the addresses in a file of sources, in either format, without disabled sources."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".sources":
        stanzas = re.split(r"\n\s*\n", text)
        used = [stanza for stanza in stanzas if not re.search(r"(?mi)^Enabled:\s*(no|false|0)\s*$", stanza)]
        named = [line for stanza in used for line in re.findall(r"(?mi)^URIs:\s*(.+)$", stanza)]
        return " ".join(named).split()
    return re.findall(r"(?m)^\s*deb(?:-src)?\s+(?:\[[^]]*\]\s+)?(\S+)", text)


def foreign(ours: str, urls: list[str], folders: tuple[Path, ...] = FOLDERS) -> list[dict]:
    """Return the other files that name one of these repositories, and whether they name only these."""
    wanted = {url.rstrip("/") for url in urls}
    found = []
    for path in [path for folder in folders for path in sorted(folder.glob("*.*"))]:
        if path.suffix in (".list", ".sources") and str(path) != ours:
            named = {uri.rstrip("/") for uri in addresses(path)}
            if named & wanted:
                found.append({"path": str(path), "only_ours": named <= wanted})
    return found


def of_apt(ours: str, urls: list[str], packages: list[str]) -> dict:
    """Return the state of apt's sources: the distribution's archive, other files that name the role's
    repositories, and sources that offer packages of the lock.

    Where apt rejects all sources, as if two contradict each other, it has no archive and offers nothing: the
    role checks its own file later.

    Raises:
        Failed: apt fails otherwise.
    """
    own = [url.rstrip("/") for url in urls]
    try:
        there, offered = archive(ours), offers(own, packages, rewritten=ours)
    except Failed:
        if not rejects_sources():
            raise
        there, offered = [], []
    return {"archive": there, "foreign": foreign(ours, urls), "offers": offered, "key_files": []}


def of_dnf(ours: str, urls: list[str], packages: list[str]) -> dict:
    """Return the state of dnf's repositories, with the keys of `of_apt`; the archive is empty."""
    own = [url.rstrip("/") for url in urls]
    return {
        "archive": [],
        "foreign": repos.foreign(ours, urls),
        "offers": repos.offers(own, packages, rewritten=ours),
        "key_files": sorted(map(str, KEYS.glob("gpuprov-*.asc"))),
    }


LOOKS = {"apt": of_apt, "dnf": of_dnf}


def main() -> None:
    """Print the node's package manager and the state of its sources as JSON."""
    question = json.loads(sys.argv[1])
    name = package_manager().NAME
    look = LOOKS[name](question["ours"][name], question["urls"], question["packages"])
    json.dump({"manager": name, **look}, sys.stdout)


if __name__ == "__main__":
    main()

"""Variables and expectations of package repositories."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from gpuprov.model.lock import LockedGroup, Repository
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.manager import Manager, manager
from gpuprov.roles.overruling import fails, mends

OVERRULED = (
    *mends("repositories", "repositories.sources", "another file that names the same repository"),
    *mends("repositories", "repositories.file", "a manual edit of gpuprov.sources"),
    *fails(
        "repositories",
        "repositories.foreign",
        "another source with packages of the lock, signed or not",
        "a source without a signature (trusted=yes, allow-insecure=yes) with packages of the lock",
    ),
)


ADDED = ": components that this node's own sources leave out"
"""End of the first line of an archive's part, after its id, in the role's template."""
IN_ANOTHER_FILE = "in another file"
"""Note about a repository that a file other than `OWN_FILES` states too."""
KEY_OF = "key of "
"""Name of a part, before a repository's id: dnf reads the key from a separate file."""
KEY_FILE = "/etc/pki/rpm-gpg/gpuprov-{}.asc"
"""Path of a repository's key on a node with dnf, by its id."""
UNSIGNED_PACKAGES = ("container-toolkit",)
"""Repositories whose rpms have no signature; their index has one, and the checksums of the packages."""
RELEASE_PACKAGES = (
    r"(?:(?:alma|centos|centos-stream|epel|oracle|redhat|rocky|system)(?:linux)?-(?:release|repos)[a-z0-9-]*"
    r"|(?:amazon-linux|kernel-livepatch)-repo-(?:cdn|s3))"
)
"""Names of packages whose files state the repositories of a distribution of rpms, or of EPEL."""
GENERATED = ("/etc/yum.repos.d/redhat.repo",)
"""Files of RHEL's own repositories, which subscription-manager(8) writes."""
HEAD = "# Written by gpuprov, role repositories: changes here are overwritten."


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return every repository of the lock with a URL, `URL SUITE`; no other may offer its packages.

    Also the parts of the file that states them, see `parts`.
    """
    named = sorted(
        f"{repository.url.rstrip('/')} {suite}"
        for name, repository in group.repositories.items()
        if repository.url
        for suite in suites(name, repository, manager(group))
    )
    role = "repositories"
    stated = [Expectation("repositories.sources", named, role)] if named else []
    return [
        *stated,
        Expectation("repositories.file", parts(group), role),
        Expectation("repositories.foreign", [], role),
    ]


def suites(name: str, repository: Repository, by: Manager) -> list[str]:
    """Return the suites of a repository with a URL: `/` of a flat one, and dnf's id for it."""
    return [f"gpuprov-{name}"] if by == "dnf" else repository.suites or ["/"]


def parts(group: LockedGroup) -> dict[str, str]:
    """Return the parts of the file of sources by name: `head`, ids of repositories, and `key of ID` of dnf.

    The value is the beginning of a part's SHA-256; of an archive that the node's own sources state it is the
    suites and components that may be added: `bookworm: contrib non-free`.
    """
    found = {"head": digest(HEAD)}
    for name, repository in group.repositories.items():
        added = f"{' '.join(repository.suites)}: {' '.join(sorted(repository.components))}"
        text = STANZAS[manager(group)](name, repository)
        found[name] = digest(text) if repository.url else added
        if repository.signed_by and manager(group) == "dnf":
            found[KEY_OF + name] = digest(repository.signed_by.strip())
    return found


def stanza(name: str, repository: Repository) -> str:
    """Return the lines of a repository with a URL, as the role's template writes them for apt."""
    lines = [
        f"# {name}",
        "Types: deb",
        f"URIs: {repository.url}",
        f"Suites: {' '.join(repository.suites or ['/'])}",
        *([f"Components: {' '.join(repository.components)}"] if repository.components else []),
        *(["Check-Valid-Until: no"] if repository.frozen else []),
    ]
    if repository.signed_by:
        key = "\n ".join(line or "." for line in repository.signed_by.strip().split("\n"))
        lines.append(f"Signed-By: {key}")
    return "\n".join(lines)


def section(name: str, repository: Repository) -> str:
    """Return the lines of a repository with a URL, as the role's template writes them for dnf."""
    signed = repository.signed_by is not None
    lines = [
        f"# {name}",
        f"[gpuprov-{name}]",
        f"name={name} of gpuprov's lock",
        f"baseurl={repository.url}",
        "enabled=1",
        f"gpgcheck={int(signed and name not in UNSIGNED_PACKAGES)}",
        f"repo_gpgcheck={int(signed)}",
        *([f"gpgkey=file://{KEY_FILE.format(name)}"] if signed else []),
        "module_hotfixes=0",
        "skip_if_unavailable=0",
    ]
    return "\n".join(lines)


STANZAS: dict[Manager, Callable[[str, Repository], str]] = {"apt": stanza, "dnf": section}
"""Package manager → the function that returns a repository's part of the role's file."""


def digest(text: str) -> str:
    """Return the first 16 digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return the repositories of the lock with their keys, and the packages that may only come from them."""
    return {
        "repositories_packages": sorted(
            {name for _, each in group.components.each() for name in each.closure}
        ),
        "repositories_sources": [
            {"id": name, **repository.model_dump(mode="json", exclude={"source"})}
            for name, repository in group.repositories.items()
        ],
    }

"""Variables and expectations of package repositories."""

from __future__ import annotations

from typing import Any

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import fails, mends

OVERRULED = (
    *mends("repositories", "repositories.sources", "another file that names the same repository"),
    *fails(
        "repositories",
        "repositories.foreign",
        "another source with packages of the lock, signed or not",
        "a source without a signature (trusted=yes, allow-insecure=yes) with packages of the lock",
    ),
)


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return every repository of the lock with a URL, `URL SUITE`; no other may offer its packages."""
    named = sorted(
        f"{repository.url.rstrip('/')} {suite}"
        for repository in group.repositories.values()
        if repository.url
        for suite in repository.suites or ["/"]
    )
    role = "repositories"
    stated = [Expectation("repositories.sources", named, role)] if named else []
    return [*stated, Expectation("repositories.foreign", [], role)]


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

"""Where packages come from."""

from __future__ import annotations

from typing import Any

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.expectation import Expectation


def expectations(group: LockedGroup) -> list[Expectation]:
    """Every repository of the lock that has an address: `URL SUITE`."""
    named = sorted(
        f"{repository.url.rstrip('/')} {suite}"
        for repository in group.repositories.values()
        if repository.url
        for suite in repository.suites or ["/"]
    )
    return [Expectation("repositories.sources", named, "repositories")] if named else []


def variables(group: LockedGroup) -> dict[str, Any]:
    """Every repository of the lock, with its key."""
    return {
        "repositories_sources": [
            {"id": name, **repository.model_dump(mode="json", exclude={"source"})}
            for name, repository in group.repositories.items()
        ]
    }

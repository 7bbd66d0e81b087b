"""Where packages come from."""

from __future__ import annotations

from gpuprov.expectations.statement import Expectation
from gpuprov.model.lock import LockedGroup


def repositories(group: LockedGroup) -> list[Expectation]:
    """Every repository of the lock that has an address: `URL SUITE`."""
    named = sorted(
        f"{repository.url.rstrip('/')} {suite}"
        for repository in group.repositories.values()
        if repository.url
        for suite in repository.suites or ["/"]
    )
    return [Expectation("repositories.sources", named, "repositories")] if named else []

"""Packages fetched ahead: what the new lock needs and what would undo it, on every node, before any moves."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from gpuprov.errors import GpuprovError, Refused
from gpuprov.model.lock import LockedGroup, Repository
from gpuprov.model.nodeset import fold
from gpuprov.upgrade.building import Ahead
from gpuprov.upgrade.context import UpgradeContext
from gpuprov.upgrade.remote import PACKAGES_S, act


def closure(group: LockedGroup) -> dict[str, str]:
    """Every locked package of a group at its version."""
    return {name: version for _, each in group.components.each() for name, version in each.closure.items()}


def fetch(context: UpgradeContext, names: Collection[str], canaries: Collection[str]) -> None:
    """Fetch on all nodes at once; apt checks every sum. Some build the module, too.

    Raises:
        Refused: a node cannot have something, or apt would remove what no lock names. Nothing has moved.
    """
    ahead, arguments = Ahead(context, names, canaries), {}
    for name in names:
        old, new = context.groups[name]
        building = [ahead.kernels(name), ahead.hands_out(name)]
        arguments[name] = [
            context.id,
            closure(new),
            sorted(closure(old)),
            sources(old, new) or None,
            *building,
        ]
    said: dict[str, list[str]] = {}
    answers = act(
        context.old,
        "fetch",
        arguments,
        context.options,
        holds=context.leases,
        seconds=PACKAGES_S,
        read=_built,
    )
    for name, answer in answers.items():
        if isinstance(answer, GpuprovError):
            said.setdefault(str(answer), []).append(name)
    if said:
        raise Refused("; ".join(f"{fold(nodes)}: {reason}" for reason, nodes in said.items()))
    try:
        ahead.take({name: answer for name, answer in answers.items() if isinstance(answer, list)})
    except GpuprovError as error:
        raise Refused(f"the module that was built cannot be kept: {error}") from None


def _built(told: Any) -> list[dict[str, Any]]:
    """What a node has built for others, as it tells it."""
    return [
        {"kernel": str(each["kernel"]), "path": str(each["path"]), "size": int(each["size"])}
        | {"sha256": str(each["sha256"])}
        for each in told["built"]
    ]


def sources(old: LockedGroup, new: LockedGroup) -> str:
    """Repositories of the new lock that the old one has not, as apt reads them (deb822-style)."""
    added = (each for name, each in new.repositories.items() if old.repositories.get(name) != each)
    return "\n".join("\n".join(stanza(each)) + "\n" for each in added if each.url)


def stanza(repository: Repository) -> Iterator[str]:
    """The lines of a repository in apt's sources (deb822-style)."""
    yield "Types: deb"
    yield f"URIs: {repository.url}"
    yield f"Suites: {' '.join(repository.suites) or '/'}"
    if repository.suites:
        yield f"Components: {' '.join(repository.components)}"
    if repository.frozen:
        yield "Check-Valid-Until: no"
    if repository.signed_by:
        yield "Signed-By:"
        yield from (f" {line or '.'}" for line in repository.signed_by.strip().splitlines())

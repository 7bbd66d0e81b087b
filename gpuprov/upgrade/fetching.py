"""Packages of the new lock and of a rollback, fetched on every node before any node moves."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from gpuprov.errors import GpuprovError, Refused
from gpuprov.model.lock import LockedGroup, Repository
from gpuprov.model.nodeset import fold
from gpuprov.roles.manager import manager
from gpuprov.roles.repositories import KEY_FILE, section
from gpuprov.upgrade.building import Ahead
from gpuprov.upgrade.context import UpgradeContext
from gpuprov.upgrade.remote import PACKAGES_S, act


def closure(group: LockedGroup) -> dict[str, str]:
    """Return all locked packages of a group with their versions."""
    return {name: version for _, each in group.components.each() for name, version in each.closure.items()}


def fetch(context: UpgradeContext, names: Collection[str], canaries: Collection[str]) -> None:
    """Fetch on all nodes in parallel; apt checks every checksum. Some nodes also build the module.

    Raises:
        Refused: a node cannot fetch or build something or is unreachable, apt would remove a package that no
            lock names, or a built module cannot be kept. No node has moved.
    """
    ahead, arguments = Ahead(context, names, canaries), {}
    for name in names:
        old, new = context.groups[name]
        building = [ahead.kernels(name), ahead.shares(name)]
        arguments[name] = [
            context.id,
            closure(new),
            sorted(closure(old)),
            _sources(old, new) or None,
            *building,
            *([[new.components.driver.stream]] if new.components.driver.stream else []),
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


def _built(result: Any) -> list[dict[str, Any]]:
    """Return the archives that a node has built for others, from its answer."""
    return [
        {"kernel": str(each["kernel"]), "path": str(each["path"]), "size": int(each["size"])}
        | {"sha256": str(each["sha256"])}
        for each in result["built"]
    ]


EXTRA_REPOSITORIES = "/etc/yum.repos.d/gpuprov-upgrade.repo"
"""File of new repositories on a node with dnf during the download."""
EXTRA_KEY = "/etc/pki/rpm-gpg/gpuprov-upgrade-{}.asc"


def _sources(old: LockedGroup, new: LockedGroup) -> str | dict[str, str]:
    """Return the new repositories in apt's format, or for dnf path → content of the files that state them;
    empty without new ones.
    """
    if manager(new) == "apt":
        return sources(old, new)
    added = _added(old, new)
    renamed = "\n\n".join(
        section(name, each)
        .replace(f"[gpuprov-{name}]", f"[gpuprov-upgrade-{name}]")
        .replace(KEY_FILE.format(name), EXTRA_KEY.format(name))
        for name, each in added.items()
    )
    keys = {EXTRA_KEY.format(name): each.signed_by for name, each in added.items() if each.signed_by}
    return {**keys, EXTRA_REPOSITORIES: renamed + "\n"} if added else {}


def sources(old: LockedGroup, new: LockedGroup) -> str:
    """Return the repositories of the new lock that are not the same in the old one, in apt's deb822 format.

    Empty without such repositories. Repositories without a URL are left out.
    """
    return "\n".join("\n".join(stanza(each)) + "\n" for each in _added(old, new).values())


def _added(old: LockedGroup, new: LockedGroup) -> dict[str, Repository]:
    """Return name → repository of the new lock that is not the same in the old one and has a URL."""
    return {
        name: each
        for name, each in new.repositories.items()
        if each.url and old.repositories.get(name) != each
    }


def stanza(repository: Repository) -> Iterator[str]:
    """Yield the lines of a repository in apt's deb822 format."""
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

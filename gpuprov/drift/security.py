"""Notes about nodes with versions that security bulletins concern; a note is no difference from the lock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpuprov.catalog import Catalog
from gpuprov.catalog.rules.security import exposure, upstream
from gpuprov.catalog.security_words import exposed_text, fix_text
from gpuprov.catalog.version import Version
from gpuprov.drift.judge import NodeDrift
from gpuprov.model.lock import Component, Lock, LockedGroup

PACKAGES = {
    "driver.packages": "driver",
    "fabric_manager.packages": "fabricmanager",
    "cuda.packages": "cuda",
    "cudnn.packages": "cudnn",
    "nccl.packages": "nccl",
    "container_toolkit.packages": "container_toolkit",
    "monitoring.dcgm_packages": "dcgm",
}
"""Check of packages → the component whose packages it compares."""
LOADED = "driver.loaded"


@dataclass(frozen=True, slots=True)
class SecurityNote:
    """A version on a node, or locked for it, that bulletins concern.

    Attributes:
        bulletins: numbers of the bulletins.
        installed: whether the node has this version in place of the locked one.
    """

    node: str
    component: str
    version: str
    bulletins: tuple[str, ...]
    installed: bool
    text: str


def security_notes(lock: Lock, nodes: Iterable[NodeDrift], catalog: Catalog) -> Iterator[SecurityNote]:
    """Yield the notes about nodes, by their locked versions and by their differences from these.

    Nothing if the fleet ignores bulletins. A node without facts has notes about its locked versions only.

    Args:
        catalog: the catalog with the newest bulletins.
    """
    if lock.security == "ignore":
        return
    groups = lock.hosts()
    for node in nodes:
        group = groups[node.name]
        for component, text in group.components.versions():
            yield from _note(node.name, component, text, catalog, installed=False)
        for component, release in _installed(node, group):
            yield from _note(node.name, component, str(release), catalog, installed=True)


def _note(
    node: str, component: str, text: str, catalog: Catalog, *, installed: bool
) -> Iterator[SecurityNote]:
    """Yield the note about one version of a component; nothing if no bulletin concerns it.

    Args:
        installed: whether the note is about the node's version and not the lock's.
    """
    if found := exposure(catalog, component, text):
        said = f"{'installed: ' if installed else ''}{exposed_text(found)}; {fix_text(found)}"
        numbers = tuple(each.bulletin.id for each in found.found)
        yield SecurityNote(node, component, text, numbers, installed, said)


def _installed(node: NodeDrift, group: LockedGroup) -> list[tuple[str, Version]]:
    """Return the versions that a node's differences show in place of locked ones, each once."""
    components = dict(group.components.each())
    found: dict[tuple[str, Version], None] = {}
    for each in node.drift:
        if each.check == LOADED and isinstance(each.actual, str):
            found |= {("driver", release): None for release in _upstream([each.actual])}
        name = PACKAGES.get(each.check)
        if name in components and isinstance(each.actual, Mapping):
            texts = _of_packages(components[name], each.actual)
            found |= {(name, release): None for release in _upstream(texts)}
    locked = {(name, upstream(text)) for name, text in group.components.versions()}
    return [each for each in found if each not in locked]


def _of_packages(component: Component, actual: Mapping[str, object]) -> list[str]:
    """Return the installed versions of those packages of a component that have its version, or of all if none
    has.
    """
    own = [name for name, text in component.packages.items() if _plain(text).startswith(component.version)]
    named = own or list(component.packages)
    return [_plain(text) for name in named if isinstance(text := actual.get(name), str)]


def _plain(text: str) -> str:
    """Return a package's version without its epoch."""
    return text.rpartition(":")[2]


def _upstream(texts: Iterable[str]) -> Iterator[Version]:
    """Yield the upstream versions at the start of texts; a text without one is left out."""
    return (release for text in texts if (release := upstream(text)))

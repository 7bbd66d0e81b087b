"""Compatibility of the locked Docker, containerd and toolkit with each other and with the settings.

All versions are known only here: containerd's is chosen by the archive, not by the resolver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpuprov.catalog import Catalog, version
from gpuprov.catalog.rules.containers import unmet_containerd_needs
from gpuprov.errors import Refused
from gpuprov.locking.repository.versions import matches_upstream
from gpuprov.locking.resolve import ABSENT
from gpuprov.locking.wanted import AUTO, Wanted, stated_texts
from gpuprov.model.lock import Component, Setting


def check_containers(
    name: str,
    found: Mapping[str, Component],
    want: Wanted,
    settings: Mapping[str, Setting],
    catalog: Catalog,
    narrate: Callable[[str], None],
) -> None:
    """Check that the container components of a group work together, and that its settings are possible with
    them.

    Args:
        name: the group, for messages.
        found: the locked components, by name.
        narrate: called with needs of the toolkit that containerd does not meet.

    Raises:
        Refused: they cannot work together.
    """
    stated = settings["containers"].value if "containers" in settings else {}
    _check_engines(name, found, stated_texts(want.policy, "containerd"))
    if "containerd" not in found:
        return
    if stated.get("default_runtime") == "nvidia" and "container_toolkit" not in found:
        raise Refused(
            f"{name}: containers.default_runtime is nvidia, and the stack has no container_toolkit",
            do="add container_toolkit: auto to the stack",
        )
    if stated.get("cdi"):
        _check_interface(name, found, catalog, narrate)


def _check_engines(name: str, found: Mapping[str, Component], stated: tuple[str, ...]) -> None:
    """Check that a stated containerd is the one that Docker depends on; without Docker all are accepted.

    Raises:
        Refused: it must be absent, or has another version.
    """
    if "docker" not in found or not stated or stated == (AUTO,):
        return
    if ABSENT in stated:
        raise Refused(
            f"{name}: docker needs containerd, which the stack states as absent", do="remove one of the two"
        )
    locked = found["containerd"].version
    if not matches_upstream(locked, stated[0]):
        raise Refused(
            f"{name}: docker comes with containerd {locked}, not {stated[0]}",
            do="remove containerd's version",
        )


def _check_interface(
    name: str, found: Mapping[str, Any], catalog: Catalog, narrate: Callable[[str], None]
) -> None:
    """Check that containerd can give GPUs to pods by the Container Device Interface.

    Raises:
        Refused: containerd is too old for any toolkit; if it is too old for this one only, that is narrated.
    """
    toolkit = found.get("container_toolkit")
    locked = found["containerd"].version
    release = version(locked.partition("~")[0])
    for need in unmet_containerd_needs(catalog, release, version(toolkit.version) if toolkit else None):
        said = f"{name}: {need.what} needs containerd {need.at_least} or newer, not {locked}"
        if need.from_toolkit is None:
            raise Refused(said, do="remove containers.cdi: pods get GPUs through the runtime nvidia as well")
        narrate(f"{said}: lock an older container_toolkit")

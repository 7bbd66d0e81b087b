"""Compatibility of the locked engines and toolkit with each other and with the settings.

All versions are known only here: containerd's is chosen by the archive, not by the resolver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpuprov.catalog import Catalog, version
from gpuprov.catalog.identity import library_text
from gpuprov.catalog.rules.containers import (
    unmet_containerd_needs,
    unmet_docker_cdi_needs,
    unmet_podman_needs,
)
from gpuprov.errors import Refused
from gpuprov.locking.repository.versions import matches_upstream
from gpuprov.locking.resolve import ABSENT, AUTO
from gpuprov.locking.wanted import Wanted, stated_texts
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
        narrate: called with needs that containerd or Docker does not meet while GPUs reach containers by
            another way, and with limits of containers that Podman's users may not set.

    Raises:
        Refused: they cannot work together.
    """
    stated = settings["containers"].value if "containers" in settings else {}
    _check_engines(name, found, stated_texts(want.policy, "containerd"))
    if "podman" in found:
        _check_podman(name, found, stated, catalog)
        of_logins = settings["tuning"].value.get("limits", {}) if "tuning" in settings else {}
        _narrate_limits(name, stated, of_logins, narrate)
    if stated.get("cdi") and "docker" in found:
        locked = found["docker"].version
        for need in unmet_docker_cdi_needs(catalog, version(library_text("docker", locked))):
            narrate(
                f"{name}: containers.cdi: {need.what} needs Docker {need.at_least} or newer, not {locked}: "
                "containers of Docker get GPUs by --gpus all"
            )
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


def _check_podman(
    name: str, found: Mapping[str, Component], stated: Mapping[str, Any], catalog: Catalog
) -> None:
    """Check that Podman can give the toolkit's GPUs to containers; without a toolkit it has to give none.

    Raises:
        Refused: the archive's version is too old, or the CDI specification is not to be written.
    """
    toolkit = found.get("container_toolkit")
    if toolkit is None:
        return
    locked = found["podman"].version
    release = version(library_text("podman", locked))
    for need in unmet_podman_needs(catalog, release, version(toolkit.version)):
        raise Refused(
            f"{name}: {need.what} needs Podman {need.at_least} or newer, not {locked}",
            do="lock an older container_toolkit"
            if need.from_toolkit
            else "remove podman or container_toolkit",
        )
    if stated.get("cdi") is False:
        raise Refused(
            f"{name}: containers.cdi is false, and Podman has no other way to GPUs",
            do="remove containers.cdi or podman",
        )


def _narrate_limits(
    name: str, stated: Mapping[str, Any], of_logins: Mapping[str, Any], narrate: Callable[[str], None]
) -> None:
    """Narrate limits of containers that logins do not have: users of Podman may not exceed their own."""
    for limit in ("memlock", "stack"):
        value = stated.get(limit)
        if value is not None and of_logins.get(limit) != value:
            narrate(
                f"{name}: containers.{limit} is not stated for users: if theirs is lower, their containers "
                f"get that, or with Podman 4.3 do not start: state tuning.limits.{limit}: {value}"
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
    release = version(library_text("containerd", locked))
    for need in unmet_containerd_needs(catalog, release, version(toolkit.version) if toolkit else None):
        said = f"{name}: {need.what} needs containerd {need.at_least} or newer, not {locked}"
        if need.from_toolkit is None:
            raise Refused(said, do="remove containers.cdi: pods get GPUs through the runtime nvidia as well")
        narrate(f"{said}: lock an older container_toolkit")

"""What the probe has to look at on nodes of a group, and whose answer counts."""

from __future__ import annotations

from dataclasses import replace

from gpuprov.errors import NodeFailed
from gpuprov.expectations import (
    CDI_UNIT,
    CLOCKS_UNIT,
    CONTAINERD_UNIT,
    CUDA_LINK,
    DOCKER_UNIT,
    FABRIC_UNIT,
    FIREWALL_UNIT,
    MODES_UNIT,
    PERSISTENCE_UNIT,
    expectations,
)
from gpuprov.expectations.observing import DCGM_UNIT, EXPORTER_UNIT, textfile_path
from gpuprov.expectations.storage import clients
from gpuprov.expectations.tuning import environment, sysctls
from gpuprov.facts import Facts
from gpuprov.lock import LockedGroup
from gpuprov.observations.registry import collectors_for
from gpuprov.probe.payload import Parameters


def drift_parameters(group: LockedGroup) -> Parameters:
    """What the probe has to look at for the group's expectations, and nothing beside."""
    return replace(parameters(group), collectors=collectors_for(expectations(group)))


def parameters(group: LockedGroup) -> Parameters:
    """What the probe has to look at on nodes of a group, with every collector."""
    named = [name for _, component in group.components.each() for name in component.closure]
    named += clients(group)
    absent = group.components.absent
    units = (
        PERSISTENCE_UNIT,
        CLOCKS_UNIT,
        MODES_UNIT,
        CDI_UNIT,
        DOCKER_UNIT,
        CONTAINERD_UNIT,
        FABRIC_UNIT,
        EXPORTER_UNIT,
        DCGM_UNIT,
        FIREWALL_UNIT,
    )
    tuning = group.setting("tuning") or {}
    variables = "|".join([Parameters.environment, *(f"{name}$" for name in environment(tuning))])
    return Parameters(
        packages=named,
        package_pattern="|".join([Parameters.package_pattern, *map("^(?:{})$".format, absent.values())]),
        units=units,
        files=(CUDA_LINK, *filter(None, [textfile_path(group)])),
        sysctls=tuple(sysctls(tuning)),
        environment=variables,
        scratch=tuple(each["mount"] for each in group.setting("scratch") or ()),
        containerd=group.components.containerd is not None,
        mig=bool(group.setting("mig")),
        login=group.connection.user,
    )


def as_root(facts: Facts, user: str) -> Facts:
    """The facts, if root collected them: others see half of a node.

    Raises:
        NodeFailed: they are somebody else's.
    """
    if not facts.is_root:
        raise NodeFailed(
            f"no root rights: {user} may not use sudo without a password",
            do="allow it in sudoers, or give the password with -K",
        )
    return facts

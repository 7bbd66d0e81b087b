"""Parameters of the probe for nodes of a group, and the check that root collected the facts."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from gpuprov.drift.observations.registry import collectors_for
from gpuprov.drift.observations.units import FURTHER, units_for
from gpuprov.errors import NodeFailed
from gpuprov.model.lock import LockedGroup
from gpuprov.probe.facts import Facts
from gpuprov.probe.payload import Parameters
from gpuprov.roles import UNITS, expectations
from gpuprov.roles.cuda_toolkit import CUDA_HOME
from gpuprov.roles.health import PROGRAM
from gpuprov.roles.health import files as health_files
from gpuprov.roles.monitoring import textfile_path
from gpuprov.roles.ssh_hardening import files as ssh_files
from gpuprov.roles.ssh_hardening import ports as ssh_ports
from gpuprov.roles.storage import clients
from gpuprov.roles.system_tuning import environment, sysctls

PARTS = tuple(
    f"nvidia{flavour}_{part}"
    for flavour in ("", "_current", "_current_open")
    for part in ("uvm", "modeset", "drm", "peermem")
)
"""Parts of NVIDIA's module, by NVIDIA's and Debian's names: all have to be signed."""


def drift_parameters(group: LockedGroup) -> Parameters:
    """Return the probe's parameters for the group's expectations: only the collectors and units they need."""
    expected = expectations(group)
    collectors = (*collectors_for(expected), "holding")
    return replace(parameters(group), collectors=collectors, units=units_for(expected))


def parameters(group: LockedGroup) -> Parameters:
    """Return the probe's parameters for nodes of a group, with every collector."""
    held = [name for _, component in group.components.each() for name in component.closure]
    absent = group.components.absent
    tuning = group.setting("tuning") or {}
    variables = "|".join([Parameters.environment, *(f"{name}$" for name in environment(tuning))])
    return Parameters(
        packages=[*held, *clients(group)],
        held=held,
        package_pattern="|".join([Parameters.package_pattern, *map("^(?:{})$".format, absent.values())]),
        modules=(*Parameters.modules, *(PARTS if group.secure_boot else ())),
        units=(*UNITS.values(), *chain.from_iterable(FURTHER.values())),
        files=(CUDA_HOME, *filter(None, [textfile_path(group)]), *_of_health(group), *ssh_files(group)),
        sysctls=tuple(sysctls(tuning)),
        environment=variables,
        scratch=tuple(each["mount"] for each in group.setting("scratch") or ()),
        repositories=tuple(each.url.rstrip("/") for each in group.repositories.values() if each.url),
        containerd=group.components.containerd is not None,
        podman=group.components.podman is not None,
        mig=bool(group.setting("mig")),
        login=group.login,
        ssh_ports=tuple(map(str, ssh_ports(group))),
    )


def _of_health(group: LockedGroup) -> tuple[str, ...]:
    """Return the files of the role health; without the setting, the program that must be absent."""
    return tuple(health_files(group)) if group.setting("health") is not None else (PROGRAM,)


def as_root(facts: Facts, user: str) -> Facts:
    """Return the facts if root collected them: other users see only a part of a node.

    Raises:
        NodeFailed: another user collected them.
    """
    if not facts.is_root:
        raise NodeFailed(
            f"no root rights: {user} may not use sudo without a password",
            do="allow it in sudoers, or give the password with -K",
        )
    return facts

"""The table of roles, the only list of them, in the order of execution."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuprov.model.components import COMPONENTS
from gpuprov.model.lock import LockedGroup
from gpuprov.roles import (
    container_toolkit,
    containerd,
    cuda_toolkit,
    cudnn,
    docker,
    fabric_manager,
    firewall,
    gpu_settings,
    gpudirect,
    hardware,
    health,
    imex,
    monitoring,
    nccl,
    nvidia_driver,
    package_pins,
    podman,
    preflight,
    profiling_tools,
    repositories,
    ssh_hardening,
    storage,
    system_tuning,
)
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.manager import Manager, package_names


@dataclass(frozen=True)
class Role:
    """One row: a role's variables, expectations and order.

    Attributes:
        name: of `roles/NAME`, `gpuprov/roles/NAME.py`, and of everything else about it.
        variables: Ansible's variables from a group; None if no role can correct the expectations.
        expectations: expected state of a node.
        settings: keys of `settings` that the role implements.
        components: components that it installs or removes; sources are added before, holds after it.
        units: check → its systemd unit.
        guarded: whether it can lock the administrator out: it runs only under the dead man's switch.
        followed_by: roles that have to run after it.
        first: set of packages → its variable, for packages that a fresh node installs in one transaction
            before the role runs. Services that they start are configured before, or may start unconfigured.
        beside: packages without a stated version that are installed with them, by Debian's names.
        beside_of: package manager → further such packages, which only its systems have.
    """

    name: str
    variables: Callable[[LockedGroup], dict[str, Any]] | None
    expectations: Callable[[LockedGroup], list[Expectation]]
    settings: tuple[str, ...] = ()
    components: tuple[str, ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)
    guarded: bool = False
    followed_by: tuple[str, ...] = ()
    first: Mapping[str, str] = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    beside_of: Mapping[Manager, tuple[str, ...]] = field(default_factory=dict)


def _monitoring_variables(group: LockedGroup) -> dict[str, Any]:
    """Return monitoring's variables; its textfile exports the expectations of all other roles."""
    return monitoring.variables(group, everything_else(group))


def _monitoring_expectations(group: LockedGroup) -> list[Expectation]:
    """Return monitoring's expectations; its textfile exports those of all other roles."""
    return monitoring.expectations(group, everything_else(group))


ASKED_OF_SERVICES = ("dbus",)
"""Packages of roles whose checks start a service to see its limits and variables."""

ROLES = (
    Role("preflight", preflight.variables, preflight.expectations),
    Role("repositories", repositories.variables, repositories.expectations),
    Role(
        "nvidia_driver",
        nvidia_driver.variables,
        nvidia_driver.expectations,
        settings=("kernel",),
        components=("driver",),
        beside=ASKED_OF_SERVICES,
    ),
    Role("hardware", None, hardware.expectations, settings=("confidential",)),
    Role("fabric_manager", fabric_manager.variables, fabric_manager.expectations, units=fabric_manager.UNITS),
    Role("imex", imex.variables, imex.expectations, settings=("imex",), units=imex.UNITS),
    Role(
        "gpu_settings",
        gpu_settings.variables,
        gpu_settings.expectations,
        settings=("persistence", "clocks", "power_limit", "compute_mode", "ecc", "mig"),
        units=gpu_settings.UNITS,
    ),
    Role(
        "cuda_toolkit",
        cuda_toolkit.variables,
        cuda_toolkit.expectations,
        components=("cuda",),
        first={"cuda_toolkit": "cuda_toolkit_packages"},
        beside=ASKED_OF_SERVICES,
    ),
    Role(
        "cudnn",
        cudnn.variables,
        cudnn.expectations,
        components=("cudnn",),
        beside=ASKED_OF_SERVICES,
        first={"cudnn": "cudnn_packages"},
    ),
    Role(
        "nccl",
        nccl.variables,
        nccl.expectations,
        settings=("nccl",),
        components=("nccl",),
        beside=ASKED_OF_SERVICES,
        first={"nccl": "nccl_packages"},
    ),
    Role(
        "gpudirect",
        gpudirect.variables,
        gpudirect.expectations,
        settings=("peer_memory",),
        components=("doca_ofed", "gds"),
    ),
    Role(
        "container_toolkit",
        container_toolkit.variables,
        container_toolkit.expectations,
        components=("container_toolkit",),
        units=container_toolkit.UNITS,
        followed_by=("docker",),  # which reads the toolkit's hook when it starts
        first={"container_toolkit": "container_toolkit_packages"},
    ),
    Role(
        "docker",
        docker.variables,
        docker.expectations,
        settings=("containers",),
        components=("docker",),
        units=docker.UNITS,
        first={"docker": "docker_packages"},
    ),
    # After Docker, whose package depends on containerd's: in the other order containerd could not be removed.
    Role(
        "containerd",
        containerd.variables,
        containerd.expectations,
        components=("containerd",),
        units=containerd.UNITS,
    ),
    Role(
        "podman",
        podman.variables,
        podman.expectations,
        components=("podman",),
        first={"podman": "podman_packages"},
    ),
    Role(
        "system_tuning",
        system_tuning.variables,
        system_tuning.expectations,
        settings=("tuning",),
        beside=ASKED_OF_SERVICES,
    ),
    Role(
        "storage",
        storage.variables,
        storage.expectations,
        settings=("scratch", "storage_clients", "client_options"),
    ),
    Role(
        "profiling_tools",
        profiling_tools.variables,
        profiling_tools.expectations,
        settings=("profiling_counters",),
        components=("profiling_tools",),
        first={"profiling_tools": "profiling_tools_packages"},
    ),
    Role(
        "monitoring",
        _monitoring_variables,
        _monitoring_expectations,
        settings=("monitoring",),
        components=("dcgm", "node_exporter"),
        units=monitoring.UNITS,
        first={"node_exporter": "monitoring_packages", "dcgm": "monitoring_dcgm_packages"},
    ),
    # After all services that it judges.
    Role("health", health.variables, health.expectations, settings=("health",), units=health.UNITS),
    Role(
        "package_pins",
        package_pins.variables,
        package_pins.expectations,
        beside_of={"dnf": ("python3-dnf-plugin-versionlock",)},
    ),
    Role(
        "ssh_hardening",
        ssh_hardening.variables,
        ssh_hardening.expectations,
        settings=("ssh",),
        guarded=True,
        beside=("iproute2",),  # `ss` shows sshd's sockets
    ),
    Role(
        "firewall",
        firewall.variables,
        firewall.expectations,
        settings=("firewall",),
        units=firewall.UNITS,
        guarded=True,
        beside=("nftables",),
    ),
)

OVERRULED = tuple(
    each
    for module in (
        hardware,
        repositories,
        nvidia_driver,
        fabric_manager,
        imex,
        gpu_settings,
        cuda_toolkit,
        cudnn,
        nccl,
        gpudirect,
        container_toolkit,
        docker,
        containerd,
        podman,
        system_tuning,
        storage,
        profiling_tools,
        monitoring,
        health,
        package_pins,
        ssh_hardening,
        firewall,
    )
    for each in module.OVERRULED
)
"""Ways to override each setting and component."""
BY_NAME = {role.name: role for role in ROLES}
UNITS = {check: unit for role in ROLES for check, unit in role.units.items()}
"""Check → its systemd unit."""
_LATE = ("package_pins", "ssh_hardening", "firewall")


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return the variables of all roles for a group; roles have no other input."""
    stated: dict[str, Any] = {}
    for role in ROLES:
        stated |= role.variables(group) if role.variables else {}
    return stated


def first_packages(stated: Mapping[str, Any], names: Collection[str], by: Manager = "apt") -> dict[str, Any]:
    """Return a host's variables: packages of several roles that a fresh node installs in one transaction.

    `packages_together` maps the name of a set to its packages, without empty sets; `packages_together_beside`
    are the packages that the roles need from other repositories.

    Args:
        stated: the variables of its group.
        names: the roles that run.
        by: its package manager.
    """
    running = [role for role in ROLES if role.name in names]
    sets = {name: stated[variable] for role in running for name, variable in role.first.items()}
    beside = package_names(dict.fromkeys(name for role in running for name in role.beside), by)
    return {
        "packages_together": {name: packages for name, packages in sets.items() if packages},
        "packages_together_beside": [
            *beside,
            *(name for role in running for name in role.beside_of.get(by, ())),
        ],
    }


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return all expectations of a node of a group; last those of monitoring, which exports the others."""
    return [*everything_else(group), *_monitoring_expectations(group)]


def unchecked(group: LockedGroup) -> list[str]:
    """Return the roles without an expectation of a group, in their order: the lock states nothing of them."""
    checked = {each.role for each in expectations(group)}
    return [role.name for role in ROLES if role.name not in checked]


def everything_else(group: LockedGroup) -> list[Expectation]:
    """Return all expectations but those of monitoring: present components, absent ones, those of `_LATE`.

    A node's textfile has this order in its checksum, with containerd before Docker, which runs on it.
    """
    by_role = {role.name: role.expectations for role in ROLES if role.name != "monitoring"}
    by_role["containerd"], by_role["docker"] = by_role["docker"], by_role["containerd"]
    late = [by_role.pop(name) for name in _LATE]
    there = [each for stated in by_role.values() for each in stated(group)]
    return [*there, *_absent(group), *(each for stated in late for each in stated(group))]


def role_of(component: str) -> str:
    """Return the name of the role that installs or removes a component that a fleet can state."""
    return next(role.name for role in ROLES if component in role.components)


def _absent(group: LockedGroup) -> list[Expectation]:
    """Return expected absent components; `subject` is an expression for their packages' names."""
    patterns = group.components.absent
    return [
        Expectation(f"{each.name}.absent", [], role_of(each.name), subject=patterns[each.name])
        for each in COMPONENTS
        if each.name in patterns
    ]

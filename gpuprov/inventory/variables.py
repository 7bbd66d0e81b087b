"""A locked group as Ansible variables: the whole of what the roles are told."""

from __future__ import annotations

from typing import Any

from gpuprov.lock import Connection, LockedGroup


def group_variables(group: LockedGroup) -> dict[str, Any]:
    """Variables of every host of a group. Roles take nothing from anywhere else."""
    return {
        **_connection(group.connection),
        **_preflight(group),
        **_driver(group),
        **_gpu_settings(group),
        **_pins(group),
    }


def _connection(spec: Connection) -> dict[str, Any]:
    stated = {
        "ansible_user": spec.user,
        "ansible_port": spec.port,
        "ansible_ssh_private_key_file": spec.identity_file,
        "ansible_become": spec.user != "root",
        "ansible_ssh_common_args": " ".join(_ssh_arguments(spec)),
    }
    return {name: value for name, value in stated.items() if value is not None}


def _ssh_arguments(spec: Connection) -> list[str]:
    arguments = ["-o", "StrictHostKeyChecking=yes"]
    if spec.known_hosts:
        arguments += ["-o", f"UserKnownHostsFile={spec.known_hosts}"]
    if spec.identity_file:
        arguments += ["-o", "IdentitiesOnly=yes"]
    if spec.jump:
        arguments += ["-J", spec.jump]
    return arguments


def _preflight(group: LockedGroup) -> dict[str, Any]:
    return {"preflight_os": group.os, "preflight_arch": group.arch}


def _driver(group: LockedGroup) -> dict[str, Any]:
    driver = group.components.driver
    return {
        "nvidia_driver_version": driver.version,
        "nvidia_driver_branch": driver.branch,
        "nvidia_driver_module": driver.module,
        "nvidia_driver_module_package": driver.module_package,
        "nvidia_driver_packages": driver.closure,
        "nvidia_driver_repositories": [
            {"id": name, **repository.model_dump(exclude={"source"})}
            for name, repository in group.repositories.items()
        ],
        "nvidia_driver_target_kernel": group.setting("kernel") or "running",
    }


def _gpu_settings(group: LockedGroup) -> dict[str, Any]:
    clocks = group.setting("clocks") or {}
    return {
        "gpu_settings_persistence": group.setting("persistence"),
        "gpu_settings_graphics_clock_mhz": clocks.get("graphics"),
        "gpu_settings_memory_clock_mhz": clocks.get("memory"),
    }


def _pins(group: LockedGroup) -> dict[str, Any]:
    held: dict[str, str] = {}
    for _, component in group.components.each():
        held |= component.closure
    return {
        "package_pins_packages": held,
        "package_pins_patterns": group.components.driver.hold_patterns,
    }

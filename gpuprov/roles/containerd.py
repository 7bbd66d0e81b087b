"""Variables and expectations of containerd and its plugin for Kubernetes."""

from __future__ import annotations

from typing import Any

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.components import closure, unwanted
from gpuprov.roles.docker import RUNTIME
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import BY_HAND, CONDITION, OTHER_FILE, OTHER_PROGRAM, fails, mends

CONTAINERD_UNIT = "containerd.service"
UNITS = {"containerd.unit": CONTAINERD_UNIT}
CONFIG = "/etc/containerd/config.toml"
RUNC = "io.containerd.runc.v2"
"""containerd's name for its runtime of runc and of programs with the interface of runc."""
CRI = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
"""The plugin for Kubernetes, by its names from containerd 2.0 on and before."""

OVERRULED = (
    *fails("containerd", "containerd.config", "a drop-in of containerd.service with another --config"),
    *fails("containerd", "containerd.config", "a file that config.toml imports"),
    *mends("containerd", "containerd.unit", BY_HAND),
    *fails("containerd", "containerd.unit", OTHER_FILE, OTHER_PROGRAM, CONDITION),
)


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return the expected packages, unit and configuration; empty if containerd is not locked."""
    containerd, role = group.components.containerd, "containerd"
    if containerd is None:
        return []
    return [
        Expectation("containerd.packages", containerd.closure, role),
        Expectation("containerd.unit", "enabled", role),
        Expectation("containerd.config", cri_config(group), role),
    ]


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return packages and the plugin's configuration; both are empty if containerd is not locked."""
    return {
        "containerd_packages": closure(group.components.containerd),
        "containerd_unwanted": unwanted(group, "containerd"),
        "containerd_config": cri_config(group),
    }


def cri_config(group: LockedGroup) -> dict[str, Any]:
    """Return the required settings of the Kubernetes plugin in containerd's config.toml; empty without
    containerd.

    Kubelet has systemd make its control groups by default, and both have to agree (Kubernetes' "Container
    runtimes"). A runtime's type is always stated: containerd drops runc's default if a file configures runc.
    """
    if group.components.containerd is None:
        return {}
    stated = group.setting("containers") or {}
    options = {"SystemdCgroup": stated.get("cgroup_driver") != "cgroupfs"}
    runtimes: dict[str, Any] = {"runc": {"runtime_type": RUNC, "options": options}}
    if group.components.container_toolkit:
        options = {"BinaryName": "/usr/bin/nvidia-container-runtime", **options}
        runtimes[RUNTIME] = {"runtime_type": RUNC, "options": options}
    table: dict[str, Any] = {"containerd": {"runtimes": runtimes}}
    if stated.get("default_runtime") is not None:
        table["containerd"]["default_runtime_name"] = stated["default_runtime"]
    if stated.get("cdi") is not None:
        table["enable_cdi"] = stated["cdi"]
    return table

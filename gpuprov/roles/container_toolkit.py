"""Variables and expectations of NVIDIA's container toolkit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.components import closure, unwanted
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import BY_HAND, CONDITION, OTHER_FILE, OTHER_PROGRAM, fails, mends

CDI_UNIT = "nvidia-cdi-refresh.path"
UNITS = {"container_toolkit.cdi": CDI_UNIT}
CDI_SERVICE = "nvidia-cdi-refresh.service"
"""The service that the path unit starts; at boot it writes the specification, which is in /run."""
CONFIG = "/etc/nvidia-container-runtime/config.toml"
SHIPPED: dict[str, tuple[Any, ...]] = {
    "disable-require": (False,),
    "supported-driver-capabilities": ("compat32,compute,display,graphics,ngx,utility,video",),
    "swarm-resource": ("DOCKER_RESOURCE_GPU", ""),
    # Without the variable fewer containers get GPUs.
    "accept-nvidia-visible-devices-envvar-when-unprivileged": (True, False),
    "accept-nvidia-visible-devices-as-volume-mounts": (False,),
    "nvidia-container-cli.debug": ("",),
    "nvidia-container-cli.environment": ([],),
    "nvidia-container-cli.ldcache": ("/etc/ld.so.cache", ""),
    "nvidia-container-cli.load-kmods": (True,),
    "nvidia-container-cli.no-cgroups": (False,),
    "nvidia-container-cli.path": ("/usr/bin/nvidia-container-cli", "nvidia-container-cli", ""),
    "nvidia-container-cli.root": ("", "/"),
    "nvidia-container-cli.user": ("root:video", "root", ""),
    "nvidia-container-runtime.debug": ("", "/dev/null"),
    "nvidia-container-runtime.discover-mode": ("auto", "legacy"),
    "nvidia-container-runtime.experimental": (False,),
    "nvidia-container-runtime.log-level": ("info",),
    "nvidia-container-runtime.mode": ("auto",),
    "nvidia-container-runtime.runtimes": (
        ["docker-runc", "runc"],
        ["docker-runc", "runc", "crun"],
        ["runc", "crun"],
    ),
    "nvidia-container-runtime.modes.cdi.annotation-prefixes": (["cdi.k8s.io/"],),
    "nvidia-container-runtime.modes.cdi.default-kind": ("nvidia.com/gpu",),
    "nvidia-container-runtime.modes.cdi.spec-dirs": (["/etc/cdi", "/var/run/cdi"],),
    "nvidia-container-runtime.modes.csv.mount-spec-path": (
        "/etc/nvidia-container-runtime/host-files-for-container.d",
    ),
    "nvidia-container-runtime.modes.legacy.cuda-compat-mode": ("ldconfig",),
    "nvidia-container-runtime-hook.path": (
        "nvidia-container-runtime-hook",
        "/usr/bin/nvidia-container-runtime-hook",
        "",
    ),
    "nvidia-container-runtime-hook.skip-mode-detection": (False,),
    "nvidia-ctk.path": ("nvidia-ctk", "/usr/bin/nvidia-ctk", ""),
}
"""Key of the toolkit's config.toml → values of its packages since 1.8, and stricter ones.

Source: internal/config of NVIDIA/nvidia-container-toolkit, in its versions. The package writes the file when
it is installed first, and keeps it later. The installed toolkit has further keys and values.
"""
LDCONFIG = "nvidia-container-cli.ldconfig"
"""Key whose value differs by system: the installed toolkit's own value is the right one."""
LDCONFIGS = ("@/sbin/ldconfig", "@/sbin/ldconfig.real")
FORERUNNERS = ("nvidia-docker2", "nvidia-docker", "nvidia-container-runtime")
"""Packages that the toolkit replaced; removed in 1.15.0 (its changelog)."""

OVERRULED = (
    *mends("container_toolkit", "container_toolkit.cdi", BY_HAND, "the same with nvidia-cdi-refresh.service"),
    *fails("container_toolkit", "container_toolkit.cdi", OTHER_FILE, OTHER_PROGRAM, CONDITION),
    *fails("container_toolkit", "container_toolkit.config", "a key of the toolkit's config.toml"),
    *mends("container_toolkit", "container_toolkit.specifications", "an outdated /var/run/cdi/nvidia.yaml"),
    *fails("container_toolkit", "container_toolkit.specifications", "a specification in /etc/cdi"),
    *mends("container_toolkit", "container_toolkit.devices", "a specification that was removed or emptied"),
)


def expectations(group: LockedGroup) -> list[Expectation]:
    """Return the expected packages, no replaced packages, and the CDI refresh unit if the lock states CDI
    or Podman.

    Every key of the toolkit's configuration that is not as shipped is a difference, and of CDI
    specifications each path that does not exist and each version other than the driver's. With CDI a
    container gets every GPU. Empty if the toolkit is not locked.
    """
    toolkit = group.components.container_toolkit
    if toolkit is None:
        return []
    role = "container_toolkit"
    stated = [
        Expectation("container_toolkit.packages", toolkit.closure, role),
        Expectation("container_toolkit.forerunners", [], role),
        Expectation("container_toolkit.config", [], role),
        Expectation("container_toolkit.specifications", [], role, subject=group.components.driver.version),
    ]
    if (cdi := device_interface(group)) is not None:
        stated.append(Expectation("container_toolkit.cdi", "enabled" if cdi else "disabled", role))
    if cdi:
        gpus, driver = group.hardware.gpu_count, group.components.driver.version
        stated.append(Expectation("container_toolkit.devices", gpus, role, needs_driver=True, subject=driver))
    return stated


def refresh_state(path_unit: str, service: str) -> str:
    """Return the state of the path unit that refreshes CDI specifications, with a note if its service starts
    at boot and it does not, or the reverse.

    Args:
        path_unit: `enabled`, `disabled`, or another state, which is returned unchanged.
        service: whether the service starts at boot, in the same terms.
    """
    if path_unit not in ("enabled", "disabled"):
        return path_unit
    starts = service.startswith("enabled")
    agrees = service == "enabled" if path_unit == "enabled" else not starts
    return path_unit if agrees else f"{path_unit}, but {CDI_SERVICE} is {service}"


def not_as_shipped(config: Mapping[str, Any], default: Mapping[str, Any]) -> list[str]:
    """Return `KEY = VALUE` of the keys, with dots, whose value no package of the toolkit ships.

    Args:
        config: the document of the toolkit's configuration.
        default: the document that the installed toolkit prints; empty if it cannot.
    """
    found, own = [], dict(_leaves(default))
    for key, value in _leaves(config):
        known = LDCONFIGS if key == LDCONFIG and key not in own else SHIPPED.get(key, ())
        if value not in known and not (key in own and value == own[key]):
            found.append(f"{key} = {json.dumps(value, default=str)}")
    return found


def _leaves(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a document with their keys, joined with dots; an empty table has none."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def variables(group: LockedGroup) -> dict[str, Any]:
    """Return packages, and whether GPUs are also given by the Container Device Interface (None: unstated)."""
    toolkit = group.components.container_toolkit
    return {
        "container_toolkit_packages": closure(toolkit),
        "container_toolkit_unwanted": unwanted(group, "container_toolkit"),
        "container_toolkit_cdi": device_interface(group),
    }


def device_interface(group: LockedGroup) -> bool | None:
    """Return whether GPUs are given by the Container Device Interface, by default to Podman, which has no
    other way; None if neither is stated, or without the toolkit.
    """
    if group.components.container_toolkit is None:
        return None
    stated: bool | None = (group.setting("containers") or {}).get("cdi")
    return True if stated is None and group.components.podman else stated

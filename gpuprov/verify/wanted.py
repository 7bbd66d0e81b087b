"""Expected values of the tests: the lock's expectations, and proofs that follow from them.

A proof states nothing new: it confirms an expectation in another way that needs a
command on the node (a simulated upgrade, four versions side by side) and so is part of verify only.
"""

from __future__ import annotations

from typing import Any

from gpuprov.access.shipped import as_shipped
from gpuprov.model.lock import LockedGroup
from gpuprov.roles import Expectation, expectations
from gpuprov.roles.causes import BY_HAND, WITHOUT_ROLE
from gpuprov.roles.docker import daemon_config
from gpuprov.roles.image import waits_for
from gpuprov.roles.podman import LIMITS, defaults, in_bytes


def wanted(group: LockedGroup, *, image: bool = False) -> dict[str, Expectation]:
    """Return check id → expectation of the group's nodes: those of the lock in its order, then the proofs.

    Args:
        image: leave out expectations that need a booted machine.
    """
    found = [*expectations(group), *proofs(group)]
    return {each.check: each for each in found if not image or waits_for(each) is None}


def proofs(group: LockedGroup) -> list[Expectation]:
    """Return the proofs for one group.

    Those of CUDA, cuDNN, NCCL and containers are included only if the group has them, `driver.dkms` only if
    the module is built on the node, and the others always.
    """
    driver = group.components.driver
    versions = dict.fromkeys(("package", "module on disk", "module loaded", "nvidia-smi"), driver.version)
    dkms = [Expectation("driver.dkms", {driver.version: "installed"}, "nvidia_driver")]
    return [
        Expectation("driver.library", driver.version, "nvidia_driver"),
        Expectation("driver.four_versions", versions, "nvidia_driver", reboot=True),
        *(dkms if driver.compiled else []),
        Expectation("nouveau.initramfs", [], "nvidia_driver"),
        *libraries(group),
        Expectation("pins.simulated", [], "package_pins"),
        *containers(group),
        Expectation("ssh.offered", methods(group), "ssh_hardening" if group.setting("ssh") else None),
        Expectation("reboot.not_required", [], None, reboot=True),
    ]


def methods(group: LockedGroup) -> list[str]:
    """Return the methods that sshd may offer to a connection without credentials."""
    options = (group.setting("ssh") or {"options": {}})["options"]
    allowed = {
        "publickey": "PubkeyAuthentication",
        "password": "PasswordAuthentication",
        "keyboard-interactive": "KbdInteractiveAuthentication",
    }
    gssapi = options.get("GSSAPIAuthentication", as_shipped(group.os)["gssapiauthentication"])
    kerberos = ["gssapi-keyex", "gssapi-with-mic"] if gssapi == "yes" else []
    return [name for name, keyword in allowed.items() if options.get(keyword) != "no"] + kerberos


def libraries(group: LockedGroup) -> list[Expectation]:
    """Return the proofs of toolkits and libraries that the group has, from their own files."""
    components = group.components
    found = []
    if components.cuda:
        found.append(
            Expectation("cuda.nvcc", {name: name for name in components.cuda.toolkits}, "cuda_toolkit")
        )
    if components.cudnn:
        release = ".".join(components.cudnn.version.split(".")[:3])
        found += [
            Expectation("cudnn.header", release, "cudnn"),
            Expectation("cudnn.library", [release], "cudnn"),
        ]
    if components.nccl:
        found.append(Expectation("nccl.library", [components.nccl.version.partition("+")[0]], "nccl"))
    return found


def containers(group: LockedGroup) -> list[Expectation]:
    """Return the proofs of the daemons' effective configuration, and of a container's view.

    None without an engine.
    """
    components = group.components
    found = [Expectation("containerd.plugin", "ok", "containerd")] if components.containerd else []
    found += _docker(group) if components.docker else []
    return [*found, *_podman(group)] if components.podman else found


def _docker(group: LockedGroup) -> list[Expectation]:
    """Return the proofs of Docker: its daemon's configuration, a container's limits and GPUs.

    Those without a stated value, and those of GPUs without the toolkit, are left out.
    """
    config, toolkit = daemon_config(group), group.components.container_toolkit
    stated = group.setting("containers") or {}
    daemon = {
        "cgroup driver": stated.get("cgroup_driver"),
        "runtimes": list(config.get("runtimes", ())) or None,
        "cdi": stated.get("cdi"),
    }
    limits = {"shm_size": in_bytes(stated.get("shm_size")), **{name: stated.get(name) for name in LIMITS}}
    found = [
        Expectation("docker.daemon", _stated(daemon), "docker"),
        Expectation("docker.limits", _stated(limits), "docker"),
    ]
    if toolkit is not None:
        asked = ["docker.gpus"] + ["docker.cdi_gpus"] * bool(stated.get("cdi"))
        found += _inside(group, "docker.driver", asked)
    return [each for each in found if each.expected]


def _podman(group: LockedGroup) -> list[Expectation]:
    """Return the proofs of Podman: limits in a container of root, GPUs in one of root and one of a user.

    Those without a stated value, and those of GPUs without the toolkit, are left out.
    """
    values = defaults(group)
    limits = {name: values[name] for name in ("shm_size", *LIMITS) if name in values}
    found = [Expectation("podman.limits", limits, "podman")]
    if group.components.container_toolkit is not None:
        found += _inside(group, "podman.driver", ["podman.gpus", "podman.rootless_gpus"])
    return [each for each in found if each.expected]


def _inside(group: LockedGroup, driver: str, counts: list[str]) -> list[Expectation]:
    """Return the proofs of what NVIDIA's toolkit gives containers: the driver's version, and all GPUs.

    Args:
        driver: check of the driver.
        counts: checks of the GPUs.
    """
    values = {driver: group.components.driver.version, **dict.fromkeys(counts, group.hardware.gpu_count)}
    role = "container_toolkit"
    return [Expectation(check, value, role, needs_driver=True) for check, value in values.items()]


def _stated(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def remedy(expectation: Expectation, node: str) -> str:
    """Return the command or action that corrects the expectation on a node.

    `gpuprov apply`, with `--reboot` if it needs one, or after what only a person can do; a hint to check the
    node if no role corrects it.
    """
    if expectation.check in BY_HAND:
        return f"{BY_HAND[expectation.check]}, then: gpuprov apply -l {node}"
    if expectation.reboot:
        return f"gpuprov apply --reboot -l {node}"
    if expectation.role:
        return f"gpuprov apply -l {node}"
    return WITHOUT_ROLE.get(expectation.check, f"check {node} itself: no role can repair this")

"""Changes of a request that may resolve the violation of a rule."""

from __future__ import annotations

from collections.abc import Iterable

from gpuprov.locking.resolve.answer import RuleFinding

# Any field that decides the driver may resolve a rule about the driver.
_DRIVER = frozenset({"driver", "fabricmanager", "repository", "os", "arch"})
_FAILURE = _DRIVER | {"kernel", "module", "module_build", "gpus", "gds"}

_MENDS: dict[str, frozenset[str]] = {
    "os-served": frozenset({"os"}),
    "arch-served": frozenset({"os", "arch", "gpus", "repository"}),
    "superchip-arch": frozenset({"arch", "gpus"}),
    "driver-in-archive": _DRIVER | {"module", "gpus"},
    "driver-on-os": _DRIVER | {"gpus"},
    "gpu-driver": _DRIVER | {"gpus"},
    "gpus-together": frozenset({"gpus"}),
    "module-flavour": _DRIVER | {"module", "gpus"},
    "module-precompiled": frozenset({"module_build", "driver", "repository", "os"}),
    "module-shipped": _DRIVER | {"module", "gpus"},
    "cuda-published": frozenset({"cuda"}),
    "gpu-cuda": frozenset({"cuda", "gpus"}),
    "cuda-driver": _DRIVER | {"cuda", "compat", "gpus"},
    "cuda-on-os": frozenset({"cuda", "os", "arch"}),
    "forward-compat-gpu": frozenset({"compat", "gpus"}),
    "forward-compat-branch": _DRIVER | {"compat"},
    "cudnn-build": frozenset({"cudnn", "cuda"}),
    "cudnn-driver": _DRIVER | {"cudnn", "cuda"},
    "cudnn-gpu": frozenset({"cudnn", "gpus"}),
    "nccl-cuda-major": frozenset({"nccl", "cuda"}),
    "nccl-build": frozenset({"nccl", "cuda"}),
    "nccl-gpu": frozenset({"nccl", "cuda", "gpus"}),
    "nccl-driver": _DRIVER | {"nccl", "compat", "gpus"},
    "framework-build": frozenset({"framework"}),
    "framework-gpu": frozenset({"framework", "gpus"}),
    "framework-driver": _DRIVER | {"framework", "compat", "gpus"},
    "fabric-manager-missing": frozenset({"fabricmanager", "gpus"}),
    "fabric-manager-needless": frozenset({"fabricmanager", "gpus"}),
    "fabric-manager-version": frozenset({"fabricmanager", "driver"}),
    "fabric-manager-packages": frozenset({"repository", "os", "gpus", "fabricmanager"}),
    "docker-gpus": frozenset({"docker", "container_toolkit"}),
    "podman-on-os": frozenset({"podman", "container_toolkit", "os"}),
    "podman-gpus": frozenset({"podman", "container_toolkit", "os"}),
    "podman-cdi": frozenset({"podman", "container_toolkit", "os"}),
    "podman-refresh": frozenset({"podman", "container_toolkit"}),
    "doca-packages": frozenset({"doca_ofed", "os"}),
    "doca-on-os": frozenset({"doca_ofed", "os"}),
    "driver-kernel-minimum": _DRIVER | {"kernel"},
    "gds-superchip": frozenset({"gds", "gpus"}),
    "gds-flavour": frozenset({"gds", "module", "driver", "gpus"}),
    "gds-packages": frozenset({"gds", "repository", "os"}),
    "gds-module-build": frozenset({"gds", "module_build"}),
    "container-toolkit-cgroup2": frozenset({"container_toolkit", "os"}),
}


def mends(rule: str) -> frozenset[str]:
    """Return the fields whose change may resolve a rule's violation; `_FAILURE` for a known failure,
    named by its id.
    """
    return _MENDS.get(rule, _FAILURE)


def documented(rule: str) -> bool:
    """Return whether the rule has its own row in the table; a known failure has its own name."""
    return rule in _MENDS


def one_change_mends(violations: Iterable[RuleFinding]) -> frozenset[str]:
    """Return the fields whose change alone may resolve all violations; there must be at least
    one.
    """
    return frozenset.intersection(*(mends(finding.rule) for finding in violations))

"""Fleet with a group for every system, and the packages that its lock must contain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml

from gpuprov_lab.mirror import nvidia
from tests.systems import SUPPORTED

SYSTEMS = [*SUPPORTED, "rhel8"]
LIBRARIES = {"cudnn": "auto", "nccl": "auto"}
# group: system, profile, stated components in addition to NVIDIA's repository
GROUPS = {
    "u22-h200": ("ubuntu22.04", "h200", {"driver": "570.195.03", "cuda": ["12.8", "12.4"], **LIBRARIES}),
    "u22-a100": ("ubuntu22.04", "a100", {"driver": "535.309.01", "module": "proprietary"}),
    "u24-h200": ("ubuntu24.04", "h200", {"driver": "580.126.16", "cuda": "13.0", **LIBRARIES}),
    "u24-a100": ("ubuntu24.04", "a100", {"driver": "590.48.01"}),
    "u26-h200": ("ubuntu26.04", "h200", {"driver": "610.57.04", "cuda": "13.4", **LIBRARIES}),
    "u26-a100": ("ubuntu26.04", "a100", {"driver": 595, "cuda": "none"}),
    "d12-h200": ("debian12", "h200", {"driver": "580.95.05", "cuda": "13.0.2", **LIBRARIES}),
    "d12-a100": ("debian12", "a100", {"driver": "580.95.05", "module": "proprietary"}),
    "d13-h200": ("debian13", "h200", {"driver": "595.71.05", "cuda": "auto", **LIBRARIES}),
    "d13-a100": ("debian13", "a100", {"driver": 590, "container_toolkit": "1.18", "dcgm": "4.5.2"}),
    "r8-h200": ("rhel8", "h200", {"driver": "570.211.01", "cuda": "12.8", **LIBRARIES}),
    "r8-a100": ("rhel8", "a100", {"driver": "535.309.01", "module": "proprietary"}),
    "r9-h200": ("rhel9", "h200", {"driver": "580.126.16", "cuda": "13.0", **LIBRARIES}),
    "r9-b200": ("rhel9", "b200", {"driver": 580, "cuda": "none", "dcgm": 4}),
    "r10-h200": ("rhel10", "h200", {"driver": "610.57.04", "cuda": "auto", **LIBRARIES}),
    "a23-h200": ("amzn2023", "h200", {"driver": "580.126.16", "cuda": "13.0", **LIBRARIES}),
    "r10-a100": ("rhel10", "a100", {"driver": "595.91.07", "container_toolkit": "auto"}),
}
PROFILES = {
    "h200": ("H200 SXM", 8),
    "a100": ("A100 PCIe 80GB", 2),
    "b200": ("B200", 8),
    "v100": ("V100 SXM2 32GB", 4),
}

# group: {component: {package: exact version}} for stated components and those that the hardware requires
PACKAGES: dict[str, dict[str, dict[str, str]]] = {
    "u22-h200": {
        "driver": {"nvidia-open-570": "570.195.03-0ubuntu1"},
        "fabricmanager": {"nvidia-fabricmanager-570": "570.195.03-1"},
        "nscq": {"libnvidia-nscq-570": "570.195.03-1"},
        "cuda": {"cuda-toolkit-12-8": "12.8.2-1", "cuda-toolkit-12-4": "12.4.1-1"},
        "cudnn": dict.fromkeys(
            ("libcudnn9-cuda-12", "libcudnn9-headers-cuda-12", "libcudnn9-dev-cuda-12"), "9.28.0.42-1"
        ),
        "nccl": dict.fromkeys(("libnccl2", "libnccl-dev"), "2.26.5-1+cuda12.2"),
    },
    "u22-a100": {"driver": {"cuda-drivers-535": "535.309.01-0ubuntu1"}},
    "u24-h200": {
        "driver": dict.fromkeys(
            ("nvidia-open", "nvidia-persistenced", "nvidia-driver-pinning-580.126.16"), "580.126.16-1ubuntu1"
        ),
        "fabricmanager": {"nvidia-fabricmanager": "580.126.16-1ubuntu1"},
        "nscq": {"libnvidia-nscq": "580.126.16-1ubuntu1"},
        "cuda": {"cuda-toolkit-13-0": "13.0.3-1"},
        "cudnn": dict.fromkeys(
            ("libcudnn9-cuda-13", "libcudnn9-headers-cuda-13", "libcudnn9-dev-cuda-13"), "9.28.0.42-1"
        ),
        "nccl": dict.fromkeys(("libnccl2", "libnccl-dev"), "2.28.9-1+cuda13.0"),
    },
    "u24-a100": {
        "driver": dict.fromkeys(
            ("nvidia-open", "nvidia-persistenced", "nvidia-driver-pinning-590.48.01"), "590.48.01-0ubuntu1"
        )
    },
    "u26-h200": {
        "driver": dict.fromkeys(
            ("nvidia-open", "nvidia-persistenced", "nvidia-driver-pinning-610.57.04"), "610.57.04-1ubuntu1"
        ),
        "fabricmanager": {"nvidia-fabricmanager": "610.57.04-1ubuntu1"},
        "cuda": {"cuda-toolkit-13-4": "13.4.2-1"},
        "nccl": dict.fromkeys(("libnccl2", "libnccl-dev"), "2.30.7-1+cuda13.3"),
    },
    "u26-a100": {
        "driver": dict.fromkeys(
            ("nvidia-open", "nvidia-persistenced", "nvidia-driver-pinning-595.91.07"), "595.91.07-1ubuntu1"
        )
    },
    "d12-h200": {
        "driver": dict.fromkeys(
            (
                "nvidia-driver-cuda",
                "nvidia-kernel-open-dkms",
                "nvidia-persistenced",
                "nvidia-driver-pinning-580.95.05",
            ),
            "580.95.05-1",
        ),
        "fabricmanager": {"nvidia-fabricmanager": "580.95.05-1"},
        "nscq": {"libnvidia-nscq": "580.95.05-1"},
        "cuda": {"cuda-toolkit-13-0": "13.0.2-1"},
    },
    "d12-a100": {
        "driver": dict.fromkeys(
            (
                "nvidia-driver-cuda",
                "nvidia-kernel-dkms",
                "nvidia-persistenced",
                "nvidia-driver-pinning-580.95.05",
            ),
            "580.95.05-1",
        )
    },
    "d13-h200": {
        "cuda": {"cuda-toolkit-13-2": "13.2.2-1"},
        "nccl": dict.fromkeys(("libnccl2", "libnccl-dev"), "2.30.4-1+cuda13.2"),
    },
    "d13-a100": {
        "container_toolkit": dict.fromkeys(
            (
                "nvidia-container-toolkit",
                "nvidia-container-toolkit-base",
                "libnvidia-container-tools",
                "libnvidia-container1",
            ),
            "1.18.1-1",
        ),
        "dcgm": dict.fromkeys(
            ("datacenter-gpu-manager-4-core", "datacenter-gpu-manager-4-cuda13"), "1:4.5.2-1"
        ),
    },
    "r8-h200": {
        "driver": dict.fromkeys(
            ("nvidia-driver-cuda", "kmod-nvidia-open-dkms", "nvidia-persistenced"), "3:570.211.01-1.el8"
        ),
        "fabricmanager": {"nvidia-fabric-manager": "570.211.01-1"},
        "nscq": {"libnvidia-nscq-570": "570.211.01-1"},
        "cudnn": dict.fromkeys(("libcudnn9-cuda-12", "libcudnn9-devel-cuda-12"), "9.28.0.42-1"),
        "nccl": dict.fromkeys(("libnccl", "libnccl-devel"), "2.26.5-1+cuda12.2"),
    },
    "r8-a100": {
        "driver": dict.fromkeys(
            ("nvidia-driver-cuda", "kmod-nvidia-latest-dkms", "nvidia-persistenced"), "3:535.309.01-1.el8"
        )
    },
    "r9-h200": {
        "driver": dict.fromkeys(
            ("nvidia-driver-cuda", "kmod-nvidia-open-dkms", "nvidia-persistenced"), "3:580.126.16-1.el9"
        ),
        "fabricmanager": {"nvidia-fabricmanager": "580.126.16-1"},
        "nscq": {"libnvidia-nscq": "580.126.16-1"},
    },
    "r9-b200": {
        "fabricmanager": {"nvidia-fabricmanager": "580.178.04-1"},
        "nvsdm": {"libnvsdm": "580.178.04-1"},
        "nvlsm": {"nvlsm": "2025.10.14-1"},
        "dcgm": dict.fromkeys(
            ("datacenter-gpu-manager-4-core", "datacenter-gpu-manager-4-cuda13"), "1:4.6.0-1"
        ),
    },
    "a23-h200": {
        "driver": dict.fromkeys(
            ("nvidia-driver-cuda", "kmod-nvidia-open-dkms", "nvidia-persistenced"), "3:580.126.16-1.amzn2023"
        ),
        "fabricmanager": {"nvidia-fabricmanager": "580.126.16-1"},
        "cuda": {"cuda-toolkit-13-0": "13.0.3-1"},
    },
    "r10-h200": {
        "driver": dict.fromkeys(
            ("nvidia-driver-cuda", "kmod-nvidia-open-dkms", "nvidia-persistenced"), "3:610.57.04-1.el10"
        ),
        "cuda": {"cuda-toolkit-13-3": "13.3.1-1"},
    },
}
STREAMS = {
    "r8-h200": "nvidia-driver:570-open",
    "r8-a100": "nvidia-driver:535-dkms",
    "r9-h200": "nvidia-driver:580-open",
    "r10-h200": None,
    "a23-h200": "nvidia-driver:580-open",
    "u24-h200": None,
}

Write = Callable[..., Path]
"""Function that writes a fleet of one group with the given stack."""


def written(path: Path, groups: dict[str, tuple[str, str, dict[str, object]]], mirror: nvidia.Mirror) -> Path:
    """Write a fleet: of each group its system, profile and stack; the repositories are a mirror's."""
    key = str(mirror.key)
    stated = {
        "groups": {
            name: {
                "profile": profile,
                "hosts": f"{name}-[1-2]",
                "os": system,
                "stack": {"repository": "nvidia", **stack},
            }
            for name, (system, profile, stack) in groups.items()
        },
        "repositories": {
            "nvidia": {"url": mirror.cuda(), "key": key},
            "container-toolkit": {"url": mirror.container_toolkit(), "key": key},
        },
    }
    path.write_text(yaml.safe_dump(stated))
    return path

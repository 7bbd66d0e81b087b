"""Parameters of the probe's collectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Parameters:
    """Parameters of the collectors: names from the lock's expectations, and patterns for other names."""

    packages: Sequence[str] = ()
    held: Sequence[str] = ()
    """Packages whose version is locked."""
    package_pattern: str = (
        r"nvidia|cuda|cudnn|nccl|nvlink|nvlsm|nvsdm|libxnvctrl|datacenter-gpu-manager|^dkms$|^gpg-pubkey$"
        r"|^linux-(?:image|headers|modules)|^kernel(?:-core|-devel|-headers)?$"
        r"|docker|^containerd|^runc$|rdma-core|^doca|ofed"
    )
    modules: Sequence[str] = ("nvidia", "nvidia_current", "nvidia_current_open", "nvidia_peermem", "gdrdrv")
    """Modules to query with modinfo; Debian's packages name NVIDIA's module nvidia-current."""
    module_pattern: str = r"(?:nvidia|nouveau|nova|nv_peer|gdrdrv|mlx[45]|ib_|rdma|sunrpc|lnet)"
    units: Sequence[str] = (
        "nvidia-persistenced.service",
        "nvidia-fabricmanager.service",
        "nvidia-dcgm.service",
        "containerd.service",
        "docker.service",
    )
    login: str = "root"
    """User for whom sshd's settings are queried."""
    strangers: Sequence[str] = ("gpuprov-unknown", "198.51.100.1")
    """A user that no node has and an address of documentation (RFC 5737), for Match blocks of sshd."""
    ssh_ports: Sequence[str] = ()
    """Ports of sshd whose label for SELinux is queried."""
    files: Sequence[str] = ()
    sysctls: Sequence[str] = ()
    environment: str = r"(?:NCCL|OMP|MKL|CUDA|TF|NVIDIA|TORCH|PYTORCH|UCX)_|LD_LIBRARY_PATH$|LD_PRELOAD$"
    """Pattern of the variables whose values may leave the node."""
    scratch: Sequence[str] = ()
    """Mount points of scratch space."""
    repositories: Sequence[str] = ()
    """Addresses of the lock's own repositories, without a slash at the end."""
    containerd: bool = False
    """Whether to query containerd's effective configuration."""
    podman: bool = False
    """Whether to query Podman's defaults for containers."""
    sample: float = 0.0
    """Duration of a load sample in seconds."""
    mig: bool = False
    """Whether to query GPU instances."""
    cores: bool = False
    """Whether to query socket and core of each logical processor."""
    collectors: Sequence[str] = ()
    """Collectors to run; all if empty."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Time-outs that replace a collector's own."""

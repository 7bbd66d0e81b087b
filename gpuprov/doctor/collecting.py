"""The collectors of an examination, and their parameters."""

from __future__ import annotations

from dataclasses import replace

from gpuprov.probe.parameters import Parameters

COLLECTORS = (
    "system",
    "kernels",
    "sysctls",
    "hugepages",
    "limits",
    "environment",
    "state",
    "daemon_json",
    "containerd",
    "nccl",
    "packages",
    "sources",
    "smi",
    "modules",
    "disk_modules",
    "dkms",
    "modprobe",
    "pci",
    "nics",
    "hcas",
    "cpu",
    "memory",
    "mounts",
    "units",
    "kernel_log",
    "pci_links",
    "nvlink",
    "topo",
    "counters",
    "libraries",
    "secure_boot",
    "dkms_log",
    "container_state",
    "toolkit",
    "frameworks",
    "gpu_tools",
    "host_state",
    "programs",
)
_PLAIN = Parameters()
PARAMETERS = replace(
    _PLAIN,
    package_pattern=rf"{_PLAIN.package_pattern}|^unattended-upgrades$|^firmware-nvidia|^mokutil$|^nvlsm|^infiniband",
    units=(
        *_PLAIN.units,
        "nvidia-imex.service",
        "nvidia-dcgm.service",
        "kubelet.service",
        "chrony.service",
        "chronyd.service",
        "systemd-timesyncd.service",
        "ntp.service",
        "ntpsec.service",
    ),
    sysctls=("kernel.numa_balancing", "kernel.dmesg_restrict", "vm.nr_hugepages", "fs.file-max"),
    containerd=True,
    collectors=COLLECTORS,
)

"""Healthy machines, recorded or composed, and functions that put faults into copies of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from copy import deepcopy
from datetime import datetime
from typing import Any

from gpuprov.doctor.examination import Examination
from gpuprov.doctor.look import examination
from gpuprov.probe.facts import Facts
from tests import ROOT

RECORDED = ROOT / "tests/recorded"
AT = "2026-11-22T12:00:00Z"
NOW = datetime.fromisoformat(AT).timestamp()
Collectors = dict[str, Any]
Change = Callable[[Collectors], None]
UNITS = {
    "nvidia-persistenced.service": "loaded active enabled",
    "nvidia-fabricmanager.service": "loaded active enabled",
    "docker.service": "loaded active enabled",
    "chrony.service": "loaded active enabled",
    "kubelet.service": "not-found inactive ",
    "nvidia-imex.service": "not-found inactive ",
}
CONFIG = """\
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"
[nvidia-container-cli]
environment = []
ldconfig = "@/sbin/ldconfig.real"
load-kmods = true
[nvidia-container-runtime]
log-level = "info"
mode = "auto"
runtimes = ["docker-runc", "runc", "crun"]
"""
"""Defaults of the container toolkit's configuration on Ubuntu."""


def as_examined(collectors: Collectors, host: str = "gpu01") -> Examination:
    """Return an examination of these raw values."""
    return examination(Facts(host, AT, 0.4, collectors))


def recorded(name: str) -> Collectors:
    """Return a recording of real H200 or H100 in a container of a virtual machine."""
    result: Collectors = json.loads((RECORDED / f"doctor/{name}.json").read_text())["collectors"]
    result["packages"]["text"] += "\n"  # the probe joins lines; machines and faults append to them
    return result


def virtual() -> Collectors:
    """Return the recording with two H200."""
    return recorded("h200x2")


def four() -> Collectors:
    """Return four H200: the recorded facts and nvidia-smi output; the other collectors have no values."""
    folder = RECORDED / "h200x4"
    result: Collectors = json.loads((folder / "facts.json").read_text())["collectors"]
    result["smi"] = {"rc": 0, "stdout": (folder / "q.xml").read_text(), "stderr": ""}
    result["nvlink"] = {"status": (folder / "nvlink.txt").read_text(), "errors": ""}
    result["topo"] = {"text": (folder / "topo-m.txt").read_text()}
    return result


def unit_text(units: dict[str, str]) -> str:
    """Return `systemctl show` output for units that are given as load state, active state, file state."""
    blocks = []
    for name, states in units.items():
        load, active, file = [*states.split(" "), "", ""][:3]
        blocks.append(
            f"Id={name}\nNames={name}\nLoadState={load}\nActiveState={active}\nSubState=running\n"
            f"UnitFileState={file}\nResult=success\n"
        )
    return "\n".join(blocks)


def bare_metal() -> Collectors:
    """Return a healthy bare-metal server with two H200, NVSwitches, InfiniBand and Docker."""
    result = virtual()
    kernel = "6.8.0-87-generic"
    result["system"].update(kernel=kernel, cmdline="BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro iommu=pt")
    result["kernels"] = {
        "modules": [kernel],
        "boot": [kernel],
        "headers": [kernel],
        "grub_default": None,
        "grub_environment": None,
    }
    result["disk_modules"] = {kernel: modinfo(kernel)}
    result["dkms"] = [["nvidia", "580.159.04", kernel, "x86_64", "installed"]]
    result["modules"]["loaded"] += "\nnvidia_peermem 16384 0 - Live 0x0\nib_core 16384 1 - Live 0x0"
    result["units"] = {"text": unit_text(UNITS)}
    result["limits"] = {
        "pam": [["/etc/security/limits.d/x.conf", "* - memlock unlimited"]],
        "systemd": "DefaultLimitMEMLOCK=infinity",
    }
    result["cpu"].update(numa={"0": "0-15", "1": "16-31"}, governors={"performance": 32}, sockets=2)
    result["sysctls"]["kernel.numa_balancing"] = "0"
    result["host_state"].update(
        virtual="Supermicro SYS-821GE",
        clock={"state": 0, "unsynchronised": False, "offset_us": 12, "worst_us": 4000, "estimated_us": 5},
        boots=[int(NOW - 86400 * 9)],
        phys_states={"mlx5_0/1": "5: LinkUp", "mlx5_1/1": "5: LinkUp"},
        space=[
            ["/", "ext4", 200000, 90000, 100000, 90000, "rw"],
            ["/boot", "ext4", 1000, 700, 1000, 900, "rw"],
        ],
    )
    gpus = [row for row in result["pci"] if row[1] == "0x10de"]
    gpus[0][6], gpus[1][6] = "0", "1"
    result["pci"] += [
        ["0000:c1:00.0", "0x10de", "0x22a3", "0x068000", "0x10de", "0x1796", "0", "nvidia-nvswitch"],
        ["0000:18:00.0", "0x15b3", "0x1021", "0x020700", "0x15b3", "0x0041", "0", "mlx5_core"],
        ["0000:2a:00.0", "0x15b3", "0x1021", "0x020700", "0x15b3", "0x0041", "1", "mlx5_core"],
    ]
    result["hcas"] = [hca("mlx5_0", "0000:18:00.0"), hca("mlx5_1", "0000:2a:00.0")]
    for chain in result["pci_links"].values():
        chain[0]["iommu_type"] = "identity"
        chain.append(
            dict(
                chain[0], address="0000:15:01.0", driver="pcieport", bars=[0] * 6, acs=False, iommu_type=None
            )
        )
    result["packages"]["text"] += "".join(
        f"{name}\tamd64\t{version}\t{name}\thold ok installed\n"
        for name, version in (
            ("nvidia-driver-580-open", "580.159.04-0ubuntu1"),
            ("libnvidia-compute-580", "580.159.04-0ubuntu1"),
            ("nvidia-fabricmanager", "580.159.04-1"),
            ("nvidia-container-toolkit", "1.18.0-1"),
        )
    )
    result["packages"]["text"] = re.sub(r"cuda-compat-13-0[^\n]*\n", "", result["packages"]["text"])
    result["container_state"].update(
        docker_path="/usr/bin/docker",
        docker_info='systemd {"nvidia":{"path":"nvidia-container-runtime"},"runc":{"path":"runc"}}',
        hook="/usr/bin/nvidia-container-runtime-hook",
        runtime="/usr/bin/nvidia-container-runtime",
        toolkit=True,
        ldconfig="@/sbin/ldconfig.real",
        ldconfig_exists=True,
        char_links=6,
    )
    result["toolkit"] = {"config": CONFIG, "default": CONFIG, "cdi": {}}
    result["daemon_json"] = {
        "value": {"runtimes": {"nvidia": {"path": "nvidia-container-runtime", "args": []}}}
    }
    result["gpu_tools"]["nvidia_modprobe"] = "/usr/bin/nvidia-modprobe"
    return result


def modinfo(kernel: str, version: str = "580.159.04", signer: str = "DKMS module signing key") -> str:
    """Return modinfo's output for a module from DKMS."""
    return (
        f"filename:       /lib/modules/{kernel}/updates/dkms/nvidia.ko\nversion:        {version}\n"
        f"license:        Dual MIT/GPL\nvermagic:       {kernel} SMP preempt mod_unload\nsigner:        "
        f" {signer}"
    )


def hca(name: str, pci: str, state: str = "4: ACTIVE", rate: str = "400 Gb/sec (4X NDR)") -> dict[str, Any]:
    """Return a port of an InfiniBand card."""
    return {
        "name": name,
        "port": "1",
        "state": state,
        "rate": rate,
        "link_layer": "InfiniBand",
        "interfaces": [],
        "firmware": "28.43",
        "pci": pci,
        "gids": [],
    }


def old_pascal() -> Collectors:
    """Return a workstation with one GPU and Debian's own driver, without any server component."""
    result = deepcopy(json.loads((RECORDED / "verify/debian12-a100x4.facts.json").read_text())["collectors"])
    base = virtual()
    for name, value in base.items():
        result.setdefault(name, deepcopy(value))
    result["host_state"]["virtual"] = "ASUS WS"
    result["host_state"]["clock"] = {"state": 0, "unsynchronised": False, "offset_us": 0}
    result["libraries"] = {
        "cache": [
            "libcuda.so.1 (libc6,x86-64) => /l/libcuda.so.1",
            "libnvidia-ml.so.1 (libc6) => /l/libnvidia-ml.so.1",
        ],
        "copies": {},
        "configured": {},
        "taken": {
            "libcuda.so.1": "/l/libcuda.so.535.309.01",
            "libnvidia-ml.so.1": "/l/libnvidia-ml.so.535.309.01",
        },
        "firmware": ["535.309.01"],
    }
    result["pci_links"], result["nvlink"] = {}, {"status": "", "errors": ""}
    result["topo"] = {"text": ""}
    result["state"]["device_nodes"] = [f"/dev/nvidia{number}" for number in range(4)] + [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
    ]
    result["modules"]["loaded"] = "nvidia_uvm 1 0 - Live 0x0\nnvidia 1 1 - Live 0x0"
    result["container_state"] = dict(base["container_state"], docker_path="")
    return result


def without_gpu() -> Collectors:
    """Return a virtual machine without a GPU or driver."""
    result = bare_metal()
    result["pci"] = [row for row in result["pci"] if row[1] != "0x10de"]
    result["pci_links"] = {}
    result["smi"] = {"error": "nvidia-smi is not installed"}
    result["modules"] = {"loaded": "", "driver": None, "params": None}
    result["disk_modules"], result["dkms"] = {}, []
    result["packages"]["text"] = "bash\tamd64\t5.2\tbash\tinstall ok installed\n"
    result["nvlink"], result["topo"] = {"status": "", "errors": ""}, {"text": ""}
    result["libraries"].update(cache=[], copies={}, taken={}, firmware=[])
    result["state"]["device_nodes"] = []
    result["hcas"] = []
    return result


def busy() -> Collectors:
    """Return the healthy server under full load: power cap active, P0."""
    result = bare_metal()
    edit_smi(result, r"<gpu_util>0 %", "<gpu_util>100 %")
    edit_smi(result, r"(clocks_event_reason_sw_power_cap>)Not Active", r"\1Active")
    edit_smi(result, r"(clocks_event_reason_gpu_idle>)Active", r"\1Not Active")
    edit_smi(result, r"(<sm_clock>)\d+", r"\g<1>1650")
    edit_smi(result, r"(<instant_power_draw>)[\d.]+ W", r"\g<1>693.20 W")
    log(result, "NVRM: Xid (PCI:0000:00:06): 31, pid=4711, name=python, Ch 00000008", age_s=7200)
    return result


def idle_links() -> Collectors:
    """Return the idle server: links at Gen 1, GPUs in P8."""
    result = bare_metal()
    edit_smi(result, r"(<current_link_gen>)5", r"\g<1>1")
    edit_smi(result, r"(<performance_state>)P0", r"\1P8")
    for chain in result["pci_links"].values():
        chain[0]["current_link_speed"] = "2.5 GT/s PCIe"
    return result


HEALTHY: dict[str, Callable[[], Collectors]] = {
    "recorded h200x1": lambda: recorded("h200x1"),
    "recorded h200x2": virtual,
    "recorded h200x2 with PyTorch": lambda: recorded("h200x2-pytorch"),
    "recorded h200x4": four,
    "recorded h200x4 with PyTorch": lambda: recorded("h200x4"),
    "recorded h100x4 with PyTorch": lambda: recorded("h100x4"),
    "bare metal": bare_metal,
    "debian12 a100x4": old_pascal,
    "without a GPU": without_gpu,
    "busy": busy,
    "asleep": idle_links,
}


def edit_smi(result: Collectors, pattern: str, text: str, count: int = 0) -> None:
    """Change nvidia-smi's output; the pattern must match."""
    result["smi"]["stdout"], times = re.subn(pattern, text, result["smi"]["stdout"], count=count)
    assert times, pattern


def log(result: Collectors, *lines: str, age_s: float = 600) -> None:
    """Add lines to the kernel's log."""
    result["kernel_log"]["kept"] += [[NOW - age_s, line] for line in lines]


def unit(result: Collectors, name: str, states: str) -> None:
    """Set a unit's states."""
    result["units"]["text"] = unit_text({**UNITS, name: states})


def package(result: Collectors, name: str, version: str, state: str = "install ok installed") -> None:
    """Add or replace a package."""
    rest = re.sub(rf"(?m)^{re.escape(name)}\t.*\n", "", result["packages"]["text"])
    result["packages"]["text"] = f"{rest}{name}\tamd64\t{version}\t{name}\t{state}\n"


def unload(
    result: Collectors,
    said: str = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
) -> None:
    """Unload all NVIDIA modules; nvidia-smi then prints `said`."""
    result["modules"] = {"loaded": "ib_core 1 1 - Live 0x0", "driver": None, "params": None}
    result["smi"] = {"rc": 9, "stdout": said, "stderr": ""}
    result["nvlink"], result["topo"] = {"status": "", "errors": ""}, {"text": ""}
    for row in result["pci"]:
        row[7] = "" if row[1] == "0x10de" else row[7]


def holder(**values: Any) -> dict[str, Any]:
    """Return a program that uses the first GPU."""
    return {
        "pid": 4711,
        "name": "python",
        "state": "S",
        "ppid": 1,
        "uid": "1000",
        "cpus": "0-31",
        "threads": "8",
        "waits": "0",
        "gpus": ["nvidia0", "nvidia-uvm"],
        "memlock": "unlimited",
        "nofile": "65536",
        "variables": {},
        "own_namespace": True,
        **values,
    }

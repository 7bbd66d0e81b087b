"""Faults that a simulated node can have, and how each is put in and taken out."""

from __future__ import annotations

from dataclasses import dataclass

SIM = "/usr/lib/gpuprov-sim"


@dataclass(frozen=True)
class Seeded:
    """One fault on a node.

    Args:
        rule: that has to find it.
        seed: the shell line that puts it in.
        undo: the line that takes it out, where the doctor's own lines are not typed.
        typed: whether the lines that the doctor prints are typed, and have to mend it.
        reboot: whether it takes a boot to be seen, and another to be gone.
    """

    rule: str
    seed: str
    undo: str = ""
    typed: bool = False
    reboot: bool = False


def log(text: str) -> str:
    """A line in the node's journal, as the kernel's."""
    return f"logger -t kernel {text!r}; sleep 0.3"


FORGET = "journalctl --rotate; journalctl --vacuum-time=1s; sleep 1"
DAEMON = "/etc/docker/daemon.json"

SEEDED = (
    Seeded("driver.persistence", "nvidia-smi -pm 0", "nvidia-smi -pm 1"),
    Seeded("speed.power_limit", "nvidia-smi -i 3 -pl 350", typed=True),
    Seeded("speed.fixed_clocks", "nvidia-smi -i 0 -ac 2619,1200", typed=True),
    Seeded("cuda.exclusive", "nvidia-smi -i 1 -c 3", typed=True),
    Seeded("cuda.exclusive", "nvidia-smi -i 1 -c 2", typed=True),
    Seeded("errors.ecc_off", "nvidia-smi -i 2 -e 0", "nvidia-smi -i 2 -e 1"),
    Seeded("cuda.mig_left", "nvidia-smi -i 4 -mig 1", typed=True),
    Seeded("driver.smi", "gpuprov-sim fault hang", "gpuprov-sim mend"),
    Seeded("driver.mismatch", "gpuprov-sim fault mismatch", "gpuprov-sim mend"),
    Seeded("bus.count", "gpuprov-sim fault no-devices", "gpuprov-sim mend"),
    Seeded("errors.xid", "gpuprov-sim fault gpu-lost 5", f"gpuprov-sim mend; {FORGET}"),
    *(
        Seeded("errors.xid", f"gpuprov-sim fault xid 2 {code}; sleep 0.3", FORGET)
        for code in (13, 31, 43, 45, 48, 62, 63, 64, 74, 92, 94, 95, 119, 140)
    ),
    Seeded(
        "errors.sxid",
        log("nvidia-nvswitch0: SXid (PCI:0000:85:00.0): 22013, Fatal, Link 27 Minion Link DLREQ interrupt"),
        FORGET,
    ),
    Seeded(
        "errors.recovery",
        log(
            "NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU "
            "Reset Required)"
        ),
        FORGET,
    ),
    Seeded(
        "driver.flavour",
        log("NVRM: installed in this system requires use of the NVIDIA open kernel modules."),
        FORGET,
    ),
    Seeded(
        "bus.bar_log",
        log("NVRM: This PCI I/O region assigned to your NVIDIA device is invalid: BAR1 is 0M @ 0x0"),
        FORGET,
    ),
    Seeded("host.killed", log("Out of memory: Killed process 812 (python) total-vm:12kB"), FORGET),
    Seeded("host.hangs", log("INFO: task python:812 blocked for more than 120 seconds."), FORGET),
    Seeded("storage.disk_errors", log("nvme nvme0: I/O 9 QID 2 timeout, reset controller"), FORGET),
    Seeded("storage.network", log("nfs: server fs1 not responding, still trying"), FORGET),
    Seeded(
        "network.card",
        log("mlx5_core 0000:18:00.0: Detected insufficient power on the PCIe slot (27W)."),
        FORGET,
    ),
    Seeded("cuda.hmm", log("nvidia-uvm: HMM: initialization failed"), FORGET),
    Seeded(
        "driver.blacklisted",
        "echo 'blacklist nvidia' >/etc/modprobe.d/zz.conf",
        "rm -f /etc/modprobe.d/zz.conf",
        reboot=True,
    ),
    Seeded(
        "cuda.hidden",
        "echo CUDA_VISIBLE_DEVICES=-1 >>/etc/environment",
        "sed -i /CUDA_VIS/d /etc/environment",
    ),
    Seeded(
        "cuda.mps",
        "echo CUDA_MPS_PIPE_DIRECTORY=/run/mps >>/etc/environment",
        "sed -i /CUDA_MPS/d /etc/environment",
    ),
    Seeded(
        "cuda.compat",
        "echo LD_LIBRARY_PATH=/usr/local/cuda/compat >>/etc/environment",
        "sed -i /LD_LIB/d /etc/environment",
    ),
    Seeded(
        "cuda.stubs",
        "mkdir -p /opt/cuda/stubs; echo /opt/cuda/stubs >/etc/ld.so.conf.d/stubs.conf",
        "rm /etc/ld.so.conf.d/stubs.conf",
    ),
    Seeded("network.nccl_variables", "echo NCCL_P2P_DISABLE=1 >/etc/nccl.conf", "rm /etc/nccl.conf"),
    Seeded("network.nccl_variables", "echo NCCL_SOCKET_IFNAME=bond7 >/etc/nccl.conf", "rm /etc/nccl.conf"),
    Seeded("driver.two", "touch /usr/bin/nvidia-uninstall", "rm /usr/bin/nvidia-uninstall"),
    Seeded(
        "driver.reboot_pending",
        "touch /run/reboot-required; echo libc6 >/run/reboot-required.pkgs",
        "rm /run/reboot-required*",
    ),
    Seeded("packages.interrupted", "touch /var/lib/dpkg/updates/0001", "rm -f /var/lib/dpkg/updates/0001"),
    Seeded(
        "packages.repositories",
        "echo 'deb "
        "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64/ /' "
        ">/etc/apt/sources.list.d/nv.list",
        "rm /etc/apt/sources.list.d/nv.list",
    ),
    Seeded(
        "containers.ldconfig",
        "mkdir -p /etc/nvidia-container-runtime; echo 'ldconfig = "
        '"@/sbin/ldconfig.real"\' '
        ">/etc/nvidia-container-runtime/config.toml",
        "rm -r /etc/nvidia-container-runtime",
    ),
    Seeded(
        "containers.cdi_stale",
        "mkdir -p /etc/cdi; echo 'hostPath: /usr/lib/libcuda.so.470.82.01' >/etc/cdi/nvidia.yaml",
        "rm -r /etc/cdi",
    ),
    Seeded(
        "containers.missing_runtime",
        f'mkdir -p /etc/docker; echo \'{{"runtimes":{{"nvidia":{{}}}}}}\' >{DAEMON}',
        f"rm {DAEMON}",
    ),
    Seeded(
        "stack.frameworks",
        "d=/opt/x/lib/python3.11/site-packages/torch; mkdir -p $d; "
        'printf \'__version__ = "1.13.1+cu117"\\ncuda = "11.7"\\n\' >$d/version.py',
        "rm -r /opt/x",
    ),
    Seeded(
        "cuda.copies",
        "touch /usr/lib/x86_64-linux-gnu/libcuda.so.470.82.01 /usr/local/lib/libcuda.so.535.309.01",
        "rm /usr/lib/x86_64-linux-gnu/libcuda.so.470.82.01 /usr/local/lib/libcuda.so.535.309.01",
    ),
    Seeded("storage.shm", "mount -t tmpfs -o size=64m small /dev/shm", "umount /dev/shm"),
    Seeded("fabric.manager", "systemctl stop nvidia-fabricmanager", "systemctl start nvidia-fabricmanager"),
)

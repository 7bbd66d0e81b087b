"""Faults of a simulated node, with the commands that cause and remove them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

NEWER = "535.400.01"
"""Version of the newer driver whose modules and libraries are prepared under /opt/driver."""


@dataclass(frozen=True)
class Seeded:
    """One fault on a node.

    Args:
        rule: the rule that must find it.
        seed: shell line that causes it.
        undo: shell line that removes it by hand; if empty, the doctor's printed commands are run and must
            correct it.
        why: reason why the doctor's printed commands cannot be run on such a node.
        reboot: whether the fault appears only after a reboot.
        after: shell line that removes what the seed or its correction leaves.
    """

    rule: str
    seed: str
    undo: str = ""
    why: str = ""
    reboot: bool = False
    after: str = ""


def log(text: str) -> str:
    """Return a command that adds a line to the kernel's log of the node."""
    return f"gpuprov-sim log {text!r}; sleep 0.3"


FORGET = "journalctl --rotate; journalctl --vacuum-time=1s; sleep 1; gpuprov-sim log Linux version 6.1.0"
"""Empties the kernel's log but for a line: without any, a fault in it is not known to be gone."""
DAEMON = "/etc/docker/daemon.json"
HARDWARE = "asks for a hand at the machine"
RESET = "a reset leaves the line in the log, and this driver has no Xid 154 that takes it back"
PROGRAM = "the line stays in the log for as long as the machine runs"
ARCHIVE = "asks for a package of an archive that these nodes do not have"


def logged(rule: str, text: str, why: str = PROGRAM) -> Seeded:
    """Return a fault in the kernel log, which only time or a reboot removes."""
    return Seeded(rule, log(text), FORGET, why)


def package(name: str, version: str, then: str = "-i") -> str:
    """Return a command that gives dpkg a package without files."""
    fields = (
        f"Package: {name}\\nVersion: {version}\\nArchitecture: all\\nMaintainer: Lab <lab@lab>\\n"
        "Description: seeded\\n"
    )
    return (
        f"d=$(mktemp -d); mkdir $d/DEBIAN; printf '{fields}' >$d/DEBIAN/control; "
        f"dpkg-deb -b $d $d.deb >/dev/null; dpkg {then} $d.deb"
    )


def seeded() -> Iterator[Seeded]:
    """Yield all faults, those of settings first."""
    yield from SETTINGS
    yield from DRIVER
    yield from FILES
    yield from PACKAGES
    yield from LOGS


SETTINGS = (
    Seeded("driver.persistence", "nvidia-smi -pm 0"),
    Seeded("speed.power_limit", "nvidia-smi -i 3 -pl 350"),
    Seeded("speed.fixed_clocks", "nvidia-smi -i 0 -ac 2619,1200"),
    Seeded("cuda.exclusive", "nvidia-smi -i 1 -c 3"),
    Seeded("cuda.exclusive", "nvidia-smi -i 1 -c 2"),
    Seeded("errors.ecc_off", "nvidia-smi -i 2 -e 0"),
    Seeded("errors.ecc_off", "nvidia-smi -i 2 -e 0", reboot=True),
    Seeded("cuda.mig_left", "nvidia-smi -i 4 -mig 1"),
    Seeded("fabric.manager", "systemctl stop nvidia-fabricmanager"),
    Seeded(
        "storage.shm",
        "mount -t tmpfs -o size=64m small /dev/shm",
        "umount /dev/shm",
        "is started anew from outside: these nodes are containers",
    ),
)
DRIVER = (
    Seeded(
        "driver.mismatch",
        f"switch-driver {NEWER}",
        after="switch-driver 535.309.01; systemctl stop nvidia-persistenced nvidia-fabricmanager; "
        "modprobe -r nvidia_uvm nvidia; modprobe -a nvidia nvidia_uvm; "
        "systemctl start nvidia-persistenced nvidia-fabricmanager",
    ),
    Seeded(
        "driver.not_loaded",
        "systemctl stop nvidia-persistenced nvidia-fabricmanager; modprobe -r nvidia_uvm nvidia; "
        f"{package('nvidia-kernel-535', '535.309.01-1')}",
        after="dpkg -P nvidia-kernel-535; modprobe nvidia_uvm; systemctl start nvidia-persistenced",
    ),
    Seeded("driver.uvm", "modprobe -r nvidia_uvm", after="rm -f /etc/modules-load.d/nvidia-uvm.conf"),
    Seeded("driver.blacklisted", "echo 'blacklist nvidia' >/etc/modprobe.d/zz.conf", reboot=True),
    Seeded("bus.nouveau", "rm /etc/modprobe.d/nouveau.conf", reboot=True),
    Seeded(
        "driver.two",
        "printf '#!/bin/sh\\nrm \"$0\"\\n' >/usr/bin/nvidia-uninstall; chmod +x /usr/bin/nvidia-uninstall",
    ),
    Seeded("driver.smi", "gpuprov-sim fault hang", "gpuprov-sim mend", HARDWARE),
    Seeded("driver.mismatch", "gpuprov-sim fault mismatch", "gpuprov-sim mend", "played by the simulator"),
    Seeded("bus.count", "gpuprov-sim fault no-devices", "gpuprov-sim mend", HARDWARE),
    Seeded("errors.xid", "gpuprov-sim fault gpu-lost 5", f"gpuprov-sim mend; {FORGET}", HARDWARE),
)
FILES = (
    Seeded("cuda.hidden", "echo CUDA_VISIBLE_DEVICES=-1 >>/etc/environment"),
    Seeded("cuda.mps", "echo CUDA_MPS_PIPE_DIRECTORY=/run/mps >>/etc/environment"),
    Seeded(
        "cuda.compat",
        "echo LD_LIBRARY_PATH=/usr/local/cuda/compat:/usr/lib >>/etc/environment",
        after="sed -i /LD_LIB/d /etc/environment",
    ),
    Seeded("cuda.stubs", "mkdir -p /opt/cuda/stubs; echo /opt/cuda/stubs >/etc/ld.so.conf.d/stubs.conf"),
    Seeded("network.nccl_variables", "echo NCCL_P2P_DISABLE=1 >/etc/nccl.conf"),
    Seeded("network.nccl_variables", "echo NCCL_SOCKET_IFNAME=bond7 >/etc/nccl.conf"),
    Seeded("network.nccl_variables", "echo export NCCL_IB_DISABLE=1 >/etc/profile.d/ib.sh"),
    Seeded(
        "cuda.copies",
        "touch /usr/lib/x86_64-linux-gnu/libcuda.so.470.82.01 /usr/local/lib/libcuda.so.535.309.01",
        after="rm /usr/local/lib/libcuda.so.535.309.01",
    ),
    Seeded(
        "containers.ldconfig",
        "cp /opt/nvidia-ctk /usr/bin; mkdir -p /etc/nvidia-container-runtime; "
        "echo 'ldconfig = \"@/sbin/ldconfig.real\"' >/etc/nvidia-container-runtime/config.toml",
        after="rm -r /etc/nvidia-container-runtime /usr/bin/nvidia-ctk",
    ),
    Seeded(
        "containers.cdi_stale",
        "cp /opt/nvidia-ctk /usr/bin; mkdir -p /etc/cdi; "
        "echo 'hostPath: /usr/lib/libcuda.so.470.82.01' >/etc/cdi/nvidia.yaml",
        after="rm -r /etc/cdi /usr/bin/nvidia-ctk",
    ),
    Seeded(
        "containers.missing_runtime",
        f'mkdir -p /etc/docker; echo \'{{"runtimes":{{"nvidia":{{}}}}}}\' >{DAEMON}',
        f"rm {DAEMON}",
        ARCHIVE,
    ),
    Seeded(
        "stack.frameworks",
        "d=/opt/x/lib/python3.11/site-packages/torch; mkdir -p $d; "
        'printf \'__version__ = "1.13.1+cu117"\\ncuda = "11.7"\\n\' >$d/version.py',
        "rm -r /opt/x",
        "says which versions would work, for a person to choose from",
    ),
)
PACKAGES = (
    Seeded("driver.reboot_pending", "touch /run/reboot-required; echo libc6 >/run/reboot-required.pkgs"),
    Seeded("packages.interrupted", package("nvidia-seeded", "1", "--unpack"), after="dpkg -P nvidia-seeded"),
    Seeded(
        "packages.unattended",
        package("libnvidia-compute-535", "535.309.01-1")
        + "; echo 'APT::Periodic::Unattended-Upgrade \"1\";' >/etc/apt/apt.conf.d/98seeded",
        after="apt-mark unhold libnvidia-compute-535; dpkg -P libnvidia-compute-535; "
        "rm /etc/apt/apt.conf.d/98seeded",
    ),
    Seeded(
        "packages.reboots",
        'printf \'APT::Periodic::Unattended-Upgrade "1";\\nUnattended-Upgrade::Automatic-Reboot "true";\\n\' '
        ">/etc/apt/apt.conf.d/98seeded",
        after="rm /etc/apt/apt.conf.d/98seeded /etc/apt/apt.conf.d/99-no-automatic-reboot",
    ),
    Seeded(
        "packages.repositories",
        "echo 'deb https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64/ /' "
        ">/etc/apt/sources.list.d/nv.list",
        after="rm /etc/apt/sources.list.d/nv.list.disabled",
    ),
)
LOGS = (
    Seeded(
        "errors.recovery",
        log(
            "NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node "
            "Reboot Required)"
        ),
    ),
    Seeded(
        "errors.sxid",
        log("nvidia-nvswitch0: SXid (PCI:0000:85:00.0): 22013, Fatal, Link 27 Minion Link DLREQ interrupt"),
    ),
    Seeded(
        "cuda.hmm",
        log("nvidia-uvm: HMM: initialization failed"),
        after="rm /etc/modprobe.d/nvidia-uvm-hmm.conf",
    ),
    *(
        Seeded("errors.xid", f"gpuprov-sim fault xid 2 {code}; sleep 0.3", FORGET, why)
        for codes, why in (((13, 31, 43, 45, 63, 92), PROGRAM), ((48, 62, 64, 74, 94, 95, 119, 140), RESET))
        for code in codes
    ),
    Seeded(
        "driver.flavour",
        "gpuprov-sim fault no-devices; "
        + log("NVRM: installed in this system requires use of the NVIDIA open kernel modules."),
        f"gpuprov-sim mend; {FORGET}",
        ARCHIVE,
    ),
    logged(
        "bus.bar_log",
        "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid: BAR1 is 0M @ 0x0",
        HARDWARE,
    ),
    logged("host.killed", "Out of memory: Killed process 812 (python) total-vm:12kB"),
    logged("host.hangs", "INFO: task python:812 blocked for more than 120 seconds."),
    logged("storage.disk_errors", "nvme nvme0: I/O 9 QID 2 timeout, reset controller", HARDWARE),
    logged("storage.network", "nfs: server fs1 not responding, still trying", "the server is elsewhere"),
    logged(
        "network.card",
        "mlx5_core 0000:18:00.0: Detected insufficient power on the PCIe slot (27W).",
        HARDWARE,
    ),
)

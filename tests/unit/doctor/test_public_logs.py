"""Kernel logs and nvidia-smi output from public reports (sources: `data/faults.json`)."""

from __future__ import annotations

import pytest

from gpuprov.doctor.fault import Fault
from gpuprov.doctor.judge import diagnose
from gpuprov.probe.node.kernel_messages import WANTED
from tests import ROOT
from tests.unit.doctor.faults import FAULTS
from tests.unit.doctor.machines import as_examined, bare_metal, edit_smi, log, unload

X = "NVRM: Xid (PCI:0000:00:06): "
LOGS: dict[str, tuple[str, str]] = {
    f"{X}79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.": ("errors.xid", "broken"),
    "NVRM: The NVIDIA GPU 0000:00:06.0 NVRM: (PCI ID: 10de:26b5) installed in this system has NVRM: fallen "
    "off the bus and is not responding to commands.": ("errors.xid", "broken"),
    f"{X}94, pid=7194, name=python, Contained: SM (0x1). RST: No, D-RST: No": ("errors.xid", "degraded"),
    f"{X}95, pid=7062, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No": ("errors.xid", "broken"),
    f"{X}119, pid=1502, name=nvidia-smi, Timeout after 45s of waiting for RPC response from GPU0 GSP!": (
        "errors.xid",
        "broken",
    ),
    f"{X}31, pid=12, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS": (
        "errors.xid",
        "hint",
    ),
    f"{X}63, pid=1896, Row Remapper: New row (0x00000000c0f1) marked for remapping": ("errors.xid", "risk"),
    f"{X}64, pid=1896, Row Remapper: Error writing to the InfoROM": ("errors.xid", "broken"),
    f"{X}74, pid=1062, name=kworker, NVLink: fatal error detected on link 6": ("errors.xid", "degraded"),
    f"{X}13, pid=4, Graphics SM Warp Exception on (GPC 1, TPC 6, SM 0): Out Of Range Address": (
        "errors.xid",
        "hint",
    ),
    f"{X}48, pid=1, An uncorrectable double bit error (DBE) has been detected": ("errors.xid", "broken"),
    "NVRM: Xid (0000:00:06): 62, 0c76(27ac) 00000000 00000000": ("errors.xid", "broken"),
    f"{X}149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)": ("errors.xid", "degraded"),
    f"{X}154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)": (
        "errors.recovery",
        "broken",
    ),
    f"{X}154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)": (
        "errors.recovery",
        "broken",
    ),
    "nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error": (
        "errors.sxid",
        "risk",
    ),
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 28 LTSSM Fault Up": (
        "errors.sxid",
        "broken",
    ),
    "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid: NVRM: BAR1 is 0M @ 0x0": (
        "bus.bar_log",
        "broken",
    ),
    "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:0a65) NVRM: installed in this system is supported "
    "through the NVIDIA 340.xx Legacy drivers.": ("driver.too_new", "broken"),
    "mlx5_core 0000:5e:00.0: mlx5_pcie_event:301:(pid 268269): Detected insufficient power on the PCIe slot "
    "(27W).": ("network.card", "degraded"),
    "mlx5_core 0000:d2:00.0: Port module event[error]: module 0, Cable error, High Temperature": (
        "network.card",
        "degraded",
    ),
    "Memory cgroup out of memory: Killed process 812 (python), UID 0, total-vm:40124672kB": (
        "host.killed",
        "risk",
    ),
    "INFO: task jbd2/dm-0-8:1234 blocked for more than 120 seconds.": ("host.hangs", "degraded"),
    "watchdog: BUG: soft lockup - CPU#12 stuck for 27s! [python:1]": ("host.hangs", "degraded"),
    "nvme nvme0: I/O 127 QID 12 timeout, reset controller": ("storage.disk_errors", "degraded"),
    "EXT4-fs (sda1): Remounting filesystem read-only": ("storage.disk_errors", "degraded"),
    "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping": (
        "network.peermem_log",
        "risk",
    ),
    "nfs: server 192.0.2.5 not responding, still trying": ("storage.network", "degraded"),
}
ANSWERS = {
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
    "NVIDIA driver is installed and running.": "driver.smi",
    "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.86": (
        "driver.mismatch"
    ),
    "Failed to initialize NVML: Unknown Error": "driver.smi",
    "Failed to initialize NVML: Insufficient Permissions": "driver.permissions",
    "Unable to determine the device handle for GPU0000:00:06.0: Unknown Error": "bus.lost",
    "No devices were found": "bus.count",
}
HARMLESS = (
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build",
    "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
    "pcieport 0000:00:01.0: AER: Multiple Corrected error message received from 0000:01:00.0",
    "nvme nvme0: 32/0/0 default/read/poll queues",
    "EDAC MC0: Giving out device to module skx_edac",
    "mlx5_core 0000:5e:00.0 eth2: Link up",
    "DMAR: IOMMU enabled",
    "EXT4-fs (sda1): mounted filesystem with ordered data mode",
    "nvidia-nvlink: Nvlink Core is being initialized, major device number 240",
)


def first_of_a_log(text: str) -> Fault:
    """Return the doctor's first fault for a machine with this line in its kernel log."""
    result = bare_metal()
    if "154" in text:  # drivers that log Xid 154 without showing the action in nvidia-smi
        edit_smi(result, "<gpu_recovery_action>None</gpu_recovery_action>", "")
    log(result, text)
    return diagnose(as_examined(result)).faults[0]


def first_of_an_answer(text: str) -> Fault:
    """Return the doctor's first fault for a machine with this nvidia-smi output."""
    result = bare_metal()
    result["smi"] = {"rc": 9, "stdout": text, "stderr": ""}
    return diagnose(as_examined(result)).faults[0]


@pytest.mark.parametrize("text", LOGS)
def test_a_log_is_reported(text: str) -> None:
    assert WANTED.search(text), "the node does not send it"
    first = first_of_a_log(text)
    assert (first.rule, first.severity) == LOGS[text]


@pytest.mark.parametrize("text", ANSWERS)
def test_an_answer_is_reported(text: str) -> None:
    assert first_of_an_answer(text).rule == ANSWERS[text]


@pytest.mark.parametrize(
    "text",
    [
        "Lockdown: modprobe: unsigned module loading is restricted",
        "nvidia: Loading of module with unavailable key is rejected",
    ],
)
def test_a_rejected_module_is_reported(text: str) -> None:
    result = bare_metal()
    unload(result)
    result["state"]["secure_boot"] = True
    log(result, text)
    assert diagnose(as_examined(result)).faults[0].rule == "driver.rejected"


def test_the_page_counts_what_is_recorded() -> None:
    page = " ".join((ROOT / "docs/doctor.md").read_text("utf-8").split())
    faults, public = sum(map(len, FAULTS.values())), len(LOGS) + len(ANSWERS)
    assert f"{faults} recorded faults and {public} logs and outputs from public reports are tested" in page


def test_what_healthy_machines_write_is_no_fault() -> None:
    result = bare_metal()
    log(result, *HARMLESS)
    assert diagnose(as_examined(result)).faults == ()

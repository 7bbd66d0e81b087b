"""Lines of the kernel's log in a bundle, each only as far as a pattern matches, without the text after it."""

from __future__ import annotations

import re
from typing import Any

from gpuprov.doctor.bundle.choosing import OUT, Tally

_PCI = r"(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?"
_PATTERNS = (
    rf"NVRM: Xid \(PCI:{_PCI}\): \d{{1,4}}(?=,|$)",
    rf"NVRM: GPU (?:at PCI:)?{_PCI}: RmInitAdapter failed! \(0x[0-9a-f]+:0x[0-9a-f]+:\d+\)",
    rf"NVRM: GPU (?:at PCI:)?{_PCI}: GPU (?:has fallen off the bus|is lost)\.",
    r"NVRM: API mismatch",
    r"NVRM: loading NVIDIA UNIX (?:Open )?(?:x86_64 |aarch64 )?Kernel Module(?: for [a-z0-9_]{5,8})?"
    r" {1,4}\d{3}\.\d{1,3}(?:\.\d{1,3})?",
    r"NVRM: This PCI I/O region assigned to your NVIDIA device is invalid",
    r"NVRM: BAR\d is 0M @ 0x0",
    rf"NVRM: The NVIDIA GPU {_PCI} \(PCI ID: 10de:[0-9a-f]{{4}}\) NVRM: installed in this system "
    r"(?:is not supported by open NVRM: nvidia\.ko because it does not include the required GPU"
    r"|requires use of the NVIDIA open kernel modules"
    r"|is not supported by the NVRM: NVIDIA \d{3}\.\d{1,3}(?:\.\d{1,3})? driver release)",
    r"NVRM:? (?:GPU\d{1,3} )?_?kgsp\w{1,40}: (?:failed to wait for GFW[ _](?:boot complete|BOOT)"
    r"|unexpected WPR2 already up, cannot proceed with booting GSP)",
    r"NVRM:? (?:GPU\d{1,3} )?RmInitAdapter: Cannot initialize GSP firmware RM",
    rf"nvidia {_PCI}: Direct firmware load for nvidia/\d{{3}}\.[\d.]{{1,12}}/gsp_\w{{1,12}}\.bin failed",
    r"(?:nvidia(?:_(?:uvm|modeset|drm|fs|peermem))?|nv_peer_mem|gdrdrv): (?:disagrees about version of symbol"
    r"|Unknown symbol|module using GPL-only symbols uses symbols) (?:nvidia_p2p_[a-z_]{1,40}"
    r"|ib_(?:un)?register_peer_memory_client|nvUvmInterface[A-Za-z]{1,40}|radix_tree_preloads|ipmi_[a-z_]{1,40}"
    r"|drm_[a-z_]{1,60})",
    r"NVRM: (?:installed )?in this system is not supported by the"
    r"(?: \d{3}\.\d{1,3}(?:\.\d{1,3})?(?: NVIDIA Linux)?)?$",
    r"NVRM: NVIDIA \d{3}\.\d{1,3}(?:\.\d{1,3})? driver release\.$",
    r"NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x[0-9a-f]{1,8}, "
    r"requiring os reboot",
    r"NVRM: No NVIDIA GPU found\.",
    r"NVRM: The NVIDIA probe routine (?:failed|was not called) for \d+ device\(s\)\.",
    r"NVRM: rm_init_adapter failed",
    r"nvidia: module verification failed",
    r"nvidia: loading out-of-tree module taints kernel",
    rf"nvidia-nvswitch\d{{1,3}}: SXid \(PCI:{_PCI}\): \d{{1,6}}(?:, (?:Non-f|F)atal)?",
    rf"nvidia {_PCI}: (?:enabling device|probe with driver nvidia failed with error -?\d+)",
    rf"(?:pcieport|nvidia|mlx5_core|nvme) {_PCI}: (?:AER: (?:Multiple )?(?:Corr|Uncorr)ect(?:ed|able) "
    r"(?:\((?:Fatal|Non-Fatal)\) )?error|PCIe Bus Error: severity=(?:Correct|Uncorrect)(?:ed|able)"
    r"(?: \((?:Fatal|Non-Fatal)\))?, type=(?:Physical|Data Link|Transaction) Layer)",
    rf"pci {_PCI}: BAR \d{{1,2}}[: ](?:no space for|failed to assign|can't assign)",
    rf"(?:pciehp|pcieport) {_PCI}: (?:Slot\(\d+\): )?(?:Link Down|Card not present)",
    r"EDAC [A-Z0-9]{1,6}: \d{1,6} (?:CE|UE)",
    r"mce: \[Hardware Error\]: (?:Machine check events logged|CPU \d{1,4}: Machine Check)",
    r"Out of memory: Killed process \d{1,9}",
    r"Memory cgroup out of memory: Killed process \d{1,9}",
    r"(?:watchdog: )?BUG: soft lockup - CPU#\d{1,4} stuck for \d{1,6}s!",
    r"rcu: INFO: rcu_\w{1,20} (?:self-)?detected (?:stalls?|expedited stalls)",
    rf"mlx[45]_core {_PCI}(?: [a-z0-9]{{1,15}})?: Link (?:up|down)",
    r"nvme nvme\d{1,3}: (?:I/O \d{1,6} QID \d{1,4} timeout|controller is down|Abort status: 0x[0-9a-f]+)",
    r"EXT4-fs error",
    rf"(?:nvidia {_PCI}: )?AMD-Vi: Event logged(?: \[IO_PAGE_FAULT (?:device={_PCI} )?)?",
    rf"DMAR: \[DMA (?:Read|Write)[ A-Z_]{{0,12}}\] Request device \[{_PCI}\] fault addr",
    r"DMAR: DRHD: handling fault status",
    r"Kernel is locked down from (?:Kernel configuration|EFI Secure Boot(?: mode)?|command line)",
    r"Loading of unsigned module is rejected",
    r"Lockdown: modprobe",
)
_WANTED = tuple(re.compile(pattern, re.ASCII) for pattern in _PATTERNS)


def log_lines(value: Any, tally: Tally) -> Any:
    """Return time and matched beginning of each line that matches a pattern; the others are left out and
    counted.

    Args:
        value: rows of seconds since the epoch and text, from the collector `kernel_log`.
    """
    if not isinstance(value, list | tuple):
        tally.out += 1
        return OUT
    kept = []
    for entry in value:
        stamp, text = entry if isinstance(entry, list | tuple) and len(entry) == 2 else (0, None)
        said = text if isinstance(stamp, int | float) and isinstance(text, str) else ""
        match = next((m for each in _WANTED if (m := each.match(said))), None)
        if match:
            kept.append([stamp, match[0]])
        else:
            tally.out += 1
    return kept

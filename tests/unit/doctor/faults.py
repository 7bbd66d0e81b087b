"""Faults for healthy machines, one at a time: rule → a change that makes the rule report."""

from __future__ import annotations

import re
from typing import Any

from tests.unit.doctor.machines import (
    NOW,
    Change,
    Collectors,
    edit_smi,
    hca,
    holder,
    log,
    modinfo,
    package,
    unit,
    unload,
)

KERNEL = "6.8.0-87-generic"
FIRST = "0000:00:06.0"


def setting(path: str, value: Any) -> Change:
    """Return a change of one value of the collectors; example of a path: `host_state.clock.offset_us`."""

    def change(collected: Collectors) -> None:
        """Set the value at the path in the facts."""
        *way, last = (each.replace("\0", ".") for each in path.replace("\\.", "\0").split("."))
        for name in way:
            collected = collected[int(name)] if isinstance(collected, list) else collected[name]
        if isinstance(collected, list):
            collected[int(last)] = value
        else:
            collected[last] = value

    return change


def kernel_says(*lines: str, age_s: float = 600) -> Change:
    """Return a change that adds lines to the kernel's log."""
    return lambda collected: log(collected, *lines, age_s=age_s)


def smi_says(pattern: str, text: str) -> Change:
    """Return a change of nvidia-smi's output."""
    return lambda collected: edit_smi(collected, pattern, text, count=1)


def all_of(*changes: Change) -> Change:
    """Return a change that applies several changes."""

    def change(collected: Collectors) -> None:
        for each in changes:
            each(collected)

    return change


def unloaded(*changes: Change) -> Change:
    """Return a change that unloads all modules, and applies the changes that explain it."""
    return all_of(unload, *changes)


def bound_to(driver: str) -> Change:
    """Return a change that binds the GPUs to another driver."""

    def change(collected: Collectors) -> None:
        """Unload the driver, and bind the GPUs to another one."""
        unload(collected)
        for row in collected["pci"]:
            if row[3].startswith("0x03"):
                row[7] = driver

    return change


def units(name: str, states: str) -> Change:
    """Return a change of a unit's states."""
    return lambda collected: unit(collected, name, states)


def packages(name: str, version: str, state: str = "install ok installed") -> Change:
    """Return a change that adds a package or replaces its version."""
    return lambda collected: package(collected, name, version, state)


def only_one_gpu(collected: Collectors) -> None:
    """Remove all GPUs but the first from nvidia-smi's output."""
    text = collected["smi"]["stdout"]
    begin, end = text.rindex("<gpu "), text.rindex("</gpu>") + len("</gpu>")
    collected["smi"]["stdout"] = (text[:begin] + text[end:]).replace("<attached_gpus>2", "<attached_gpus>1")


def unlicensed(collected: Collectors) -> None:
    """Make the first GPU a virtual one whose guest driver has no licence."""
    edit_smi(collected, "<virtualization_mode>[^<]*<", "<virtualization_mode>VGPU<", count=1)
    edit_smi(
        collected,
        "</gpu_virtualization_mode>",
        "</gpu_virtualization_mode><vgpu_software_licensed_product><license_status>Unlicensed"
        "</license_status></vgpu_software_licensed_product>",
        count=1,
    )


def no_bus(collected: Collectors) -> None:
    """Remove the GPUs from PCI, but keep their packages."""
    unload(collected)
    collected["pci"] = [row for row in collected["pci"] if not row[3].startswith("0x03")]
    collected["pci_links"] = {}


def never_provisioned(collected: Collectors) -> None:
    """Remove everything of NVIDIA's except the GPUs."""
    unload(collected)
    collected["disk_modules"], collected["dkms"] = {KERNEL: ""}, []
    collected["packages"]["text"] = "bash\tamd64\t5.2\tbash\tinstall ok installed\n"
    collected["smi"] = {"error": "nvidia-smi is not installed"}


def newer_libraries(collected: Collectors) -> None:
    """Replace the libraries with 580.200, newer than the module of 580.159."""
    taken = collected["libraries"]["taken"]
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        taken[name] = re.sub(r"580\.159\.04", "580.200.01", taken[name])
    collected["smi"] = {
        "rc": 18,
        "stdout": "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: "
        "580.200\n",
        "stderr": "",
    }


def no_uvm(collected: Collectors) -> None:
    """Unload nvidia_uvm, and remove nvidia-modprobe, which loads it."""
    collected["modules"]["loaded"] = collected["modules"]["loaded"].replace("nvidia_uvm", "nothing_uvm")
    collected["gpu_tools"]["nvidia_modprobe"] = None


def grown(name: str, by: int = 500) -> Change:
    """Return a change that makes a counter grow between two readings."""

    def change(collected: Collectors) -> None:
        collected["counters"]["first"][name], collected["counters"]["second"][name] = 10, 10 + by

    return change


def stands(name: str, value: int) -> Change:
    """Return a change that sets a counter to a constant value."""

    def change(collected: Collectors) -> None:
        collected["counters"]["first"][name] = collected["counters"]["second"][name] = value

    return change


def space(row: list[Any]) -> Change:
    """Return a change that adds a file system."""
    return lambda collected: collected["host_state"]["space"].append(row)


def program(**values: Any) -> Change:
    """Return a change that adds a program that uses the first GPU."""
    return lambda collected: collected["programs"]["holders"].append(holder(**values))


def login(name: str, value: str) -> Change:
    """Return a change that sets an environment variable for all logins."""
    return lambda collected: collected["environment"].update({"/etc/profile.d/gpu.sh": {name: value}})


def sources(text: str) -> Change:
    """Return a change that adds a list of apt sources."""
    return lambda collected: collected["sources"]["files"].update({"/etc/apt/sources.list.d/x.list": text})


def port_above(**values: Any) -> Change:
    """Return a change of the PCIe port above the first GPU."""
    return lambda collected: collected["pci_links"][FIRST][1].update(values)


def down_link(collected: Collectors) -> None:
    """Make one NVLink of the first GPU inactive."""
    collected["nvlink"]["status"] = re.sub(
        r"Link 3: [\d.]+ GB/s", "Link 3: <inactive>", collected["nvlink"]["status"], count=1
    )


def grace(collected: Collectors) -> None:
    """Rename the GPUs to GB200; IMEX is missing."""
    edit_smi(collected, "NVIDIA H200", "NVIDIA GB200")


def four_ports(*states: tuple[str, str]) -> Change:
    """Return a change that sets InfiniBand ports with these states and rates."""

    def change(collected: Collectors) -> None:
        collected["hcas"] = [hca(f"mlx5_{n}", "0000:18:00.0", *each) for n, each in enumerate(states)]

    return change


def containers(*rows: list[Any]) -> Change:
    """Return a change that sets the running containers with GPUs."""
    return setting("container_state.running", list(rows))


def unattended(collected: Collectors) -> None:
    """Enable unattended upgrades, and release the driver's packages from hold."""
    collected["sources"]["config"] = 'APT::Periodic::Unattended-Upgrade "1";'
    collected["packages"]["text"] = collected["packages"]["text"].replace(
        "hold ok installed", "install ok installed"
    )


def no_peer_memory(collected: Collectors) -> None:
    """Load the proprietary module, without a peer-memory module."""
    collected["modules"]["loaded"] = collected["modules"]["loaded"].replace("nvidia_peermem", "other")
    collected["modules"]["driver"] = (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Release Build"
    )


def no_devices(collected: Collectors) -> None:
    """Make nvidia-smi find no GPU."""
    collected["smi"] = {"rc": 6, "stdout": "No devices were found", "stderr": ""}


def proprietary(collected: Collectors) -> None:
    """Load the proprietary module."""
    collected["modules"]["driver"] = (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Release Build"
    )


def built_for_storage(release: str) -> Change:
    """Return a change that adds a build of nvidia-fs for the running kernel, not loaded."""
    return lambda collected: collected["dkms"].append(["nvidia-fs", release, KERNEL, "x86_64", "installed"])


def board(device: str) -> Change:
    """Return a change that gives all GPUs another PCI id: `10de:1db5`."""

    def change(collected: Collectors) -> None:
        """Give the GPUs another PCI id."""
        for row in collected["pci"]:
            if row[3].startswith("0x03"):
                row[2] = f"0x{device.partition(':')[2]}"

    return change


def without_switches(collected: Collectors) -> None:
    """Remove the NVSwitches, and the fabric of the GPUs."""
    collected["pci"] = [row for row in collected["pci"] if row[3] != "0x068000"]
    edit_smi(collected, r"(?s)<state>Completed</state>\s*<status>Success", "<state>N/A</state><status>N/A")


def configured(old: str, new: str) -> Change:
    """Return a change of the container toolkit's configuration."""

    def change(collected: Collectors) -> None:
        assert old in collected["toolkit"]["config"], old
        collected["toolkit"]["config"] = collected["toolkit"]["config"].replace(old, new)

    return change


_GPU = "NVRM: The NVIDIA GPU 0000:00:06.0 (PCI ID: {}) NVRM: installed in this system "
NEEDS_OPEN = _GPU.format("10de:2901") + "requires use of the NVIDIA open kernel modules."
NEEDS_PROPRIETARY = _GPU.format("10de:1b82") + (
    "is not supported by open NVRM: nvidia.ko because it does not include the required GPU NVRM: System "
    "Processor (GSP)."
)
UNKNOWN_GPU = _GPU.format("10de:26b9") + "is not supported by the NVRM: NVIDIA 570.86.15 driver release."
UNKNOWN_IN_LINES = (
    "NVRM: The NVIDIA GPU 0000:00:06.0 (PCI ID: 10de:26b9)",
    "NVRM: installed in this system is not supported by the",
    "NVRM: NVIDIA 570.86.15 driver release.",
)
"""The same message as a log that splits it into lines has it."""
UNKNOWN_IN_OLDER_LINES = (
    (
        "NVRM: The NVIDIA GPU 0000:00:06.0 (PCI ID: 10de:0de3)",
        "NVRM: installed in this system is not supported by the 367.27",
        "NVRM: NVIDIA Linux driver release.  Please see 'Appendix",
    ),
    (
        "NVRM: The NVIDIA GPU 0000:00:06.0 (PCI ID: 10de:0df4) installed",
        "NVRM: in this system is not supported by the 280.13 NVIDIA Linux",
        "NVRM: graphics driver release.  Please see 'Appendix A -",
    ),
)
"""The words of drivers around 2016 and around 2011."""
XID = "NVRM: Xid (PCI:0000:00:06): {}, pid=4711, name=python, something"
LOST = "NVRM: Xid (PCI:0000:00:06): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
ACTION = (
    "NVRM: Xid (PCI:0000:00:06): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node "
    "Reboot Required)"
)

NO_HANDLE = "Unable to determine the device handle for GPU"
CRASH = (
    "BUG: kernel NULL pointer dereference, address: 0000000000000000",
    "RIP: 0010:_raw_q_schedule+0x2f/0xb0 [nvidia_uvm]",
)
CRASH_AT_LOAD = (
    "BUG: kernel NULL pointer dereference, address: 0000000000000fa8",
    "RIP: 0010:nvlogInit+0x6/0xd0 [nvidia]",
)
CUT = "NVRM: Attempting to remove minor device 0 with non-zero usage count!"
TWO_MODULES = "nvidia-modeset: Version mismatch: nvidia.ko(378.13) nvidia-modeset(375.26)"
HELD = (
    "NVRM: The NVIDIA probe routine was not called for 3 device(s).",
    "NVRM: This can occur when a driver such as:",
    "NVRM: nouveau, rivafb, nvidiafb or rivatv",
    "NVRM: was loaded and obtained ownership of the NVIDIA device(s).",
)
HELD_OLDER = (
    "NVRM: The NVIDIA probe routine was not called for 1 device(s).",
    "NVRM: This can occur when a driver such as nouveau, rivafb,",
    "NVRM: nvidiafb, or rivatv was loaded and obtained ownership of",
    "NVRM: the NVIDIA device(s).",
)
STOPPED = (
    f"nvidia {FIRST}: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0003 address=0x9e139068 flags=0x0020]",
    "AMD-Vi: Event logged [IO_PAGE_FAULT device=00:06.0 domain=0x0003 address=0x9e139068 flags=0x0020]",
    "DMAR: [DMA Write] Request device [00:06.0] fault addr fe2000000 [fault reason 05] PTE Write access is "
    "not set",
    "DMAR: [DMA Read NO_PASID] Request device [00:06.0] fault addr 0xfe2000000 [fault reason 0x06] PTE Read "
    "access is not set",
)
"""The kernel's lines about transfers of a GPU that the IOMMU stopped, of AMD and Intel, old and new."""

FAULTS: dict[str, list[Change]] = {
    "bus.none": [no_bus],
    "bus.lost": [
        lambda collected: collected["pci_links"][FIRST][0].update(lost=True),
        setting("smi", {"rc": 15, "stdout": f"{NO_HANDLE} {FIRST}: GPU is lost.", "stderr": ""}),
        setting("smi", {"rc": 15, "stdout": f"{NO_HANDLE}{FIRST}: Unknown Error", "stderr": ""}),
        all_of(
            only_one_gpu,
            kernel_says(
                "pci 0000:00:07.0: Unable to change power state from D3cold to D0, device inaccessible"
            ),
        ),
        all_of(
            only_one_gpu,
            kernel_says("nvidia 0000:00:07.0: Refused to change power state, currently in D3"),
        ),
        all_of(
            only_one_gpu,
            kernel_says(
                "pci 0000:00:07.0: Unable to change power state from unknown to D0, device inaccessible"
            ),
        ),
        all_of(
            bound_to("vfio-pci"),
            kernel_says(
                f"vfio-pci {FIRST}: Unable to change power state from D3cold to D0, device inaccessible"
            ),
        ),
    ],
    "bus.bar": [lambda collected: collected["pci_links"][FIRST][0].update(unplaced=[1])],
    "bus.bar_log": [
        kernel_says(
            "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid: NVRM: BAR1 is 0M @ 0x0"
        ),
        kernel_says("NVRM: This is a 64-bit BAR mapped above 4GB by the system"),
        all_of(
            only_one_gpu,
            kernel_says("pci 0000:00:07.0: BAR 1: no space for [mem size 0x2000000000 64bit pref]"),
        ),
        all_of(
            only_one_gpu,
            kernel_says("pci 0000:00:07.0: BAR 1 [mem size 0x2000000000 64bit pref]: can't assign; no space"),
        ),
    ],
    "bus.nouveau": [bound_to("nouveau"), unloaded(kernel_says(*HELD)), unloaded(kernel_says(*HELD_OLDER))],
    "bus.nova": [bound_to("nova-core")],
    "bus.vfio": [bound_to("vfio-pci")],
    "bus.count": [only_one_gpu],
    "bus.unlike": [smi_says(r"<vbios_version>[^<]+", "<vbios_version>96.00.01.00.01")],
    "driver.mismatch": [
        newer_libraries,
        kernel_says(TWO_MODULES),
        kernel_says("nvidia-modeset: Version mismatch: nvidia.ko(410.73) nvidia-modeset.ko(390.87)"),
    ],
    "driver.absent": [never_provisioned],
    "driver.no_module": [
        unloaded(
            setting("disk_modules", {"6.8.0-80-generic": modinfo("6.8.0-80-generic"), KERNEL: ""}),
            setting("kernels.headers", []),
        )
    ],
    "driver.build_failed": [
        unloaded(
            setting("disk_modules", {KERNEL: ""}),
            setting("dkms", [["nvidia", "580.159.04", "", "", "added"]]),
            setting(
                "dkms_log",
                {
                    "/var/lib/dkms/nvidia/580.159.04/build/make.log": [
                        "error: implicit declaration of function"
                    ]
                },
            ),
        )
    ],
    "driver.next_kernel": [setting("kernels.boot", [KERNEL, "6.8.0-99-generic"])],
    "driver.not_loaded": [unloaded()],
    "driver.blacklisted": [unloaded(setting("modprobe", [["/etc/modprobe.d/x.conf:1", "blacklist nvidia"]]))],
    "driver.rejected": [
        unloaded(setting("state.secure_boot", True), setting("secure_boot.keys", ["Canonical Ltd. Master"])),
        unloaded(
            setting("state.secure_boot", True),
            kernel_says("Loading of module with unavailable key is rejected"),
        ),
    ],
    "driver.flavour": [
        all_of(proprietary, no_devices, kernel_says(NEEDS_OPEN)),
        all_of(no_devices, kernel_says(NEEDS_PROPRIETARY)),
        all_of(no_devices, board("10de:1db5")),
        all_of(proprietary, no_devices, board("10de:2901")),
    ],
    "driver.unsupported": [
        all_of(no_devices, kernel_says(UNKNOWN_GPU)),
        all_of(no_devices, kernel_says(*UNKNOWN_IN_LINES)),
        *(all_of(no_devices, kernel_says(*lines)) for lines in UNKNOWN_IN_OLDER_LINES),
    ],
    "driver.firmware": [
        all_of(
            no_devices,
            setting("libraries.firmware", ["570.86.10"]),
            kernel_says(
                "nvidia 0000:00:06.0: Direct firmware load for nvidia/580.159.04/gsp_ga10x.bin failed with "
                "error -2"
            ),
        )
    ],
    "driver.gsp": [
        all_of(only_one_gpu, kernel_says(line))
        for line in (
            "NVRM: GPU6 _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP",
            "NVRM: kgspWaitForGfwBootOk_TU102: failed to wait for GFW boot complete: 0x65",
            "NVRM: GPU0 RmInitAdapter: Cannot initialize GSP firmware RM",
            "NVRM kfspSendBootCommands_GH100: FSP boot cmds failed. RM cannot boot.",
            "NVRM: _kgspRpcRecvPoll: GSP RM heartbeat timed out",
        )
    ],
    "driver.heartbeat": [
        kernel_says(line)
        for line in (
            "NVRM: GPU0 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 322227881 heartbeat 0 "
            "heartbeatWithOffsetMs 318098841 diff 4129040 timeout 5200",
            "NVRM: _kgspRpcRecvPoll: GSP RM heartbeat timed out",
        )
    ],
    "driver.licence": [unlicensed],
    "driver.confidential": [
        setting("host_state.confidential", "Confidential Compute GPUs Ready state: not-ready"),
        *(
            all_of(only_one_gpu, kernel_says(line))
            for line in (
                "libspdm_check_crypto_backend: Error - libspdm expects LKCA but found stubs!",
                "NVRM: SPDM: Certificate retrieval failed!",
                "NVRM: confComputeSetErrorState_KERNEL: ConfCompute: Fatal error hit!",
            )
        ),
    ],
    "driver.vermagic": [
        unloaded(
            kernel_says(
                "nvidia: version magic '6.8.0-80-generic SMP preempt mod_unload modversions ' should be "
                "'6.8.0-87-generic SMP preempt mod_unload modversions '"
            )
        ),
        unloaded(setting("disk_modules", {KERNEL: modinfo("6.8.0-80-generic")})),
    ],
    "driver.symbols": [
        kernel_says("nvidia_fs: Unknown symbol nvidia_p2p_dma_unmap_pages (err -2)"),
        kernel_says("gdrdrv: disagrees about version of symbol nvidia_p2p_get_pages"),
        all_of(no_uvm, kernel_says("nvidia_uvm: Unknown symbol radix_tree_preloads (err -2)")),
        unloaded(kernel_says("nvidia: Unknown symbol ipmi_set_my_address (err -2)")),
    ],
    "driver.alias": [
        unloaded(setting("modprobe", [["/etc/modprobe.d/b.conf:3", line]]))
        for line in (
            "alias nvidia off",
            "install nvidia /sbin/modprobe --ignore-install nvidia-current $CMDLINE_OPTS",
        )
    ],
    "driver.too_new": [
        kernel_says("NVRM: The NVIDIA Tesla K80 GPU is supported through the NVIDIA 470.xx Legacy drivers."),
        kernel_says("NVRM:  supported through the NVIDIA 340.xx Legacy drivers. Please"),
    ],
    "driver.init_failed": [
        all_of(only_one_gpu, kernel_says("NVRM: GPU 0000:00:07.0: RmInitAdapter failed! (0x62:0x40:2477)")),
        all_of(only_one_gpu, kernel_says("NVRM: GPU 0000:00:07.0: Failed to copy vbios to system memory.")),
        all_of(only_one_gpu, kernel_says("NVRM: Can't find an IRQ for your NVIDIA card!")),
        all_of(only_one_gpu, kernel_says("NVRM: pci_enable_device failed, aborting")),
        all_of(only_one_gpu, kernel_says("NVRM: request_mem_region failed for 16M @ 0xf6000000. This can")),
        all_of(
            only_one_gpu,
            kernel_says("NVRM: nvidia_frontend_open: minor 1, module->open() failed, error -5"),
        ),
    ],
    "driver.crashed": [
        kernel_says(*CRASH),
        unloaded(kernel_says(*CRASH_AT_LOAD)),
        kernel_says(CUT),
        kernel_says(f"NVRM: Attempting to remove device {FIRST} with non-zero usage count!"),
    ],
    "driver.two": [setting("state.foreign_drivers", ["/usr/bin/nvidia-uninstall"])],
    "driver.permissions": [
        setting(
            "smi", {"rc": 4, "stdout": "Failed to initialize NVML: Insufficient Permissions", "stderr": ""}
        )
    ],
    "driver.uvm": [no_uvm],
    "driver.device_files": [setting("state.device_nodes", ["/dev/nvidiactl"])],
    "driver.infoROM": [
        lambda collected: collected["smi"].update(
            stdout=collected["smi"]["stdout"] + "\nWARNING: infoROM is corrupted at gpu 0000:00:06.0\n"
        )
    ],
    "driver.persistence": [smi_says(r"<persistence_mode>Enabled", "<persistence_mode>Disabled")],
    "driver.smi": [setting("smi", {"error": "nvidia-smi did not answer in time"})],
    "driver.reboot_pending": [
        all_of(
            setting("state.reboot_required", True), setting("state.reboot_packages", ["linux-base", "libc6"])
        )
    ],
    "errors.recovery": [
        smi_says(r"<gpu_recovery_action>None", "<gpu_recovery_action>Reset"),
        all_of(smi_says(r"<gpu_recovery_action>None</gpu_recovery_action>", ""), kernel_says(ACTION)),
        kernel_says(
            "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to "
            "recover."
        ),
    ],
    "errors.xid": [
        kernel_says(LOST),
        *(
            kernel_says(XID.format(code))
            for code in (
                13,
                31,
                43,
                45,
                46,
                48,
                61,
                62,
                63,
                64,
                69,
                74,
                92,
                93,
                94,
                95,
                109,
                119,
                120,
                140,
                143,
                149,
                999,
            )
        ),
    ],
    "errors.readings": [
        smi_says(r"<fan_speed>[^<]*", "<fan_speed>ERR!"),
        smi_says(r"<gpu_temp>[^<]*", "<gpu_temp>[GPU is lost]"),
    ],
    "errors.impossible": [
        smi_says(r"<gpu_temp>\d+ C", "<gpu_temp>511 C"),
        smi_says(r"<gpu_util>0 %", "<gpu_util>404 %"),
        smi_says(r"<instant_power_draw>[\d.]+ W", "<instant_power_draw>589435.00 W"),
    ],
    "errors.sxid": [
        kernel_says("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 28 LTSSM Fault Up")
    ],
    "errors.ecc_now": [smi_says(r"<dram_uncorrectable>0", "<dram_uncorrectable>2")],
    "errors.ecc_ever": [smi_says(r"(?s)(<aggregate>.*?<sram_uncorrectable_parity>)0", r"\g<1>7")],
    "errors.correctable": [smi_says(r"<dram_correctable>0", "<dram_correctable>9600000000")],
    "errors.repair_pending": [
        smi_says(r"<remapped_row_pending>No", "<remapped_row_pending>Yes"),
        smi_says(r"<tpc_repair_pending>No", "<tpc_repair_pending>Yes"),
    ],
    "errors.repair_failed": [
        smi_says(r"<remapped_row_failure>No", "<remapped_row_failure>Yes"),
        smi_says(r"<row_remapper_histogram_none>0", "<row_remapper_histogram_none>3"),
    ],
    "errors.retired": [smi_says(r"(?s)(<double_bit_retirement>\s*<retired_count>)N/A", r"\g<1>61")],
    "errors.ecc_off": [
        smi_says(
            r"(?s)<current_ecc>Enabled(.*?)<pending_ecc>Enabled",
            r"<current_ecc>Disabled\1<pending_ecc>Disabled",
        ),
        smi_says(r"<pending_ecc>Enabled", "<pending_ecc>Disabled"),
    ],
    "fabric.manager": [
        units("nvidia-fabricmanager.service", "loaded failed enabled"),
        smi_says(r"(?s)<state>Completed</state>\s*<status>Success", "<state>In Progress</state><status>N/A"),
    ],
    "fabric.no_switch": [
        all_of(without_switches, units("nvidia-fabricmanager.service", "loaded failed enabled"))
    ],
    "fabric.version": [packages("nvidia-fabricmanager", "580.95.05-1")],
    "fabric.subnet_manager": [
        all_of(
            smi_says(r"<product_architecture>Hopper", "<product_architecture>Blackwell"),
            smi_says(r"<state>Completed", "<state>In Progress"),
        )
    ],
    "fabric.imex": [
        grace,
        all_of(grace, units("nvidia-imex.service", "loaded active enabled")),
        all_of(grace, units("nvidia-imex.service", "masked active masked")),
    ],
    "fabric.health": [smi_says(r"<status>Success", "<status>Insufficient Resources")],
    "fabric.links_down": [down_link],
    "fabric.link_errors": [
        lambda collected: collected["nvlink"].update(
            errors=collected["nvlink"]["errors"].replace("CRC Errors: 0", "CRC Errors: 812", 1)
        )
    ],
    "fabric.topology": [
        setting(
            "topo.text",
            "\tGPU0\tGPU1\tGPU2\tCPU Affinity\nGPU0\t X \tNV18\tSYS\t0-31\n"
            "GPU1\tNV18\t X \tNV18\t0-31\nGPU2\tSYS\tNV18\t X \t0-31\n",
        )
    ],
    "cuda.libcuda_other": [
        setting("libraries.taken.libcuda\\.so\\.1", "/usr/local/cuda-13.0/compat/libcuda.so.580.95.05"),
        setting("libraries.led", [["/opt/old/libcuda.so.470.256.02", "/etc/environment:2"]]),
    ],
    "cuda.compat": [login("LD_LIBRARY_PATH", "/usr/local/cuda/compat:/usr/lib")],
    "cuda.stubs": [
        setting("libraries.configured", {"/etc/ld.so.conf.d/cuda.conf": ["/usr/local/cuda/lib64/stubs"]})
    ],
    "cuda.copies": [
        lambda collected: collected["libraries"]["copies"].update(
            {
                "/usr/lib/x/libcuda.so.535.1.2": "/usr/lib/x/libcuda.so.535.1.2",
                "/usr/lib/y/libcuda.so.580.159.04": "/usr/lib/y/libcuda.so.580.159.04",
            }
        )
    ],
    "cuda.loader": [setting("libraries.cache", [])],
    "cuda.no_smi": [setting("smi", {"error": "nvidia-smi is not installed"})],
    "cuda.hidden": [login("CUDA_VISIBLE_DEVICES", "-1"), login("CUDA_VISIBLE_DEVICES", "0,7")],
    "cuda.exclusive": [
        smi_says(r"<compute_mode>Default", "<compute_mode>Prohibited"),
        smi_says(r"<compute_mode>Default", "<compute_mode>Exclusive_Process"),
    ],
    "cuda.mps": [login("CUDA_MPS_PIPE_DIRECTORY", "/run/mps")],
    "cuda.mig_pending": [
        smi_says(r"<pending_mig>Disabled", "<pending_mig>Enabled"),
        smi_says(r"<current_mig>Disabled", "<current_mig>Enabled"),
    ],
    "cuda.mig_left": [
        smi_says(
            r"(?s)<current_mig>Disabled(.*?)<pending_mig>Disabled",
            r"<current_mig>Enabled\1<pending_mig>Enabled",
        )
    ],
    "cuda.held": [program(state="Z"), smi_says(r"(?s)(<fb_memory_usage>.*?<used>)0 MiB", r"\g<1>81559 MiB")],
    "cuda.hmm": [kernel_says("nvidia-uvm: HMM: initialization failed")],
    "speed.throttled": [
        smi_says(f"(clocks_event_reason_{reason}>)Not Active", r"\1Active")
        for reason in (
            "hw_slowdown",
            "hw_thermal_slowdown",
            "hw_power_brake_slowdown",
            "sw_thermal_slowdown",
            "sync_boost",
        )
    ],
    "speed.throttled_before": [smi_says(r"(counters_hw_therm_slowdown>)0 us", r"\g<1>90000000 us")],
    "speed.hot": [
        smi_says(r"<gpu_temp_tlimit>\d+ C", "<gpu_temp_tlimit>-1 C"),
        smi_says(r"<gpu_temp>\d+ C", "<gpu_temp>81 C"),
    ],
    "speed.power_limit": [smi_says(r"<current_power_limit>700.00", "<current_power_limit>300.00")],
    "speed.capped": [
        all_of(
            smi_says(r"<gpu_util>0 %", "<gpu_util>100 %"),
            smi_says(r"(clocks_event_reason_sw_power_cap>)Not Active", r"\1Active"),
            smi_says(r"<instant_power_draw>[\d.]+ W", "<instant_power_draw>240.00 W"),
        )
    ],
    "speed.fixed_clocks": [smi_says(r"(?s)(<applications_clocks>\s*<graphics_clock>)1980", r"\g<1>900")],
    "speed.pcie_width": [lambda collected: collected["pci_links"][FIRST][0].update(current_link_width="8")],
    "speed.pcie_generation": [
        all_of(
            smi_says(r"<gpu_util>0", "<gpu_util>95"),
            smi_says(r"<current_link_gen>5", "<current_link_gen>3"),
            smi_says(r"<max_host_link_gen>N/A", "<max_host_link_gen>5"),
        )
    ],
    "speed.pcie_path": [port_above(max_link_speed="8.0 GT/s PCIe", current_link_speed="8.0 GT/s PCIe")],
    "speed.pcie_errors": [
        grown(f"aer {FIRST} correctable TOTAL_ERR_COR"),
        stands("aer 0000:15:01.0 fatal TOTAL_ERR_FATAL", 2),
        kernel_says(f"nvidia {FIRST}: AER: can't recover (no error_detected callback)"),
        kernel_says(
            "pcieport 0000:15:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer"
        ),
        kernel_says(*["pcieport 0000:00:03.1: PCIe Bus Error: severity=Corrected, type=Data Link Layer"] * 3),
        kernel_says(*[f"nvidia {FIRST}: PCIe Bus Error: severity=Correctable, type=Data Link Layer"] * 3),
    ],
    "containers.toolkit": [
        all_of(
            lambda collected: collected["packages"].update(
                text=re.sub(r"nvidia-container-toolkit\t.*\n", "", collected["packages"]["text"])
            ),
            setting("container_state.hook", None),
            setting("container_state.runtime", None),
            setting("daemon_json.value", None),
        )
    ],
    "containers.snap": [setting("container_state.docker_path", "/snap/bin/docker")],
    "containers.daemon_json": [
        setting("daemon_json", {"error": "/etc/docker/daemon.json is not JSON: Expecting value: line 2"})
    ],
    "containers.runtime": [setting("container_state.docker_info", 'systemd {"runc":{"path":"runc"}}')],
    "containers.embedded": [
        setting(
            "gpu_tools.embedded_containerd",
            {f"/var/lib/rancher/{name}/agent/etc/containerd/config.toml": False},
        )
        for name in ("k3s", "rke2")
    ],
    "containers.missing_runtime": [
        setting("container_state.runtime", None),
        all_of(
            setting("container_state.runtime", None),
            setting("daemon_json.value", {"runtimes": {"nvidia": {}}}),
        ),
    ],
    "containers.cdi_stale": [
        setting(
            "container_state.cdi",
            {"/etc/cdi/nvidia.yaml": {"versions": ["570.1.2"], "devices": ["/dev/nvidia0"]}},
        )
    ],
    "containers.cdi_paths": [
        setting(
            "container_state.cdi",
            {"/etc/cdi/nvidia.yaml": {"versions": [], "devices": [], "missing": ["/dev/dri/renderD129"]}},
        )
    ],
    "containers.config": [
        configured(old, new)
        for old, new in (
            ('mode = "auto"', 'mode = "legacy-cdi"'),
            ('mode = "auto"', 'mode = "cdi"'),
            ("environment = []", 'root = "/run/nvidia/driver"'),
            ("compat32,compute,display", "compat32,display"),
            ('"info"', '"verbose"'),
            ("disable-require = false", "disable-require = "),
        )
    ],
    "containers.cdi_missing": [
        setting("daemon_json.value", {"features": {"cdi": True}, "runtimes": {"nvidia": {}}})
    ],
    "containers.device_rules": [
        all_of(setting("container_state.char_links", 0), containers(["train", 17179869184, "private"]))
    ],
    "containers.ldconfig": [setting("container_state.ldconfig_exists", False)],
    "containers.no_cgroups": [setting("container_state.no_cgroups", "true")],
    "containers.shm": [containers(["train", 67108864, "private"])],
    "containers.containerd": [
        all_of(
            units("kubelet.service", "loaded active enabled"),
            setting("containerd.dump", "version = 2\n[plugins]\n"),
        )
    ],
    "packages.interrupted": [
        packages("nvidia-dkms-580", "580.1", "install ok half-configured"),
        setting("packages.interrupted", True),
    ],
    "packages.unattended": [unattended],
    "packages.reboots": [
        setting(
            "sources.config",
            'APT::Periodic::Unattended-Upgrade "1";\nUnattended-Upgrade::Automatic-Reboot "true";',
        )
    ],
    "packages.mixed": [packages("nvidia-utils-580", "580.200.01-0ubuntu1")],
    "packages.repositories": [
        sources("deb https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/ /\n"),
        sources(
            "deb https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/ /\n"
            "deb https://ppa.example/graphics-drivers/ppa/ubuntu noble main\n"
        ),
    ],
    "packages.space": [setting("state.free_mib", {"/": 120000, "/boot": 12})],
    "network.port_down": [four_ports(("1: DOWN", "400 Gb/sec"), ("4: ACTIVE", "400 Gb/sec"))],
    "network.no_subnet_manager": [four_ports(("2: INIT", "400 Gb/sec"))],
    "network.rate": [
        four_ports(("4: ACTIVE", "200 Gb/sec"), ("4: ACTIVE", "400 Gb/sec"), ("4: ACTIVE", "400 Gb/sec"))
    ],
    "network.mixed": [
        lambda collected: collected["hcas"].append(
            {**hca("mlx5_2", "0000:3a:00.0"), "link_layer": "Ethernet"}
        )
    ],
    "network.errors": [
        grown("rdma mlx5_0/1 symbol_error"),
        grown("rdma mlx5_0/1 out_of_sequence"),
        stands("rdma mlx5_0/1 link_downed", 9),
    ],
    "network.flaps": [kernel_says(*["mlx5_core 0000:18:00.0 eth2: Link down"] * 6)],
    "network.card": [
        kernel_says("mlx5_core 0000:18:00.0: Detected insufficient power on the PCIe slot (27W)."),
        kernel_says("mlx5_core 0000:18:00.0: synd 0x7: irisc not responding"),
    ],
    "network.gpudirect": [no_peer_memory],
    "network.peermem_log": [
        all_of(
            no_peer_memory,
            kernel_says("nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)"),
        )
    ],
    "network.nccl_variables": [
        setting("nccl.conf", "NCCL_P2P_DISABLE=1\n"),
        login("NCCL_IB_HCA", "mlx4_0"),
        login("NCCL_SOCKET_IFNAME", "bond7"),
    ],
    "network.numa": [program(cpus="0-15", gpus=["nvidia1"]), program(cpus="16-31", gpus=["nvidia0"])],
    "host.iommu": [
        lambda collected: collected["pci_links"][FIRST][0].update(iommu_type="DMA-FQ"),
        *(kernel_says(line) for line in STOPPED),
    ],
    "host.acs": [port_above(acs=True)],
    "host.numa_balancing": [setting("sysctls.kernel\\.numa_balancing", "1")],
    "host.numa_unknown": [
        lambda collected: [row.__setitem__(6, "-1") for row in collected["pci"] if row[3].startswith("0x03")]
    ],
    "host.governor": [setting("cpu.governors", {"powersave": 32})],
    "host.cpus": [
        setting(
            "host_state.cpus", {"online": "0-15", "present": "0-31", "possible": "0-31", "allowed": "0-15"}
        )
    ],
    "host.memory": [
        setting(
            "host_state.memory",
            "MemTotal: 263998500 kB\nMemAvailable: 100000000 kB\nHugePages_Total: "
            "60000\nHugePages_Free: 60000\nHugepagesize: 2048 kB",
        )
    ],
    "host.short_of_memory": [
        grown("vm pswpout", 4000),
        setting("host_state.memory", "MemTotal: 263998500 kB\nMemAvailable: 900000 kB"),
        kernel_says(
            "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) "
            "returned from _memdescAllocInternal(pMemDesc) @ mem_desc.c:1359"
        ),
    ],
    "host.killed": [kernel_says("Out of memory: Killed process 812 (python) total-vm:1kB")],
    "host.hangs": [kernel_says("INFO: task nfsd:812 blocked for more than 120 seconds.")],
    "host.stuck": [
        setting("programs.stuck", [["python", "812", "nfs_wait_bit_killable"]]),
        program(variables=None),
    ],
    "host.machine_checks": [
        stands("edac mc0 ue_count", 1),
        kernel_says("mce: [Hardware Error]: Machine check events logged"),
    ],
    "host.limits": [program(memlock="65536"), setting("limits.systemd", "DefaultLimitMEMLOCK=8388608")],
    "host.files": [setting("host_state.file_nr", "9900\t0\t10000")],
    "host.clock": [
        setting("host_state.clock", {"state": 0, "unsynchronised": False, "offset_us": 4000000}),
        all_of(
            setting("host_state.clock", {"state": 5, "unsynchronised": True, "offset_us": 0}),
            units("chrony.service", "not-found inactive "),
        ),
    ],
    "host.boots": [
        lambda collected: collected["host_state"].update(boots=[int(NOW) - n * 600 for n in range(6)])
    ],
    "host.huge_page_policy": [all_of(grace, setting("hugepages.transparent", "always madvise [never]"))],
    "storage.full": [
        space(["/data", "xfs", 1000000, 900, 1000, 900, "rw"]),
        space(["/data", "xfs", 1000000, 900000, 1000000, 12, "rw"]),
    ],
    "storage.shm": [space(["/dev/shm", "tmpfs", 64, 63, 1000, 900, "rw"])],
    "storage.disk_errors": [kernel_says("nvme nvme1: I/O 812 QID 3 timeout, reset controller")],
    "storage.read_only": [setting("mounts.text", "/dev/sda1 / ext4 ro,relatime,errors=remount-ro 0 0")],
    "storage.raid": [setting("host_state.mdstat", ["976630464 blocks super 1.2 [2/1] [U_]"])],
    "storage.nvidia_fs": [
        lambda collected: collected["dkms"].append(["nvidia-fs", "2.25.6", "", "", "added"]),
        all_of(
            lambda collected: collected["dkms"].append(["nvidia-fs", "2.18.3", "", "", "added"]),
            setting("system.kernel", "6.5.0-17-generic"),
        ),
        all_of(proprietary, built_for_storage("2.25.6")),
    ],
    "storage.network": [kernel_says("nfs: server fs1 not responding, still trying")],
    "stack.installed": [packages("cuda-toolkit-13-9", "13.9.0-1")],
    "stack.frameworks": [
        setting("frameworks", [{"folder": "/opt/x", "name": "torch", "version": "1.13.1", "cuda": "11.7"}]),
        setting("frameworks", [{"folder": "", "name": "", "version": "", "cuda": None}]),
    ],
}

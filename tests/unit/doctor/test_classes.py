"""Classes of faults and their healthy twins: a message of the past, or a value that only looks like the
fault.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprov.doctor.builds import CAUSES, cause_of
from gpuprov.doctor.fault import Fault
from gpuprov.doctor.judge import diagnose
from gpuprov.probe.node import kernel_log, software
from tests.unit.doctor.faults import (
    CRASH,
    CUT,
    FAULTS,
    FIRST,
    NEEDS_OPEN,
    NEEDS_PROPRIETARY,
    TWO_MODULES,
    UNKNOWN_GPU,
    XID,
    all_of,
    board,
    bound_to,
    built_for_storage,
    configured,
    kernel_says,
    login,
    only_one_gpu,
    proprietary,
    setting,
    smi_says,
    units,
    unloaded,
    without_switches,
)
from tests.unit.doctor.machines import Change, Collectors, as_examined, bare_metal, hca, log, modinfo, package

MAGIC = "nvidia: version magic '6.8.0-80-generic SMP preempt ' should be '6.8.0-87-generic SMP preempt '"
GSP = "NVRM: GPU0 RmInitAdapter: Cannot initialize GSP firmware RM"
HEARTBEAT = "NVRM: _kgspRpcRecvPoll: GSP RM heartbeat timed out"
FIRMWARE = (
    "nvidia 0000:00:06.0: Direct firmware load for nvidia/580.159.04/gsp_ga10x.bin failed with error -2"
)
KERNEL = "6.8.0-87-generic"


def debian(collected: Collectors) -> None:
    """Use Debian's names: the module is nvidia-current, which an install line of modprobe loads."""
    text = modinfo(KERNEL).replace("nvidia.ko", "nvidia-current.ko")
    collected["disk_modules"] = {KERNEL: text}
    collected["modprobe"] = [
        ["/etc/modprobe.d/nvidia.conf:3", "install nvidia modprobe -i nvidia-current $CMDLINE_OPTS"],
        [
            "/etc/modprobe.d/nvidia.conf:4",
            "install nvidia-uvm modprobe nvidia ; modprobe -i nvidia-current-uvm",
        ],
    ]


def extra_source(collected: Collectors) -> None:
    """Add a source of GPUDirect Storage in DKMS that was not built."""
    collected["dkms"].append(["nvidia-fs", "2.25.6", "", "", "added"])
    collected["dkms_log"] = {"/var/lib/dkms/nvidia-fs/2.25.6/build/make.log": ["error: too few arguments"]}


def uplink(collected: Collectors) -> None:
    """Add a slower Ethernet port."""
    collected["hcas"].append(
        {**hca("mlx5_2", "0000:3a:00.0", rate="25 Gb/sec (1X EDR)"), "link_layer": "Ethernet"}
    )


def second_fabric(collected: Collectors) -> None:
    """Add an Ethernet port of the same rate."""
    collected["hcas"].append({**hca("mlx5_2", "0000:3a:00.0"), "link_layer": "Ethernet"})


def capped(draw: str) -> Change:
    """Return a busy GPU at its power cap."""
    return all_of(
        smi_says(r"<gpu_util>0 %", "<gpu_util>100 %"),
        smi_says(r"(clocks_event_reason_sw_power_cap>)Not Active", r"\1Active"),
        smi_says(r"<instant_power_draw>[\d.]+ W", f"<instant_power_draw>{draw} W"),
    )


TWINS: dict[str, list[Change]] = {
    "cuda.libcuda_other": [
        setting("libraries.led", [["/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04", "/etc/environment:2"]]),
        setting("libraries.led", [["/opt/program/libcuda.so.1", "/etc/profile.d/program.sh:1"]]),
    ],
    "driver.vermagic": [
        kernel_says(MAGIC),
        kernel_says("rtl8812au: version magic '6.8.0-80-generic' should be '6.8.0-87-generic'"),
        unloaded(setting("disk_modules", {KERNEL: modinfo(KERNEL)})),
    ],
    "driver.symbols": [
        kernel_says("nvidia_uvm: Unknown symbol radix_tree_preloads (err -2)"),
        kernel_says("nvidia: Unknown symbol ipmi_set_my_address (err -2)"),
        kernel_says("zfs: disagrees about version of symbol module_layout"),
    ],
    "driver.alias": [
        debian,
        unloaded(debian),
        unloaded(setting("modprobe", [["a:1", "alias nvidia-drm off"]])),
    ],
    "driver.flavour": [
        kernel_says(NEEDS_OPEN),
        all_of(proprietary, kernel_says(NEEDS_PROPRIETARY)),
        all_of(proprietary, board("10de:1db5")),
    ],
    "driver.unsupported": [kernel_says(UNKNOWN_GPU)],
    "driver.firmware": [kernel_says(FIRMWARE)],
    "driver.gsp": [kernel_says(GSP)],
    "driver.heartbeat": [
        all_of(only_one_gpu, kernel_says(HEARTBEAT)),
        kernel_says("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 19084, Non-fatal, Heartbeat Timeout Error"),
    ],
    "driver.build_failed": [extra_source],
    "fabric.no_switch": [
        units("nvidia-fabricmanager.service", "loaded failed enabled"),
        all_of(without_switches, units("nvidia-fabricmanager.service", "not-found inactive ")),
        without_switches,
    ],
    "errors.readings": [
        smi_says(r"<instant_power_draw>[\d.]+ W", "<instant_power_draw>[Unknown Error]"),
        smi_says(r"<fan_speed>[^<]*", "<fan_speed>N/A"),
        smi_says(r"<gpu_temp>[^<]*", "<gpu_temp>[Not Supported]"),
    ],
    "errors.impossible": [
        capped("812.40"),
        smi_says(r"<gpu_temp>\d+ C", "<gpu_temp>88 C"),
        smi_says(r"<gpu_temp>[^<]*", "<gpu_temp>N/A"),
    ],
    "speed.capped": [
        capped("655.00"),
        smi_says(r"(clocks_event_reason_sw_power_cap>)Not Active", r"\1Active"),
    ],
    "network.mixed": [
        uplink,
        all_of(second_fabric, login("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1")),
        all_of(second_fabric, setting("nccl.conf", "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1\n")),
    ],
    "containers.cdi_paths": [
        setting("container_state.cdi", {"/etc/cdi/nvidia.yaml": {"versions": ["580.159.04"], "devices": []}})
    ],
    "containers.config": [
        configured('mode = "auto"', 'mode = "cdi"\n[other]'),
        configured('"info"', '"debug"'),
        configured("environment = []", 'root = "/"'),
    ],
}
TWINS["containers.config"][0] = all_of(
    TWINS["containers.config"][0],
    setting("container_state.cdi", {"/etc/cdi/nvidia.yaml": {"versions": ["580.159.04"], "devices": []}}),
)


def faults_of(*changes: Change) -> tuple[Fault, ...]:
    """Return the faults of a healthy machine with changes; no rule may fail to read a value."""
    result = bare_metal()
    all_of(*changes)(result)
    found = diagnose(as_examined(result))
    assert not [each for each in found.unknown if "could not be read (" in each[1]], found.unknown
    return found.faults


@pytest.mark.parametrize(
    ("name", "number"), [(name, n) for name, rows in TWINS.items() for n in range(len(rows))]
)
def test_a_healthy_twin_is_silent(name: str, number: int) -> None:
    assert name in FAULTS
    assert [fault.text for fault in faults_of(TWINS[name][number]) if fault.rule == name] == []


LINES = {
    "compiler": (
        "cc: error: unrecognized command-line option '-ftrivial-auto-var-init=zero'",
        "Compiler version check failed:",
        "gcc-version-check failed:",
    ),
    "source": (
        "nv-drm.c:219:11: error: implicit declaration of function 'drm_mode_attach'",
        "os-interface.c:732:5: error: implicit declaration of function 'strncpy'",
        "uvm_gpu.c:9:12: Fehler: implizite Deklaration der Funktion »f« [-Wimplicit-function-declaration]",
        "nv-dma.c:44:11: error: no previous prototype for 'nv_create_dma_map_scatterlist'",
        'ERROR: modpost: "rcu_read_lock_strict" [nvidia.ko] undefined!',
    ),
    "licence": ("FATAL: modpost: GPL-incompatible module nvidia.ko uses GPL-only symbol 'rcu_read_lock'",),
    "headers": (
        "fatal error: /lib/modules/6.2.6-zen1/build/include/linux/autoconf.h: No such file or directory",
        "make[2]: *** /lib/modules/5.10.0-20-amd64/build: No such file or directory.  Stop.",
        "Error! Your kernel headers for kernel 5.15.0-88-generic cannot be found.",
    ),
    "tool": (
        "/bin/sh: 1: gcc-12: not found",
        "make: gcc: No such file or directory",
        "/bin/sh: line 1: g++: command not found",
        "/bin/sh: 1: gawk: not found",
    ),
    "space": ("fatal error: error writing to /tmp/ccX1.s: No space left on device",),
    "memory": ("gcc: internal compiler error: Killed (program cc1)",),
    "signature": ("At main.c:298: - SSL error: sign-file: certs/signing_key.pem: No such file or directory",),
}
"""Causes, with lines of builds' logs. Sources: pop-os/pop#3117, clearlinux/distribution#1835, #1725,
Tk-Glitch/PKGBUILDS#133, NixOS/nixpkgs#539211, dkosmari/nvidia-340.108-updated#1, zen-kernel/zen-kernel#305,
NVIDIA/open-gpu-kernel-modules#441; messages of dkms, modpost, gcc and sign-file.
"""
FIRST_LINE = "make[1]: Entering directory '/usr/src/linux-headers-6.8.0-87-generic'"


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, lines in LINES.items() for line in lines])
def test_a_line_of_a_build_has_one_cause(name: str, line: str) -> None:
    found = cause_of([FIRST_LINE, line])
    assert found
    assert found[0].name == name


def test_every_cause_is_seen_and_the_others_are_not_stated() -> None:
    assert {cause.name for cause in CAUSES} == set(LINES)
    assert cause_of([]) is None
    assert (
        cause_of([FIRST_LINE, "warning: the compiler differs from the one used to build the kernel"]) is None
    )


def test_a_full_disk_comes_before_what_it_cuts() -> None:
    both = ["nv.c:3:1: error: unknown type name 'x'", "cc1: fatal error: nv.s: No space left on device"]
    found = cause_of(both)
    assert found
    assert found[0].name == "space"


def test_the_probe_sends_causes_before_what_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [f"make[2]: *** [Makefile.build:252: nvidia/nv{n}.o] Error 1" for n in range(2)]
    errors = [f"nv.c:{n}:1: error: unknown type name 'a{n}'" for n in range(9)]
    path = tmp_path / "make.log"
    path.write_text("\n".join(["  CC [M] nvidia/nv.o", *errors, *ends]))
    monkeypatch.setattr(software.glob, "glob", lambda pattern: [str(path)] if "/nvidia" in pattern else [])
    assert software.dkms_log({}) == {str(path): errors[:4] + ends}


def test_a_failed_build_explains_what_follows_from_it() -> None:
    def half_configured(collected: Collectors) -> None:
        package(collected, "nvidia-dkms-580", "580.159.04-0ubuntu1", "install ok half-configured")

    found = [fault.rule for fault in faults_of(FAULTS["driver.build_failed"][0], half_configured)]
    order = ("driver.build_failed", "driver.no_module", "driver.not_loaded", "driver.smi")
    assert [rule for rule in found if rule in order] == list(order)
    assert found.index("packages.interrupted") > 0


def test_an_xid_that_names_another_reports_that_one() -> None:
    """Lines of NVIDIA/open-gpu-kernel-modules#1150."""
    line = XID.format(45).replace("something", "Ch 00000001 caused by previous Xid 149")
    found = faults_of(kernel_says(line, line))
    assert [fault.text.partition(":")[0] for fault in found] == ["Xid 149 on GPU 0", "Xid 45 on GPU 0"]
    assert "Xid 149" in found[1].cause
    logged = faults_of(kernel_says(XID.format(149), line))
    assert [fault.text.partition(":")[0] for fault in logged] == ["Xid 149 on GPU 0", "Xid 45 on GPU 0"]
    alone = faults_of(kernel_says(line.partition(" caused")[0]))
    assert [fault.text.partition(":")[0] for fault in alone] == ["Xid 45 on GPU 0"]


def test_another_driver_comes_before_another_card() -> None:
    [fault] = [fault for fault in faults_of(FAULTS["driver.gsp"][2]) if fault.rule == "driver.gsp"]
    order = ["poweroff", "another version of the driver", "EnableGpuFirmware=0", "have the card replaced"]
    places = [next(n for n, line in enumerate(fault.mend) if text in line) for text in order]
    assert places == sorted(places)


def test_a_missed_heartbeat_sends_to_another_driver_and_not_to_another_card() -> None:
    [fault] = [fault for fault in faults_of(kernel_says(HEARTBEAT)) if fault.rule == "driver.heartbeat"]
    assert fault.severity == "risk"
    assert "another version of the driver" in " ".join(fault.mend)
    assert "replaced" not in " ".join(fault.mend)


def test_a_gpu_of_the_open_module_alone_is_not_sent_to_the_proprietary_one() -> None:
    found = faults_of(FAULTS["driver.gsp"][2], board("10de:2901"))
    [fault] = [fault for fault in found if fault.rule == "driver.gsp"]
    assert not any("EnableGpuFirmware" in line for line in fault.mend)


def test_a_configuration_that_is_absent_is_the_default() -> None:
    gone = faults_of(setting("container_state.toolkit", False), setting("toolkit.config", ""))
    assert [fault for fault in gone if fault.rule == "containers.config"] == []


def test_storage_that_proprietary_modules_cannot_load_is_named_before_anyone_tries() -> None:
    def named(*changes: Change) -> list[Fault]:
        return [each for each in faults_of(*changes) if each.rule == "storage.nvidia_fs"]

    [fault] = named(proprietary, built_for_storage("2.25.6"))
    assert "proprietary" in fault.text
    assert "nvidia-open" in fault.mend[0]
    assert named(built_for_storage("2.25.6")) == [], "the open modules are loaded"
    assert named(proprietary, built_for_storage("2.17.4")) == [], "a release for both flavours"
    assert named(proprietary, built_for_storage("2.25.6-rc")) == [], "no release"
    [fault] = named(proprietary, built_for_storage("2.25.6"), board("10de:1db5"))
    assert "before 2.17.5" in fault.mend[0], "Volta has no open modules"


def test_the_open_module_is_named_for_storage() -> None:
    line = (
        "nvidia_fs: module using GPL-only symbols uses symbols nvidia_p2p_get_pages from proprietary module"
    )
    found = faults_of(proprietary, kernel_says(f"{line} nvidia."))
    [fault] = [each for each in found if each.rule == "driver.symbols"]
    assert "nvidia-open" in fault.mend[0]


@pytest.mark.parametrize(
    "lines",
    [
        (
            "pci 0000:00:07.0: BAR 1: no space for [mem size 0x10]",
            "pci 0000:00:07.0: BAR 1: assigned [mem 0x10]",
        ),
        ("pci 0000:00:07.0: BAR 6: failed to assign [mem size 0x00080000 pref]",),
        ("pcieport 0000:00:07.0: BAR 13: no space for [io  size 0x1000]",),
        ("pci 0000:00:07.0: VF BAR 0: no space for [mem size 0x00040000]",),
        ("pci 0000:09:00.0: BAR 1: no space for [mem size 0x10]",),
        (
            "pci 0000:00:07.0: BAR 1 [mem size 0x10]: can't assign; no space",
            "pci 0000:00:07.0: BAR 1 [mem 0x10]: assigned",
        ),
    ],
)
def test_addresses_that_were_found_later_or_that_no_driver_needs_are_no_fault(lines: tuple[str, ...]) -> None:
    collected = bare_metal()
    only_one_gpu(collected)
    log(collected, *lines)
    assert "bus.bar_log" not in {fault.rule for fault in diagnose(as_examined(collected)).faults}
    healthy = bare_metal()
    log(healthy, "pci 0000:00:07.0: BAR 1: no space for [mem size 0x2000000000 64bit pref]")
    assert "bus.bar_log" not in {fault.rule for fault in diagnose(as_examined(healthy)).faults}


def test_folders_of_a_logins_library_path_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old/libcuda.so.470.256.02").touch()
    (tmp_path / "old/libcuda.so.1").symlink_to("libcuda.so.470.256.02")
    login_file = tmp_path / "environment"
    login_file.write_text(f'A=b\nexport LD_LIBRARY_PATH="/none:{tmp_path}/old"\n# LD_LIBRARY_PATH=/x\n')
    monkeypatch.setattr(software, "LOGIN_FILES", (str(login_file),))
    monkeypatch.setattr(software, "LOGIN_PATTERNS", ())
    # All users can write in /tmp, so that nothing below it would count.
    real = lambda path: str(Path(path).resolve()) if Path(path).exists() else None  # noqa: E731
    monkeypatch.setattr(software, "path_of_root", real)
    assert list(software._led()) == [(str(tmp_path / "old/libcuda.so.470.256.02"), f"{login_file}:2")]


RESET = "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062)"


@pytest.mark.parametrize(("age_s", "reported"), [(600, True), (7200, False)])
def test_a_reset_that_the_driver_demands_in_words_is_reported_while_it_is_recent(
    age_s: float, reported: bool
) -> None:
    collected = bare_metal()
    kernel_says(RESET, age_s=age_s)(collected)
    faults = [fault for fault in diagnose(as_examined(collected)).faults if fault.rule == "errors.recovery"]
    assert bool(faults) is reported


def test_libraries_that_nvidia_smi_names_are_not_shown_with_the_version_of_the_module() -> None:
    collected = bare_metal()
    said = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161"
    collected["smi"] = {"rc": 18, "stdout": said, "stderr": ""}
    [fault] = [each for each in diagnose(as_examined(collected)).faults if each.rule == "driver.mismatch"]
    assert "module is 580.159.04, the libraries are 535.161" in fault.text


ASLEEP = "pci 0000:00:06.0: Unable to change power state from D3cold to D0, device inaccessible"
WARNING = ("WARNING: CPU: 3 PID: 812 at nvidia-drm/nvidia-drm-drv.c:89", CRASH[1])


def test_a_gpu_that_woke_since_and_a_mere_warning_of_the_kernel_are_no_fault() -> None:
    collected = bare_metal()
    kernel_says(ASLEEP, *WARNING)(collected)
    kernel_says(CRASH[0], age_s=7200)(collected)
    rules = {fault.rule for fault in diagnose(as_examined(collected)).faults}
    assert not rules & {"bus.lost", "driver.crashed"}


def test_a_gpu_for_guests_that_slept_days_ago_is_no_fault() -> None:
    collected = bare_metal()
    bound_to("vfio-pci")(collected)
    kernel_says(ASLEEP.replace("pci ", "vfio-pci ", 1), age_s=48 * 3600)(collected)
    assert "bus.lost" not in {fault.rule for fault in diagnose(as_examined(collected)).faults}


@pytest.mark.parametrize(
    ("line", "after"),
    [
        (CUT, f"NVRM: Continuing with GPU removal for device {FIRST}"),
        (
            TWO_MODULES,
            "nvidia-modeset: Loading NVIDIA Kernel Mode Setting Driver for UNIX platforms  580.159.04  x",
        ),
    ],
    ids=["removed", "modules"],
)
def test_what_the_kernel_says_afterwards_ends_the_fault(line: str, after: str) -> None:
    collected = bare_metal()
    kernel_says(line, age_s=20)(collected)
    kernel_says(after, age_s=10)(collected)
    rules = {fault.rule for fault in diagnose(as_examined(collected)).faults}
    assert not rules & {"driver.crashed", "driver.mismatch"}


def test_a_disk_that_states_its_timeout_is_no_fault() -> None:
    collected = bare_metal()
    kernel_says("nvme nvme0: Shutdown timeout set to 10 seconds")(collected)
    assert "storage.disk_errors" not in {fault.rule for fault in diagnose(as_examined(collected)).faults}


WOKEN_BADLY = "pci 0000:00:06.0: Unable to change power state from unknown to D0, device inaccessible"


@pytest.mark.parametrize("line", [ASLEEP, WOKEN_BADLY, *CRASH, "Oops: 0000 [#1] PREEMPT SMP NOPTI"])
def test_lines_of_a_crash_and_of_a_gpu_without_power_are_collected(line: str) -> None:
    assert kernel_log.WANTED.search(line)

"""The driver: module loaded, of the right flavour, for this kernel and the next, signed, of one version."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuprov.doctor.examination import Examination
from gpuprov.doctor.fault import Fault, listed, rule
from gpuprov.probe.parse.modules import DiskModule

NAMES = ("nvidia", "nvidia_current", "nvidia_current_open")
RELOAD = (
    "sudo systemctl stop nvidia-persistenced nvidia-fabricmanager nvidia-dcgm 2>/dev/null; "
    "sudo modprobe -r nvidia_drm nvidia_modeset nvidia_uvm nvidia && sudo modprobe nvidia",
    "or: sudo reboot",
)
KEEP_VERSION = "stack.driver: VERSION (packages are held at it, unattended upgrades leave them alone)"
BOUND_ELSEWHERE = ("bus.nouveau", "bus.nova", "bus.none")


def module_for(seen: Examination, kernel: str) -> DiskModule | None:
    """NVIDIA's module on disk for a kernel."""
    modules = seen.disk_modules.get(kernel, {})
    return next((modules[name] for name in NAMES if name in modules), None)


def expected(seen: Examination) -> bool:
    """Whether a driver of NVIDIA's is wanted here: a GPU, and not all of them for virtual machines."""
    return any(gpu.driver not in ("vfio-pci", "pci-stub") for gpu in seen.pci_gpus)


def packaged(seen: Examination) -> str | None:
    """A package that brings the driver; None where there is none."""
    wanted = re.compile(
        r"(?:nvidia-driver|nvidia-kernel|nvidia-open|nvidia-dkms|cuda-drivers|nvidia-headless"
        r"|linux-modules-nvidia|kmod-nvidia|xserver-xorg-video-nvidia)"
    )
    found = [name for name in seen.packages.by_name if wanted.match(name) and seen.packages.version(name)]
    return found[0] if found else None


@rule("driver.mismatch", "D01", source="nvforum tk-trouble")
def mismatch(seen: Examination) -> Iterator[Fault]:
    """Libraries of another version than the module that runs."""
    loaded = seen.loaded_driver
    said = seen.smi.error or ""
    told = re.search(r"[Dd]river/library version mismatch", said)
    library = seen.library_version if loaded else None
    if loaded is None or not (told or (library and library != loaded.version)):
        return
    other = library or next(iter(re.findall(r"NVML library version: ([\d.]+)", said)), "another version")
    lines = seen.log_lines("API mismatch") if "kernel_log" not in seen.missing else []
    yield Fault(
        "broken",
        f"the module that runs is {loaded.version}, the libraries are {other}: every CUDA program fails",
        (
            f"/proc/driver/nvidia/version: {loaded.version}",
            f"libnvidia-ml.so.1, as the loader takes it: {library or 'of an unknown version'}",
            *([f"nvidia-smi: {said[:120]}"] if told else []),
            *(f"kernel log: {line.text[:160]}" for line in lines[-1:]),
        ),
        "packages were upgraded while the old module was loaded"
        + (": unattended upgrades are on" if _unattended(seen) else ""),
        RELOAD,
        KEEP_VERSION,
        urgent=True,
    )


def _unattended(seen: Examination) -> bool:
    return "sources" not in seen.missing and seen.apt.unattended_enabled


@rule("driver.absent", "D02", source="bigdata-133", after=BOUND_ELSEWHERE)
def absent(seen: Examination) -> Iterator[Fault]:
    """A GPU, and no driver at all."""
    if (
        not expected(seen)
        or seen.loaded_driver
        or packaged(seen)
        or any(module_for(seen, kernel) for kernel in seen.disk_modules)
    ):
        return
    yield Fault(
        "broken",
        f"{len(seen.pci_gpus)} NVIDIA GPUs, and no driver of NVIDIA's is installed",
        ("/proc/driver/nvidia/version: absent", f"packages: no driver ({seen.packages.manager})"),
        "the machine was never provisioned, or the driver was removed",
        (
            "gpuprov init, gpuprov lock, gpuprov apply: installs a set that is known to work",
            "or by hand: gpuprov resolve --gpu NAME --os NAME says which packages",
        ),
        "a group with this host and a profile",
    )


@rule(
    "driver.not_loaded",
    "D02",
    "D55",
    source="bigdata-133 docker-726",
    after=(
        *BOUND_ELSEWHERE,
        "driver.no_module",
        "driver.build_failed",
        "driver.rejected",
        "driver.flavour",
        "driver.too_new",
        "driver.blacklisted",
        "bus.lost",
    ),
)
def not_loaded(seen: Examination) -> Iterator[Fault]:
    """The module is on disk for this kernel and does not run."""
    if not expected(seen) or seen.loaded_driver or "nvidia" in seen.loaded_modules:
        return
    module = module_for(seen, seen.kernel)
    if module is None and not packaged(seen):
        return
    yield Fault(
        "broken",
        "NVIDIA's module is not loaded: nvidia-smi and every CUDA program fail",
        (
            "/proc/driver/nvidia/version: absent",
            f"on disk for {seen.kernel}: {module.path if module else 'none'}",
            *([f"nvidia-smi: {seen.smi.error[:120]}"] if seen.smi.error else []),
        ),
        "it was not loaded at boot, or loading failed; `modprobe` says why",
        ("sudo modprobe nvidia", "sudo dmesg | grep -iE 'nvidia|NVRM' | tail"),
        "a group with this host and stack.driver",
    )


@rule(
    "driver.init_failed",
    "D12",
    "D13",
    source="open-789 open-326 open-246",
    after=("bus.lost", "driver.flavour", "driver.too_new", "bus.bar", "bus.bar_log", "errors.recovery"),
)
def initialisation_failed(seen: Examination) -> Iterator[Fault]:
    """The module is loaded and could not start a GPU."""
    lines = seen.log_lines(
        r"RmInitAdapter failed|rm_init_adapter failed|Cannot initialize GSP|gsp_\w+\.bin failed"
    )
    answering = {gpu.pci_address for gpu in seen.smi.gpus}
    if not lines or (answering and answering >= {gpu.address for gpu in seen.pci_gpus}):
        return
    firmware = [line for line in lines if "gsp" in line.text.lower()]
    there = seen.raw("libraries")["firmware"]
    loaded = seen.loaded_driver.version if seen.loaded_driver else None
    missing = bool(firmware and loaded and loaded not in there)
    yield Fault(
        "broken",
        "the driver could not start a GPU"
        + (f": firmware of {loaded} is missing" if missing else ": its firmware (GSP)" if firmware else ""),
        (
            *(f"kernel log: {line.text[:180]}" for line in lines[-3:]),
            *([f"/lib/firmware/nvidia: {listed(there) or 'nothing'}"] if firmware else []),
        ),
        "firmware files of another version than the module"
        if missing
        else "hardware, power, or firmware that hangs",
        (
            *(
                [
                    "reinstall the package with the firmware: sudo apt install --reinstall "
                    "'firmware-nvidia-gsp*' 'nvidia-firmware*' 2>/dev/null"
                ]
                if missing
                else []
            ),
            "sudo poweroff, wait a minute, start again",
            "if it stays: sudo nvidia-bug-report.sh, and have the card replaced",
        ),
    )


@rule("driver.two", "D15", source="project")
def two_installations(seen: Examination) -> Iterator[Fault]:
    """Packages and NVIDIA's .run installer side by side."""
    leftovers = seen.state.foreign_drivers
    package = packaged(seen)
    if not leftovers:
        return
    yield Fault(
        "risk" if seen.loaded_driver else "degraded",
        "NVIDIA's .run installer was used here" + (f", beside the package {package}" if package else ""),
        (*(f"{path}: present" for path in leftovers), *([f"package: {package}"] if package else [])),
        "two installers overwrite each other's files; the next upgrade of either breaks the other",
        (f"sudo {leftovers[0]} --uninstall" if "uninstall" in leftovers[0] else "sudo nvidia-uninstall",),
        "stack.driver: VERSION (packages alone)",
    )


@rule("driver.permissions", "D16", source="tk-trouble")
def permissions(seen: Examination) -> Iterator[Fault]:
    """NVML may not be used by everybody, or by nobody."""
    said = seen.smi.error or ""
    mode = seen.driver_parameters.get("DeviceFileMode") if "modules" not in seen.missing else None
    refused = "Insufficient Permissions" in said
    closed = mode is not None and mode.isdigit() and int(mode) & 0o006 != 0o006
    if refused or closed:
        yield Fault(
            "broken" if refused else "risk",
            "the driver's device files are not open to everybody"
            + ("" if refused else f": mode {int(mode or 0):04o}"),
            (f"nvidia-smi: {said[:120]}",)
            if refused
            else (f"/proc/driver/nvidia/params: DeviceFileMode {mode}",),
            "an option of the module, or SELinux on the files",
            (
                "grep -r NVreg_DeviceFileMode /etc/modprobe.d",
                "in containers with SELinux: --security-opt=label=disable",
            ),
        )


@rule(
    "driver.uvm",
    "D17",
    source="llama-7218 digits-799 ollama-8638",
    after=("driver.not_loaded", "driver.no_module"),
)
def no_unified_memory(seen: Examination) -> Iterator[Fault]:
    """CUDA cannot start without nvidia-uvm; NVML works all the same."""
    if seen.in_container:
        wanted = (
            "/dev/nvidiactl" in seen.state.device_nodes and "/dev/nvidia-uvm" not in seen.state.device_nodes
        )
    else:
        wanted = "nvidia_uvm" not in seen.loaded_modules
    if not seen.loaded_driver or not wanted:
        return
    helper = seen.raw("gpu_tools")["nvidia_modprobe"]
    yield Fault(
        "hint" if helper and seen.is_root and not seen.in_container else "broken",
        "nvidia_uvm is not loaded"
        + (
            ": the first CUDA program loads it by nvidia-modprobe"
            if helper
            else ": cuInit fails with 999 or 304 while nvidia-smi works"
        ),
        (
            "/proc/modules: no nvidia_uvm",
            f"nvidia-modprobe: {helper or 'not installed'}",
            f"/dev: {listed(list(seen.state.device_nodes), 8)}",
        ),
        "nothing has loaded it since boot",
        ("sudo modprobe nvidia_uvm", "echo nvidia_uvm | sudo tee /etc/modules-load.d/nvidia-uvm.conf"),
        "a group with this host and stack.driver",
    )


@rule(
    "driver.device_files",
    "D17",
    source="project",
    after=("driver.not_loaded", "driver.no_module", "bus.count"),
)
def no_device_files(seen: Examination) -> Iterator[Fault]:
    """The driver runs, and programs cannot open it."""
    if not seen.loaded_driver or seen.smi.error or not seen.smi.gpus:
        return
    nodes = [path for path in seen.state.device_nodes if re.fullmatch(r"/dev/nvidia\d+", path)]
    if len(nodes) < len(seen.smi.gpus):
        yield Fault(
            "degraded",
            f"{len(nodes)} device files for {len(seen.smi.gpus)} GPUs",
            (f"/dev: {listed(list(seen.state.device_nodes), 8)}",),
            "device files are made at the first use by root, or by nvidia-modprobe",
            ("sudo nvidia-modprobe -c 0 -u", "sudo systemctl enable --now nvidia-persistenced"),
            "settings.persistence: true",
        )


@rule("driver.infoROM", "D18", source="op-trouble")
def corrupted_board_memory(seen: Examination) -> Iterator[Fault]:
    """The board's own memory is damaged."""
    words = [*seen.smi.warnings, *(seen.smi.error or "").split("\n")]
    bad = [line for line in words if re.search(r"infoROM is corrupted", line, re.I)]
    if bad:
        yield Fault(
            "broken",
            "the infoROM of a GPU is corrupted",
            tuple(f"nvidia-smi: {line}" for line in bad[:4]),
            "the board's own memory of its identity and errors is damaged; ECC and row remapping are "
            "not kept",
            ("have the GPU replaced; sudo nvidia-bug-report.sh for the vendor",),
        )


@rule("driver.persistence", "D19", "D58", source="aws-hc sichek", after=("driver.mismatch",))
def no_persistence(seen: Examination) -> Iterator[Fault]:
    """The driver forgets GPUs when no program uses them."""
    off = [str(gpu.index) for gpu in seen.gpus if gpu.persistence_mode is False]
    if not off:
        return
    unit = seen.units.get("nvidia-persistenced.service") if "units" not in seen.missing else None
    state = f"{unit.file_state or unit.load_state}, {unit.active_state}" if unit else "not known"
    yield Fault(
        "risk",
        f"persistence mode is off on GPU {listed(off, 8)}",
        ("nvidia-smi -q: Persistence Mode Disabled", f"nvidia-persistenced.service: {state}"),
        "each first use starts the GPU anew, seconds long; clocks, power limit and volatile counters "
        "are lost",
        (
            "sudo systemctl enable --now nvidia-persistenced"
            if unit and unit.exists
            else "sudo nvidia-smi -pm 1   (until the next boot)",
        ),
        "settings.persistence: true",
    )


@rule(
    "driver.smi",
    "D02",
    source="project",
    after=(
        "driver.mismatch",
        "driver.not_loaded",
        "driver.no_module",
        "driver.absent",
        "driver.permissions",
        "driver.rejected",
        "driver.init_failed",
        "bus.count",
        "bus.lost",
        "bus.none",
        "errors.xid",
        "errors.recovery",
        "driver.infoROM",
    ),
)
def no_answer(seen: Examination) -> Iterator[Fault]:
    """nvidia-smi gives no whole answer, for whatever reason."""
    said = seen.smi.error
    if not said or not expected(seen) or (seen.loaded_driver is None and not packaged(seen)):
        return
    hanging = re.search(r"did not answer in time|no answer in", said)
    yield Fault(
        "broken",
        "nvidia-smi does not answer in time" if hanging else f"nvidia-smi fails: {said[:160]}",
        (f"nvidia-smi -q -x: {said[:300]}",),
        "a GPU or its firmware hangs, or a program holds the driver" if hanging else "see the message",
        (
            "sudo dmesg | grep -iE 'NVRM|Xid' | tail",
            "ps -eo pid,stat,wchan:32,comm | awk '$2 ~ /D/'" if hanging else "nvidia-smi",
        ),
    )


@rule("driver.reboot_pending", "D22", source="project")
def reboot_pending(seen: Examination) -> Iterator[Fault]:
    """Packages that count wait for a reboot."""
    waiting = [
        name for name in seen.state.reboot_packages if re.search(r"linux-|nvidia|libc6|systemd|dbus", name)
    ]
    if seen.state.reboot_required and waiting:
        yield Fault(
            "hint",
            f"a reboot is required by {listed(waiting)}",
            ("/run/reboot-required.pkgs: " + listed(waiting, 8),),
            "packages were upgraded that take effect at boot",
            ("sudo reboot, when the GPUs are idle",),
        )

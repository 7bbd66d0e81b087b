"""Rules for the driver: loaded, initialised, of one version, and installed only once."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuprov.doctor.concerns.bus import REBUILD
from gpuprov.doctor.examination import Examination, age
from gpuprov.doctor.fault import Fault, listed, rule
from gpuprov.probe.parse.modules import DiskModule
from gpuprov.untrusted import ShellLine, shell, shell_words

NAMES = ("nvidia", "nvidia_current", "nvidia_current_open")
MODULES = ("nvidia_peermem", "nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia")
"""Modules in the order in which they can be unloaded."""
SERVICES = ("nvidia-persistenced.service", "nvidia-fabricmanager.service", "nvidia-dcgm.service")
"""Services that use the module and are not users' programs."""
KEEP_VERSION = "stack.driver: VERSION (packages are held at it, unattended upgrades leave them alone)"
BOUND_ELSEWHERE = ("bus.nouveau", "bus.nova", "bus.none")


def module_for(seen: Examination, kernel: str) -> DiskModule | None:
    """Return NVIDIA's module on disk for a kernel, or None."""
    modules = seen.disk_modules.get(kernel, {})
    return next((modules[name] for name in NAMES if name in modules), None)


def expected(seen: Examination) -> bool:
    """Return whether NVIDIA's driver is expected: a GPU that is not reserved for virtual machines."""
    return any(gpu.driver not in ("vfio-pci", "pci-stub") for gpu in seen.pci_gpus)


def packaged(seen: Examination) -> str | None:
    """Return the first installed package that contains the driver, or None."""
    wanted = re.compile(
        r"(?:nvidia-driver|nvidia-kernel|nvidia-open|nvidia-dkms|cuda-drivers|nvidia-headless"
        r"|linux-modules-nvidia|kmod-nvidia|xserver-xorg-video-nvidia)"
    )
    found = [name for name in seen.packages.by_name if wanted.match(name) and seen.packages.version(name)]
    return found[0] if found else None


@rule("driver.mismatch", "D01", source="nvforum tk-trouble void-4473")
def mismatch(seen: Examination) -> Iterator[Fault]:
    """Report libraries of another version than the loaded module, by nvidia-smi's message or NVML's
    library; else a module of another version than nvidia.ko, by the kernel's last message about it.
    """
    result = [*_libraries(seen)]
    yield from result or _modules(seen)


def _libraries(seen: Examination) -> Iterator[Fault]:
    """Report libraries of another version than the loaded module."""
    loaded = seen.loaded_driver
    said = seen.smi.error or ""
    result = re.search(r"[Dd]river/library version mismatch", said)
    library = seen.library_version if loaded else None
    if loaded is None or not (result or (library and library != loaded.version)):
        return
    other = library if library != loaded.version else None
    other = other or next(iter(re.findall(r"NVML library version: ([\d.]+)", said)), "another version")
    lines = seen.log_lines("API mismatch") if "kernel_log" not in seen.missing else []
    yield Fault(
        "broken",
        f"the loaded module is {loaded.version}, the libraries are {other}: every CUDA program fails",
        (
            f"/proc/driver/nvidia/version: {loaded.version}",
            f"libnvidia-ml.so.1, as the loader takes it: {library or 'of an unknown version'}",
            *([f"nvidia-smi: {said[:120]}"] if result else []),
            *(line.quoted(160) for line in lines[-1:]),
        ),
        "packages were upgraded while the old module was loaded"
        + (": unattended upgrades are on" if _unattended(seen) else ""),
        reload(seen),
        KEEP_VERSION,
        urgent=True,
    )


_TWO_MODULES = re.compile(
    r"nvidia-(?:modeset|uvm|drm): Version mismatch: nvidia\.ko\(([\d.]{3,20})\) "
    r"(nvidia-\w{3,10})(?:\.ko)?\(([\d.]{3,20})\)"
)


def _modules(seen: Examination) -> Iterator[Fault]:
    """Report a module that the kernel refused because it is not of nvidia.ko's version, unless the one for
    modes was loaded since; none if the log could not be read.
    """
    if "kernel_log" in seen.missing:
        return
    lines = seen.log_lines(_TWO_MODULES.pattern, "nvidia-modeset: Loading NVIDIA Kernel Mode Setting Driver")
    if found := _TWO_MODULES.match(lines[-1].text if lines else ""):
        yield Fault(
            "degraded",
            f"{found[2]} is {found[3]}, the loaded nvidia.ko is {found[1]}: the kernel refuses it",
            (lines[-1].quoted(160),),
            "an upgrade replaced some of the driver's modules, or the initial RAM disk has the older ones",
            (
                shell("sudo modinfo -F version nvidia; sudo modinfo -F version {}", found[2]),
                shell("sudo depmod -a"),
                REBUILD,
                shell("sudo reboot"),
            ),
            KEEP_VERSION,
        )


def reload(seen: Examination) -> tuple[ShellLine, ...]:
    """Return commands that replace the loaded module by the one on disk and restart the active services that
    use it.
    """
    there = seen.units if "units" not in seen.missing else {}
    services = shell_words(name for name in SERVICES if (unit := there.get(name)) and unit.active)
    loaded = [name for name in MODULES if name in seen.loaded_modules]
    back = shell_words(
        name for name in reversed(loaded) if name in ("nvidia", "nvidia_uvm", "nvidia_peermem")
    )
    return (
        *(
            [shell("sudo systemctl stop {}   (and end the programs on the GPUs)", services)]
            if services
            else []
        ),
        shell("sudo modprobe -r {} && sudo modprobe -a {}", shell_words(loaded), back),
        *([shell("sudo systemctl start {}", services)] if services else []),
        shell("or: sudo reboot"),
    )


def _unattended(seen: Examination) -> bool:
    """Return whether unattended upgrades are on; False if apt's settings are unknown."""
    return "sources" not in seen.missing and seen.apt.unattended_enabled


@rule("driver.absent", "D02", source="bigdata-133", after=BOUND_ELSEWHERE)
def absent(seen: Examination) -> Iterator[Fault]:
    """Report GPUs for NVIDIA's driver without any: neither loaded, nor as a package, nor as a module on
    disk.
    """
    if (
        not expected(seen)
        or seen.loaded_driver
        or packaged(seen)
        or any(module_for(seen, kernel) for kernel in seen.disk_modules)
    ):
        return
    yield Fault(
        "broken",
        f"{len(seen.pci_gpus)} NVIDIA GPUs, and no NVIDIA driver is installed",
        ("/proc/driver/nvidia/version: absent", f"packages: no driver ({seen.packages.manager})"),
        "the machine was never provisioned, or the driver was removed",
        (
            shell("gpuprov init, gpuprov lock, gpuprov apply: installs a set that is known to work"),
            shell("or by hand: gpuprov resolve --gpu NAME --os NAME lists the packages"),
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
        "driver.vermagic",
        "driver.symbols",
        "driver.alias",
        "driver.unsupported",
        "driver.init_failed",
        "driver.crashed",
        "bus.lost",
        "bus.bar_log",
    ),
)
def not_loaded(seen: Examination) -> Iterator[Fault]:
    """Report a driver that is installed, as a package or as a module for this kernel, and not loaded."""
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
        "it was not loaded at boot, or loading failed; `modprobe` prints the reason",
        (shell("sudo modprobe nvidia"), shell("sudo dmesg | grep -iE 'nvidia|NVRM' | tail")),
        "a group with this host and stack.driver",
    )


_REFUSED = {
    r"\ANVRM: Can't find an IRQ": "the firmware or the hypervisor gives the GPU no interrupt",
    r"\ANVRM: pci_enable_device failed": "the kernel cannot switch the device on: power, firmware or slot",
    r"\ANVRM: request_mem_region failed": "another driver holds the GPU's registers",
    r"\ANVRM: .*[Ff]ailed to copy vbios": "the driver does not get the GPU's VBIOS from the firmware, as in "
    "laptops and virtual machines",
}
"""Pattern of a message by which the driver refuses a device → its cause."""


@rule(
    "driver.init_failed",
    "D12",
    source="open-789 open-326 open-pci kata-1142",
    after=(
        "bus.lost",
        "driver.flavour",
        "driver.unsupported",
        "driver.too_new",
        "driver.firmware",
        "driver.gsp",
        "driver.mismatch",
        "bus.bar",
        "bus.bar_log",
        "errors.recovery",
    ),
)
def initialisation_failed(seen: Examination) -> Iterator[Fault]:
    """Report the log's messages that the driver could not initialise a GPU, unless nvidia-smi lists all
    GPUs.
    """
    lines = seen.log_lines(
        r"RmInitAdapter failed|rm_init_adapter failed",
        r"nvidia_frontend_open: minor \d{1,3}, module->open\(\) failed",
        *_REFUSED,
    )
    answering = {gpu.pci_address for gpu in seen.smi.gpus}
    if not lines or (answering and answering >= {gpu.address for gpu in seen.pci_gpus}):
        return
    yield Fault(
        "broken",
        "the driver could not start a GPU",
        tuple(line.quoted(180) for line in lines[-3:]),
        next(
            (cause for pattern, cause in _REFUSED.items() if seen.log_lines(pattern)),
            "hardware, power, or a driver that does not fit this GPU",
        ),
        (
            shell("sudo poweroff, wait a minute, start again"),
            shell("then another version of the driver: gpuprov resolve lists those of the branch"),
            shell("if it stays: sudo nvidia-bug-report.sh, and have the card replaced"),
        ),
    )


_CRASH = re.compile(r"BUG: (?:kernel NULL|unable to handle)|Oops: |general protection fault, ")
_IN_OURS = re.compile(r"RIP: [0-9a-f]{4}:\S{1,200} \[(nvidia\w{0,20})\]")
CRASH_S = 1.0
"""Seconds between the first line of the kernel's report of a crash and the one with the place."""


@rule("driver.crashed", "D17", source="cachyos-1764 open-276 open-1374", after=("errors.recovery",))
def crashed(seen: Examination) -> Iterator[Fault]:
    """Report a crash of the kernel in a module of the driver: broken if the driver is not loaded since. Else
    report a GPU that was taken from the driver while programs used it: the driver waits for them for ever.

    A mere warning there does not count.
    """
    yield from [*_crash(seen)] or _taken_away(seen)


def _crash(seen: Examination) -> Iterator[Fault]:
    """Report the last crash of the kernel in a module of the driver."""
    lines = seen.program_lines(_CRASH.pattern, _IN_OURS.pattern)
    starts = [line for line in lines if _CRASH.match(line.text)]
    for line in reversed(lines):
        place = _IN_OURS.match(line.text)
        start = next((each for each in starts if 0 <= each.age_s - line.age_s <= CRASH_S), None)
        if place and start:
            yield Fault(
                "degraded" if seen.loaded_driver else "broken",
                f"the kernel crashed in {place[1]}, {age(line.age_s)} ago",
                (start.quoted(160), line.quoted(160)),
                "an error of this version of the driver with this kernel; programs that use the module hang "
                "until a restart",
                (
                    shell("sudo dmesg | grep -A 30 -E 'BUG:|Oops' | tail -60"),
                    shell("drain the node, then: sudo reboot"),
                    shell("then another version of the driver: gpuprov resolve lists those of the branch"),
                ),
                by_users=True,
            )
            return


_TAKEN_AWAY = r"NVRM: Attempting to remove .*device .* with non-zero usage count"
_WENT_ON = "NVRM: Continuing with GPU removal"


def _taken_away(seen: Examination) -> Iterator[Fault]:
    """Report that a GPU was removed while it was used, unless the driver went on since."""
    lines = seen.log_lines(_TAKEN_AWAY, _WENT_ON)
    if lines and not lines[-1].text.startswith(_WENT_ON):
        yield Fault(
            "degraded" if seen.loaded_driver else "broken",
            f"a GPU was taken from the driver while programs used it, {age(lines[-1].age_s)} ago: the driver "
            "hangs there",
            (lines[-1].quoted(160),),
            "a script wrote to `remove` or `unbind` below /sys, a virtual machine took the GPU, or its cable "
            "was pulled",
            (
                shell("end the programs on the GPU: sudo fuser -v /dev/nvidia*"),
                shell("if the one that removes it hangs still: drain the node, then: sudo reboot"),
            ),
        )


@rule("driver.two", "D15", source="project")
def two_installations(seen: Examination) -> Iterator[Fault]:
    """Report traces of NVIDIA's .run installer, possibly in addition to packages. A risk while a driver is
    loaded, else degraded.
    """
    leftovers = seen.state.foreign_drivers
    package = packaged(seen)
    if not leftovers:
        return
    yield Fault(
        "risk" if seen.loaded_driver else "degraded",
        "NVIDIA's .run installer was used here" + (f", beside the package {package}" if package else ""),
        (*(f"{path}: present" for path in leftovers), *([f"package: {package}"] if package else [])),
        "two installers overwrite each other's files; an upgrade by one breaks the other",
        (
            shell("sudo {} --uninstall", leftovers[0])
            if "uninstall" in leftovers[0]
            else shell("sudo nvidia-uninstall"),
        ),
        "stack.driver: VERSION (packages only)",
    )


@rule("driver.reboot_pending", "D22", source="project")
def reboot_pending(seen: Examination) -> Iterator[Fault]:
    """Report packages of the kernel, NVIDIA, libc, systemd or D-Bus that require a reboot."""
    waiting = [
        name for name in seen.state.reboot_packages if re.search(r"linux-|nvidia|libc6|systemd|dbus", name)
    ]
    if seen.state.reboot_required and waiting:
        yield Fault(
            "hint",
            f"a reboot is required by {listed(waiting)}",
            ("/run/reboot-required.pkgs: " + listed(waiting, 8),),
            "packages were upgraded that take effect at boot",
            (shell("sudo reboot, when the GPUs are idle"),),
        )

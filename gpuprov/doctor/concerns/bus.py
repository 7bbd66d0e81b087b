"""Rules for GPUs on the bus: presence, response, address space, and binding to NVIDIA's driver."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuprov.doctor.examination import Examination, LogLine
from gpuprov.doctor.fault import Fault, listed, rule
from gpuprov.doctor.lines import with_kernel_option
from gpuprov.doctor.packaging import platform_of
from gpuprov.probe.facts import Missing
from gpuprov.untrusted import ShellLine, shell

KEEP_DRIVER = "group: profile with stack.driver (the role nvidia_driver blacklists nouveau and nova_core)"
RESERVED = ("vfio-pci", "pci-stub")
"""Drivers that keep a GPU for a virtual machine."""
_D3COLD = "/sys/bus/pci/devices/{}/d3cold_allowed"
REBUILD = shell("sudo update-initramfs -u 2>/dev/null || sudo dracut --force")


@rule("bus.none", "D21", source="oci-hc")
def none_on_the_bus(seen: Examination) -> Iterator[Fault]:
    """Report that neither PCI nor nvidia-smi has an NVIDIA GPU although NVIDIA's packages are installed."""
    wanted = any(name.startswith(("nvidia-", "libnvidia", "cuda-drivers")) for name in seen.packages.by_name)
    if not seen.pci_gpus and wanted and not seen.smi.gpus:
        yield Fault(
            "broken",
            "no NVIDIA GPU is on the PCI bus, and NVIDIA's packages are installed",
            ("/sys/bus/pci/devices: no device of vendor 10de, class 03",),
            "the card is not seated or has no power, its slot is switched off in the BIOS, or this virtual "
            "machine has none",
            (
                shell("lspci -nn -d 10de:"),
                shell("check seating, power cables and the BIOS; power off for a minute"),
            ),
        )


_WITHOUT_HANDLE = re.compile(
    r"Unable to determine the device handle for GPU ?(?:\d{1,3}: )?"
    r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.0): (GPU is lost|Unknown Error)"
)
_ASLEEP = re.compile(
    r"(?:pci|nvidia|vfio-pci) ([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.0): "
    r"(?:(?:Unable to|can't) change power state from (?:D3cold|D3hot|unknown) to D0"
    r"|Refused to change power state(?:, currently in D3| from D3\w{0,4} to D0))"
)
"""The kernel's message, and those of older kernels."""
_RECENT_S = 24 * 3600


@rule("bus.lost", "D60", "D49", "X79", source="op-trouble bbswitch-226 drivers-common-12 bumblebee-739")
def lost(seen: Examination) -> Iterator[Fault]:
    """Report GPUs, NVSwitches and RDMA devices whose configuration space reads all ones: they no longer
    answer. Of the other GPUs report those that did not wake from D3 and that nvidia-smi does not list,
    and those that nvidia-smi cannot open.
    """
    gone = [chain[0] for chain in seen.pci_links.values() if chain and chain[0].lost]
    result = {gpu.address for gpu in seen.pci_gpus}
    for port in gone:
        what = "GPU" if port.address in result else "device"
        yield Fault(
            "broken",
            f"{what} {port.address} has fallen off the bus",
            (f"/sys/bus/pci/devices/{port.address}/config: reads all ones",),
            "PCIe link, power or heat at that slot; the driver cannot recover it",
            (
                shell("sudo poweroff, wait a minute with the power cut, start again"),
                shell("when it comes back: reseat the card and its power cables, then have it replaced"),
            ),
            urgent=True,
        )
    named = {port.address for port in gone}
    yield from (fault for fault in _asleep(seen) if not named)
    yield from (fault for fault in _without_handle(seen) if not named)


def _asleep(seen: Examination) -> Iterator[Fault]:
    """Report GPUs that did not come back from the state without power, by the kernel's last message; none if
    the log could not be read. Of one that is kept for guests nothing else tells whether it woke since: it is
    degraded, for a day.
    """
    try:
        lines = seen.log_lines(r"change power state from \w{2,7} to D0|change power state, currently in D3")
    except Missing:
        return
    listed_by_smi = {gpu.pci_address for gpu in seen.smi.gpus}
    last = {found[1]: line for line in lines if (found := _ASLEEP.match(line.text))}
    for gpu in seen.pci_gpus:
        if gpu.address not in last or gpu.address in listed_by_smi:
            continue
        reserved = gpu.driver in RESERVED
        if not reserved or last[gpu.address].age_s < _RECENT_S:
            yield Fault(
                "degraded" if reserved else "broken",
                f"GPU {gpu.address} did not wake from D3: the bus does not reach it",
                (last[gpu.address].quoted(180),),
                "its slot or the firmware keeps the power off: power management of a laptop or of a virtual "
                "machine's host",
                (
                    shell("sudo poweroff, wait a minute, start again"),
                    shell("then keep it awake: echo 0 | sudo tee {}", _D3COLD.format(gpu.address)),
                ),
            )


def _without_handle(seen: Examination) -> Iterator[Fault]:
    """Report GPUs that nvidia-smi finds and cannot open."""
    for address, words in _WITHOUT_HANDLE.findall(seen.smi.error or ""):
        yield Fault(
            "broken",
            f"nvidia-smi cannot open GPU {address.lower()}: {words}",
            (f"nvidia-smi -q -x: {(seen.smi.error or '')[:300]}",),
            "most often it has fallen off the bus (Xid 79) since the driver started it: PCIe link, power or "
            "heat at that slot",
            (
                shell("sudo dmesg | grep -E 'NVRM|Xid' | tail -50"),
                shell("sudo poweroff, wait a minute with the power cut, start again"),
                shell("when it comes back: reseat the card and its power cables, then have it replaced"),
            ),
        )


@rule("bus.bar", "D14", source="open-mod")
def memory_window(seen: Examination) -> Iterator[Fault]:
    """Report a GPU on the bus whose memory BARs have no addresses."""
    gpus = {gpu.address for gpu in seen.pci_gpus}
    for address, chain in seen.pci_links.items():
        if address not in gpus:
            continue
        if chain and chain[0].unplaced and not chain[0].lost:
            yield Fault(
                "broken",
                f"GPU {address}: its memory window BAR{chain[0].unplaced[0]} has no address",
                (f"/sys/bus/pci/devices/{address}/resource: sizes {', '.join(map(str, chain[0].bars))}",),
                "the firmware left no room above 4 GB, or the virtual machine has too small a window for PCI",
                (
                    shell(
                        "BIOS: enable Above 4G Decoding (and Resizable BAR); virtual machine: a "
                        "larger MMIO window"
                    ),
                    shell("or let the kernel assign the addresses:"),
                    *with_kernel_option("pci=realloc", entries=platform_of(seen).next_kernel == "bls"),
                ),
            )


@rule("bus.bar_log", "D14", source="open-mod firmware-66", after=("bus.bar",))
def memory_window_log(seen: Examination) -> Iterator[Fault]:
    """Report the driver's messages about invalid BARs, and the kernel's about BARs without space, of a GPU
    that nvidia-smi lacks.
    """
    lines = seen.log_lines(
        r"\ANVRM: (?:This PCI I/O region assigned to your NVIDIA device is invalid|BAR\d is 0M"
        r"|This is a 64-bit BAR mapped above)"
    )
    refused = bool(lines)
    lines = lines or _without_space(seen)
    if lines:
        yield Fault(
            "broken",
            "the driver refuses a GPU whose PCI window is invalid"
            if refused
            else "the kernel found no address space for a GPU",
            tuple(line.quoted() for line in lines[-2:]),
            "the firmware left no room above 4 GB, or the virtual machine has too small a window for PCI",
            (
                shell(
                    "BIOS: enable Above 4G Decoding; virtual machine: a larger MMIO window; or "
                    "boot with pci=realloc"
                ),
            ),
        )


def _without_space(seen: Examination) -> list[LogLine]:
    """Return the kernel's lines about BARs that got no address, of GPUs that nvidia-smi does not list, and of
    the bridges above them. A BAR that got one later does not count: the kernel tries several times.
    """
    listed_by_smi = {gpu.pci_address for gpu in seen.smi.gpus}
    slots = set()
    for gpu in seen.pci_gpus:
        if gpu.address not in listed_by_smi:
            slots |= {port.address.rpartition(".")[0] for port in seen.pci_links.get(gpu.address, ())}
            slots.add(gpu.address.rpartition(".")[0])
    failed: dict[tuple[str, str], LogLine] = {}
    for line in seen.log_lines(r"\bBAR \d"):
        if not (match := _BAR.search(line.text)) or match["slot"] not in slots:
            continue
        name = (match["slot"] + match["function"], match["bar"])
        if match["assigned"] or match["later"]:
            failed.pop(name, None)
        else:
            failed[name] = line
    return list(failed.values())


_BAR = re.compile(
    r"\bpci(?:eport)? (?P<slot>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})(?P<function>\.[0-7]): "
    r"BAR (?P<bar>[0-57-9]|1[0-9])"
    r"(?:: (?:(?P<assigned>assigned)|no space for|failed to assign) \[mem"
    r"| \[mem [^\]]{1,80}\]: (?:(?P<later>assigned)|can't assign|failed to assign))"
)
"""A line about memory, in the form before or since Linux 6.9. BAR 6 is the board's ROM, which no driver
needs, and bridges of healthy servers get no space for ports of I/O.
"""


_NOUVEAU = "blacklist nouveau\\noptions nouveau modeset=0"


@rule("bus.nouveau", "D07", source="bigdata-133 k8s-1468 ironhide-41")
def nouveau(seen: Examination) -> Iterator[Fault]:
    """Report GPUs bound to nouveau, and without any driver GPUs that another one held when NVIDIA's module
    was to be loaded, which names nouveau first.
    """
    yield from _foreign(seen, ("nouveau",), "nouveau", _NOUVEAU)
    if seen.loaded_driver or any(gpu.driver for gpu in seen.pci_gpus) or "kernel_log" in seen.missing:
        return
    lines = seen.log_lines(r"\ANVRM: The NVIDIA probe routine was not called for")
    if lines:
        yield Fault(
            "broken",
            "another driver held GPUs when NVIDIA's module was to be loaded, and does not hold them any more",
            (lines[-1].quoted(),),
            "as a rule nouveau, or a framebuffer of the firmware: it was loaded first, from the initramfs",
            _without(_NOUVEAU, "nouveau"),
            KEEP_DRIVER,
        )


@rule("bus.nova", "D08", source="olares-3963")
def nova(seen: Examination) -> Iterator[Fault]:
    """Report GPUs bound to the kernel's nova driver, which a blacklist of nouveau does not exclude."""
    yield from _foreign(
        seen,
        ("nova-core", "nova_core", "NovaCore", "nova"),
        "nova",
        "blacklist nova_core\\nblacklist nova_drm",
    )


def _foreign(seen: Examination, drivers: tuple[str, ...], name: str, lines: str) -> Iterator[Fault]:
    """Report GPUs bound to one of `drivers`, in one fault.

    Args:
        drivers: names in sysfs; the first is also the module that is looked up in modprobe's blacklists.
        name: the driver's name in the fault's text and in the name of the file that blacklists it.
        lines: text of that file as a format of printf.
    """
    held = [gpu.address for gpu in seen.pci_gpus if gpu.driver in drivers]
    if not held:
        return
    try:
        blacklisted = seen.modprobe.blacklisted.get(drivers[0].replace("-", "_"))
        said = f"blacklisted at {blacklisted}" if blacklisted else "not blacklisted"
    except Missing as error:
        blacklisted, said = None, str(error)
    yield Fault(
        "broken",
        f"{name} holds {len(held)} of {len(seen.pci_gpus)} GPUs: {listed(held)}",
        (
            *(f"/sys/bus/pci/devices/{address}/driver: {name}" for address in held[:4]),
            f"modprobe.d: {said}",
        ),
        "NVIDIA's module cannot bind a device that another driver holds"
        + ("; the blacklist is not in the initramfs, which loads it first" if blacklisted else ""),
        _without(lines, name),
        KEEP_DRIVER,
    )


def _without(lines: str, name: str) -> tuple[ShellLine, ...]:
    """Return the lines that keep a driver from being loaded: `lines` in a file of modprobe, and a restart."""
    return (
        shell("printf {} | sudo tee {}", f"{lines}\\n", f"/etc/modprobe.d/blacklist-{name}.conf"),
        REBUILD,
        shell("sudo reboot"),
    )


@rule("bus.vfio", "D09", source="project")
def passed_through(seen: Examination) -> Iterator[Fault]:
    """Report GPUs reserved for virtual machines, which the host cannot use: all of them (risk) or some
    (hint).
    """
    held = [gpu.address for gpu in seen.pci_gpus if gpu.driver in ("vfio-pci", "pci-stub")]
    if held:
        some = len(held) < len(seen.pci_gpus)
        yield Fault(
            "hint" if some else "risk",
            f"{len(held)} of {len(seen.pci_gpus)} GPUs are set aside for virtual machines: {listed(held)}",
            tuple(f"/sys/bus/pci/devices/{address}/driver: vfio-pci" for address in held[:4]),
            "the host's programs do not see them; expected on a hypervisor, otherwise a leftover",
            (
                shell("to release one: echo ADDRESS | sudo tee /sys/bus/pci/drivers/vfio-pci/unbind"),
                shell("and remove its id from vfio-pci.ids (kernel command line, /etc/modprobe.d)"),
            ),
        )


@rule(
    "bus.count",
    "D20",
    "D12",
    source="op-trouble",
    after=(
        "bus.lost",
        "bus.vfio",
        "bus.nouveau",
        "bus.nova",
        "bus.bar",
        "bus.bar_log",
        "driver.not_loaded",
        "driver.mismatch",
        "driver.confidential",
        "driver.flavour",
        "driver.too_new",
        "driver.unsupported",
        "driver.firmware",
        "driver.gsp",
        "driver.init_failed",
        "errors.xid",
        "errors.recovery",
    ),
)
def fewer_than_on_the_bus(seen: Examination) -> Iterator[Fault]:
    """Report that nvidia-smi lists fewer GPUs than PCI, without GPUs reserved for virtual machines; nothing
    if it fails for another reason than that it finds none.
    """
    smi, bound = seen.smi, [gpu for gpu in seen.pci_gpus if gpu.driver not in RESERVED]
    if smi.error and "No devices were found" not in smi.error and not smi.gpus:
        return
    listed_by_smi = {gpu.pci_address for gpu in smi.gpus}
    missing = [gpu.address for gpu in bound if gpu.address not in listed_by_smi]
    if missing and len(smi.gpus) < len(bound):
        yield Fault(
            "broken",
            f"nvidia-smi shows {len(smi.gpus)} of the {len(bound)} GPUs on the bus; missing: "
            f"{listed(missing)}",
            (
                f"/sys/bus/pci/devices: {len(bound)} NVIDIA GPUs",
                f"nvidia-smi -q -x: {smi.error or f'{len(smi.gpus)} GPUs'}",
            ),
            "the driver could not start that GPU, or has lost it since",
            (
                shell("sudo dmesg | grep NVRM | grep -iF {}", missing[0].removesuffix(".0")),
                shell(
                    "power the machine off for a minute; if the GPU is still missing: reseat or replace it"
                ),
            ),
        )


@rule(
    "bus.unlike",
    "D83",
    source="imbue",
    after=("errors.ecc_off", "speed.power_limit", "cuda.mig_left"),
)
def unlike_gpus(seen: Examination) -> Iterator[Fault]:
    """Report VBIOS, memory, power limit, maximum clock, ECC or MIG that differ between GPUs of one model.

    Nothing if the GPUs are of several models; unknown values are not compared.
    """
    if len(seen.gpus) < 2 or len({gpu.pci_device_id for gpu in seen.gpus}) > 1:
        return
    aspects: dict[str, list[object]] = {
        "VBIOS": [gpu.vbios for gpu in seen.gpus],
        "memory": [gpu.memory_total_mib for gpu in seen.gpus],
        "power limit": [gpu.power.limit for gpu in seen.gpus],
        "maximal clock": [gpu.max_clocks.sm for gpu in seen.gpus],
        "ECC": [gpu.ecc.current for gpu in seen.gpus],
        "MIG": [gpu.mig.current for gpu in seen.gpus],
    }
    for name, values in aspects.items():
        different = sorted({str(value) for value in values if value is not None})
        if len(different) > 1:
            yield Fault(
                "risk",
                f"the GPUs differ in {name}: {listed(different)}",
                tuple(f"GPU {gpu.index}: {value}" for gpu, value in zip(seen.gpus, values, strict=True))[:8],
                "a job runs as fast as its slowest GPU; mixed parts, a failed flash or a setting of one GPU",
                (shell("nvidia-smi -q | grep -E 'Attached|Minor|VBIOS|Power Limit|Current ECC|MIG Mode'"),),
            )

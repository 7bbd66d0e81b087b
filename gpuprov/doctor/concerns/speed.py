"""Rules for slow GPUs: heat, power, fixed clocks, PCIe links."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuprov.doctor.examination import Examination, Port
from gpuprov.doctor.fault import Fault, listed, rule
from gpuprov.untrusted import shell

BUSY_UTILIZATION = 20
"""Utilisation in percent from which a GPU counts as busy, so that its link must be at full speed (our choice:
a link may stay in a low-power state during short work).
"""
NEAR_SLOWDOWN_C = 3
"""Degrees below the driver's slowdown threshold that are too near (our choice; NVIDIA states none)."""
IDLE_HOT_C = 70
"""Temperature in degrees C that is too high without load (our choice: cooled GPUs reach it under load)."""
CLOCK_SHARE = 0.7
"""Share of the maximum SM clock; below it a busy GPU without a reason has restricted clocks (our choice)."""
MANY_CORRECTED = 3
"""Number of logged corrected errors from which they are reported (our choice: the kernel limits their rate,
and one or two come with a hot plug or a change of the link's speed).
"""
COUNTED_US = 1_000_000
"""Microseconds of slowdown since the driver was loaded to report (our choice: more than at a start)."""
LIMIT_SHARE = 0.75
"""Share of the default power limit: a lower limit is a fault, a higher one a policy (our choice)."""

_REASONS = {
    "hw_thermal_slowdown": (
        "broken",
        "is slowed down by its hardware for heat: clocks at half or less",
        "cooling: fans, airflow, dust, room temperature",
    ),
    "hw_power_brake_slowdown": (
        "degraded",
        "is slowed down by the server's power supply",
        "a power supply has failed, a cable is loose, or the BMC caps power",
    ),
    "hw_slowdown": (
        "broken",
        "is slowed down by its hardware: heat, or power at the board",
        "cooling, fans and power cables",
    ),
    "sw_thermal_slowdown": (
        "degraded",
        "is slowed down by the driver for heat",
        "airflow, hot neighbouring GPUs, a high power limit; the core or its memory is near the threshold",
    ),
    "sync_boost": (
        "degraded",
        "is limited to the clock of a slower GPU by sync boost",
        "a group made with nvidia-smi boost-slider",
    ),
}


@rule("speed.throttled", "D68", "D69", "D70", "D72", source="aznhc nvml")
def throttled(seen: Examination) -> Iterator[Fault]:
    """Report reasons of low clocks now; a power cap at full load is normal and not reported."""
    for gpu in seen.gpus:
        reasons = [name for name in _REASONS if name in gpu.active_throttle_reasons]
        if {"hw_thermal_slowdown", "hw_power_brake_slowdown"} & set(reasons):
            reasons = [name for name in reasons if name != "hw_slowdown"]
        for name in reasons:
            severity, text, cause = _REASONS[name]
            yield Fault(
                severity,  # type: ignore[arg-type]
                f"GPU {gpu.index} {text}",
                (
                    f"nvidia-smi -q -d PERFORMANCE: {name} Active",
                    f"SM clock {gpu.clocks.sm} of {gpu.max_clocks.sm} MHz, {gpu.temperature} C, "
                    f"{gpu.power.draw} of {gpu.power.limit} W",
                ),
                cause,
                (
                    shell("nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE"),
                    shell("check fans, filters and power supplies (BMC)"),
                ),
            )


@rule("speed.throttled_before", "D68", "D70", source="nvml choice", after=("speed.throttled",))
def throttled_before(seen: Examination) -> Iterator[Fault]:
    """Report GPUs that heat or the power supply has slowed down for at least `COUNTED_US` since the driver
    was loaded.
    """
    for each in seen.health:
        hardware = {
            "hw_therm_slowdown": "heat (hardware)",
            "hw_power_brake": "the power supply's brake",
        }
        found = [(text, each.throttled_us.get(name, 0)) for name, text in hardware.items()]
        bad = [f"{text} {us / 1e6:.0f} s" for text, us in found if us >= COUNTED_US]
        if bad:
            yield Fault(
                "risk",
                f"GPU {each.index} was slowed down since the driver was loaded: {listed(bad)}",
                ("nvidia-smi -q -d PERFORMANCE: clocks event reasons counters",),
                "under load it happens again",
                (shell("observe it under load: gpuprov doctor --load 30"),),
            )


@rule("speed.hot", "D69", "D82", source="aznhc fryer choice", after=("speed.throttled", "errors.readings"))
def hot(seen: Examination) -> Iterator[Fault]:
    """Report a GPU within `NEAR_SLOWDOWN_C` of the slowdown threshold, or at `IDLE_HOT_C` without load (below
    `BUSY_UTILIZATION`); and a fan that has an error, or does not turn at `IDLE_HOT_C`.
    """
    for each in seen.health:
        margin, idle = each.slowdown_margin, (each.utilization or 0) < BUSY_UTILIZATION
        if margin is not None and margin <= NEAR_SLOWDOWN_C:
            yield Fault(
                "degraded",
                f"GPU {each.index} is {max(margin, 0)} degrees below its slowdown ({each.temperature} C)",
                (f"nvidia-smi -q -d TEMPERATURE: {each.temperature} C, margin {margin} C",),
                "airflow, hot neighbouring GPUs, room temperature",
                (shell("check fans and filters; compare with the other GPUs of the node"),),
            )
        elif idle and (each.temperature or 0) >= IDLE_HOT_C:
            yield Fault(
                "risk",
                f"GPU {each.index} is {each.temperature} C warm and idle",
                (f"nvidia-smi -q: {each.temperature} C at {each.utilization} % utilisation",),
                "cooling is blocked, or a program runs that is not listed",
                (shell("check fans and filters"),),
            )
        fan = (each.fan or "").strip()
        if (fan == "0 %" and (each.temperature or 0) >= IDLE_HOT_C) or "ERR" in fan.upper():
            yield Fault(
                "broken",
                f"GPU {each.index}: its fan does not turn ({fan}) at {each.temperature} C",
                (f"nvidia-smi -q: Fan Speed {fan}",),
                "the fan is defective, or its cable is disconnected",
                (shell("have the fan or the card replaced"),),
            )


@rule("speed.power_limit", "D74", "D71", source="nvml choice")
def power_limit(seen: Examination) -> Iterator[Fault]:
    """Report a power limit below the board's default: degraded below `LIMIT_SHARE` of it, else a hint."""
    low = [
        (gpu, gpu.power.limit, gpu.power.default)
        for gpu in seen.gpus
        if gpu.power.limit and gpu.power.default and gpu.power.limit < gpu.power.default - 1
    ]
    for gpu, limit, default in low:
        yield Fault(
            "degraded" if limit < LIMIT_SHARE * default else "hint",
            f"GPU {gpu.index} may draw {limit:g} W of its default {default:g} W",
            (f"nvidia-smi -q -d POWER: current limit {limit:g} W, default {default:g} W",),
            "it was set: a policy, or a leftover of a former user",
            (shell("sudo nvidia-smi -i {} -pl {}   (if it is not intended)", gpu.index, f"{default:g}"),),
            f"settings.power_limit: {default:g}",
        )


@rule(
    "speed.fixed_clocks",
    "D72",
    "D73",
    source="nvml sichek choice",
    after=("speed.throttled", "speed.power_limit"),
)
def fixed_clocks(seen: Examination) -> Iterator[Fault]:
    """Report application clocks below the default (a hint from `CLOCK_SHARE` of it on), and GPUs in P0 with
    90 % utilisation whose clock is below `CLOCK_SHARE` of their maximum without a reason.
    """
    for gpu, health in zip(seen.gpus, seen.health, strict=False):
        set_to, default = gpu.application_clocks.graphics, gpu.default_application_clocks.graphics
        if set_to and default and set_to < default:
            yield Fault(
                "hint" if set_to >= CLOCK_SHARE * default else "degraded",
                f"GPU {gpu.index}: application clocks are set to {set_to} MHz, the default is {default} MHz",
                (f"nvidia-smi -q -d CLOCK: applications {set_to}, default {default} MHz",),
                "they were set by a user",
                (shell("sudo nvidia-smi -i {} -rac   (if it is not intended)", gpu.index),),
                "settings.clocks",
            )
        busy = (health.utilization or 0) >= 90 and health.performance_state == "P0"
        cool = not set(gpu.active_throttle_reasons) - {"gpu_idle", "none"}
        if (
            busy
            and cool
            and gpu.clocks.sm
            and gpu.max_clocks.sm
            and gpu.clocks.sm < CLOCK_SHARE * gpu.max_clocks.sm
        ):
            yield Fault(
                "degraded",
                f"GPU {gpu.index} works at {gpu.clocks.sm} of {gpu.max_clocks.sm} MHz, and gives no reason",
                (
                    f"nvidia-smi -q: SM {gpu.clocks.sm} MHz, {health.utilization} % utilisation, P0, no "
                    f"event reason",
                ),
                "clocks are locked (nvidia-smi -lgc)",
                (
                    shell("sudo nvidia-smi -i {} -rgc", gpu.index),
                    shell("sudo nvidia-smi -i {} -rmc", gpu.index),
                ),
                "settings.clocks",
            )


@rule("speed.pcie_width", "D75", source="oci-hc imbue", after=("bus.lost",))
def pcie_width(seen: Examination) -> Iterator[Fault]:
    """Report fewer PCIe lanes than both ends support; an idle link keeps its lanes."""
    linked = seen.pci_links if "pci_links" not in seen.missing else {}
    for each in seen.health:
        width, most = each.link.width, each.link.max_width
        own = (linked.get(each.pci_address or "") or (None,))[0]
        port = _port_above(linked, each.pci_address)
        if own is not None and own.width and own.max_width:
            width, most = own.width, own.max_width
        if port is not None and port.max_width:
            most = min(most or port.max_width, port.max_width)
        if width and most and width < most:
            yield Fault(
                "degraded",
                f"GPU {each.index}: PCIe runs with {width} of {most} lanes",
                (
                    f"nvidia-smi -q: link width {each.link.width}x, max {each.link.max_width}x",
                    *([f"sysfs {own.address}: x{own.width} of x{own.max_width}"] if own else []),
                    *([f"sysfs {port.address} above it: x{port.width} of x{port.max_width}"] if port else []),
                ),
                "lanes were lost in training: seating, riser, retimer, dirt in the slot; never an idle state",
                (shell("reseat the card or its riser; try another slot; BIOS: bifurcation of the slot"),),
            )


def _port_above(linked: object, address: str | None) -> Port | None:
    """Return the PCIe port above a GPU, or None if it is not known."""
    chain = linked.get(address) if isinstance(linked, dict) else None
    return chain[1] if chain and len(chain) > 1 else None


@rule("speed.pcie_generation", "D76", "D77", source="stas-debug imbue choice", after=("bus.lost",))
def pcie_generation(seen: Examination) -> Iterator[Fault]:
    """Report a lower PCIe generation than both ends support, for GPUs in P0 with `BUSY_UTILIZATION`: an idle
    link slows down.
    """
    for each in seen.health:
        link = each.link
        ends = [end for end in (link.device_generation, link.host_generation) if end]
        busy = each.performance_state == "P0" and (each.utilization or 0) >= BUSY_UTILIZATION
        if busy and link.generation and len(ends) == 2 and link.generation < min(ends):
            yield Fault(
                "degraded",
                f"GPU {each.index}: PCIe runs at generation {link.generation} of {min(ends)}, and the "
                f"GPU is busy",
                (
                    f"nvidia-smi -q: generation {link.generation}, device {ends[0]}, host {ends[1]}, "
                    f"{each.performance_state}, {each.utilization} % utilisation",
                ),
                "the link was trained down: BIOS setting, riser, retimer",
                (shell("BIOS: link speed of the slot on Auto or the highest; reseat the riser"),),
            )


@rule(
    "speed.pcie_path", "D77", source="stas-debug imbue", after=("speed.pcie_width", "speed.pcie_generation")
)
def pcie_path(seen: Examination) -> Iterator[Fault]:
    """Report a port on the path to the root with less than 90 % of the GPU's PCIe rate; nothing on virtual
    machines.
    """
    if seen.virtual:
        return
    for gpu in seen.pci_gpus:
        chain = seen.pci_links.get(gpu.address, ())
        if not chain or not chain[0].max_speed or not chain[0].max_width:
            continue
        own = chain[0].max_speed * chain[0].max_width
        slow = [port for port in chain[1:] if 0 < port.max_speed * port.max_width < 0.9 * own]
        if slow:
            worst = min(slow, key=lambda port: port.max_speed * port.max_width)
            yield Fault(
                "hint",
                f"GPU {gpu.address} ({chain[0].max_speed:g} GT/s x{chain[0].max_width}) sits behind a "
                f"slower port: "
                f"{worst.address}, {worst.max_speed:g} GT/s x{worst.max_width}",
                (f"/sys/bus/pci/devices/{worst.address}/max_link_speed: {worst.max_speed:g} GT/s",),
                "by the server's design, or the card is in the wrong slot",
                (shell("compare with the server's manual: which slots have the lanes"),),
            )


@rule("speed.pcie_errors", "D78", source="oci-npd returnn-1500", after=("bus.lost",))
def pcie_errors(seen: Examination) -> Iterator[Fault]:
    """Report corrected PCIe errors that increase now, and any fatal ones, of GPUs, switches and RDMA devices
    and the ports above them; of other times, those of the kernel log.
    """
    yield from _logged_pcie_errors(seen)
    ours = {port.address for chain in seen.pci_links.values() for port in chain}
    growing = [
        (name.split(" "), by)
        for name, by in seen.growth.items()
        if name.startswith("aer ") and "correctable" in name and name.split(" ")[1] in ours
    ]
    for (_, address, _, what), by in growing:
        if not what.startswith("TOTAL"):
            continue
        yield Fault(
            "degraded",
            f"PCIe device {address}: {by} corrected errors a second",
            (f"/sys/bus/pci/devices/{address}/aer_dev_correctable: grows by {by} a second",),
            "signal quality: seating, riser, retimer, dirt; each error costs a retransmission",
            (
                shell("reseat the card or its riser"),
                shell("sudo lspci -vvv -s {} | grep -E 'LnkSta|CESta'", address),
            ),
        )
    for name, count in seen.counters.items():
        words = name.split(" ")
        if words[0] == "aer" and words[2] == "fatal" and words[3].startswith("TOTAL") and words[1] in ours:
            yield Fault(
                "degraded",
                f"PCIe device {words[1]}: {count} fatal link errors since boot",
                (f"/sys/bus/pci/devices/{words[1]}/aer_dev_fatal: {count}",),
                "the link broke down and was reset",
                (shell("reseat the card or its riser; have it replaced if this recurs"),),
            )


_FATAL = re.compile(r"pcieport ([0-9a-f:.]{7,16}): .{0,40}severity=Uncorrected \(Fatal\)")


def _logged_pcie_errors(seen: Examination) -> Iterator[Fault]:
    """Yield one fault for PCIe errors in the log: of a GPU that could not recover, or fatal ones of a port
    above a GPU, else at least `MANY_CORRECTED` corrected ones; none without the log.
    """
    if "kernel_log" in seen.missing:
        return
    failed = seen.log_lines(
        r"nvidia [0-9a-f:.]{7,16}: AER: can't recover",
        r"pcieport .*PCIe Bus Error: severity=Uncorrect",
        r"pcieport .*AER: (?:Multiple )?Uncorrect",
        r"pcieport .*AER: device recovery failed",
    )
    corrected = seen.log_lines(r"(?:pcieport|nvidia) .*PCIe Bus Error: severity=Correct")
    above = {port.address for gpu in seen.pci_gpus for port in seen.pci_links.get(gpu.address, ())[1:]}
    fatal = {found[1] for line in failed if (found := _FATAL.match(line.text))}
    if fatal & above or any("nvidia " in line.text for line in failed):
        yield Fault(
            "degraded",
            "the PCIe link of a GPU failed, and the driver could not recover from it",
            tuple(line.dated(140) for line in failed[-3:]),
            "signal quality or power: seating, riser, cable of an external box; the driver has no way to "
            "take a GPU up again after such an error",
            (
                shell("reseat the card or its riser; check its power"),
                shell("reboot, as the GPU's state is unknown"),
            ),
            urgent=True,
        )
    elif len(corrected) >= MANY_CORRECTED:
        yield Fault(
            "risk",
            f"{len(corrected)} messages of corrected PCIe errors in the kernel log",
            tuple(line.dated(140) for line in corrected[-3:]),
            "signal quality: seating, riser, retimer, dirt; each error costs a retransmission",
            (shell("reseat the card or its riser"), shell("sudo lspci -vvv | grep -E 'LnkSta|CESta'")),
        )

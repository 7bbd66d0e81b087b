"""Rules for readings of a GPU that cannot be true, and for caps far below its power limit."""

from __future__ import annotations

from collections.abc import Iterator

from gpuprov.doctor.concerns.speed import BUSY_UTILIZATION
from gpuprov.doctor.examination import Examination
from gpuprov.doctor.fault import Fault, listed, rule
from gpuprov.probe.parse.gpu import Gpu
from gpuprov.probe.parse.health import Health
from gpuprov.untrusted import shell

HOTTEST_C = 120
"""Temperature in degrees C that no working GPU reports (our choice: boards switch themselves off below
110).
"""
POWER_SHARE = 2.5
"""Multiple of the power limit that no draw reaches (our choice: peaks of some milliseconds reach 1.7)."""
CLOCK_SHARE = 1.1
"""Multiple of the maximum clock that no clock exceeds (our choice: rounding is below one percent)."""
CAP_SHARE = 0.7
"""Share of the power limit below which a power cap is not the limit's own (our choice: a capped GPU draws
nine tenths of its limit or more).
"""
CAP_UTILIZATION = 90
"""Utilisation in percent from which a power cap is judged."""
TRANSIENT = ("power_draw", "average_power_draw", "instant_power_draw")
"""Fields that show an error for a moment on healthy GPUs (Azure/azhpc-diagnostics, issue 77)."""


@rule(
    "errors.readings",
    "D129",
    source="open-1193 azhpc-77 nvml",
    after=("bus.lost", "errors.xid", "driver.infoROM"),
)
def errors_as_readings(seen: Examination) -> Iterator[Fault]:
    """Report GPUs for which nvidia-smi prints errors in place of values, unless only of power draw. Broken
    for a lost GPU, else degraded.
    """
    for gpu in seen.gpus:
        fields = [text for text in gpu.problems if not text.startswith(TRANSIENT)]
        lost = any("GPU is lost" in text for text in fields)
        if fields:
            yield Fault(
                "broken" if lost else "degraded",
                f"GPU {gpu.index} is lost: nvidia-smi prints errors in place of {len(fields)} values"
                if lost
                else f"GPU {gpu.index}: nvidia-smi prints errors in place of values: {listed(fields, 3)}",
                tuple(f"nvidia-smi -q, GPU {gpu.index}: {text}" for text in fields[:4]),
                "the driver does not reach the GPU, its fans' or its power controller",
                (
                    shell("sudo dmesg | grep -iE 'NVRM|Xid' | tail"),
                    shell("drain the node, power it off for a minute, start it again"),
                    shell("if it stays: another version of the driver, then have the card replaced"),
                ),
            )


@rule("errors.impossible", "D130", source="nvml choice", after=("errors.readings", "bus.lost"))
def impossible(seen: Examination) -> Iterator[Fault]:
    """Report values of nvidia-smi that cannot be true: beyond a physical bound, or beyond their own
    maximum.
    """
    for gpu, health in zip(seen.gpus, seen.health, strict=False):
        wrong = list(_impossible(gpu, health))
        if wrong:
            yield Fault(
                "risk",
                f"GPU {gpu.index} reports values that cannot be true: {listed(wrong, 3)}",
                tuple(f"nvidia-smi -q, GPU {gpu.index}: {text}" for text in wrong[:4]),
                "a sensor, the board's firmware or the driver is at fault: what follows from these values "
                "cannot be trusted",
                (
                    shell("nvidia-smi -q -i {}   (again: a single reading may be wrong)", gpu.index),
                    shell("drain the node, then: sudo reboot; if it stays: another version of the driver"),
                ),
            )


def _impossible(gpu: Gpu, health: Health) -> Iterator[str]:
    """Yield the values of one GPU that cannot be true, each with its bound: temperature, power, memory,
    utilisation, clock.
    """
    degrees, power, used, total = gpu.temperature, gpu.power, gpu.memory_used_mib, gpu.memory_total_mib
    if degrees is not None and not 0 < degrees < HOTTEST_C:
        yield f"temperature {degrees} C"
    if power.draw is not None and power.limit and not 0 <= power.draw < POWER_SHARE * power.limit:
        yield f"power draw {power.draw:g} W with a limit of {power.limit:g} W"
    if used is not None and total and used > total:
        yield f"memory used {used} of {total} MiB"
    if total == 0:
        yield "memory of 0 MiB"
    if health.utilization is not None and not 0 <= health.utilization <= 100:
        yield f"utilisation {health.utilization} %"
    clock, most = gpu.clocks.sm, gpu.max_clocks.sm
    if clock and most and clock > CLOCK_SHARE * most:
        yield f"SM clock {clock} of {most} MHz"
    if (health.utilization or 0) >= BUSY_UTILIZATION and power.draw == 0:
        yield f"power draw 0 W at {health.utilization} % utilisation"


@rule(
    "speed.capped",
    "D131",
    source="idrac-3 openclip-703 choice",
    after=("speed.power_limit", "speed.throttled", "errors.impossible"),
)
def capped_far_below(seen: Examination) -> Iterator[Fault]:
    """Report GPUs that are busy (`CAP_UTILIZATION`) and have a power cap although they draw less than
    `CAP_SHARE` of their limit, and GPUs whose enforced limit is below that share of the requested one.
    """
    for gpu, health in zip(seen.gpus, seen.health, strict=False):
        draw, limit, requested = gpu.power.draw, gpu.power.limit, gpu.power.requested
        busy = (health.utilization or 0) >= CAP_UTILIZATION
        if (
            busy
            and "sw_power_cap" in gpu.active_throttle_reasons
            and draw
            and limit
            and draw < CAP_SHARE * limit
        ):
            yield Fault(
                "degraded",
                f"GPU {gpu.index} is capped at {draw:g} W, far below its limit of {limit:g} W",
                (
                    f"nvidia-smi -q -d PERFORMANCE: SW Power Cap Active at {health.utilization} % "
                    f"utilisation",
                    f"nvidia-smi -q -d POWER: draw {draw:g} W, limit {limit:g} W",
                ),
                "another limit than the board's own: of one of its supply rails, of a missing power cable, "
                "or of the server's controller (BMC), which lowers the cap of cards that it does not know "
                "or cannot supply",
                (
                    shell("check the power cables of the card, and that all power supplies work"),
                    shell(
                        "BMC: power cap policy, thermal tables and profiles for this card; update its "
                        "firmware"
                    ),
                    shell("compare with the other GPUs: nvidia-smi -q -d POWER,PERFORMANCE"),
                ),
            )
        elif limit and requested and limit < CAP_SHARE * requested:
            yield Fault(
                "degraded",
                f"GPU {gpu.index} may draw {limit:g} W, and {requested:g} W were requested",
                (f"nvidia-smi -q -d POWER: current limit {limit:g} W, requested {requested:g} W",),
                "the board or the server's controller (BMC) enforces a lower limit: power brake, cables, "
                "supplies",
                (
                    shell("check the power cables of the card, and that all power supplies work"),
                    shell("nvidia-smi -q -d POWER; BMC: power cap policy"),
                ),
            )

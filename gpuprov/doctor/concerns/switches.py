"""Rules for services of NVLink switches on machines without any."""

from __future__ import annotations

from collections.abc import Iterator

from gpuprov.doctor.concerns.fabric import UNIT, has_switches, waits_for_fabric
from gpuprov.doctor.examination import Examination
from gpuprov.doctor.fault import Fault, rule
from gpuprov.untrusted import shell


@rule(
    "fabric.no_switch", "D132", source="op-356 op-610 cube-29", after=("driver.not_loaded", "driver.mismatch")
)
def manager_without_switch(seen: Examination) -> Iterator[Fault]:
    """Report a fabric manager that failed, or starts at boot, on a machine without NVSwitches whose GPUs
    take part in no fabric: it is not needed there, and cannot start.
    """
    if seen.in_container:
        return
    unit = seen.units.get(UNIT)
    if unit is None or not unit.exists or unit.active or not seen.has_gpus:
        return
    if has_switches(seen) or seen.smi.error or waits_for_fabric(seen):
        return
    if any((gpu.fabric_state or "N/A") not in ("N/A", "Not Supported") for gpu in seen.gpus):
        return
    failed = unit.active_state in ("failed", "activating")
    if failed or unit.enabled:
        yield Fault(
            "risk" if failed else "hint",
            "the fabric manager is installed on a machine without NVSwitches"
            + (": it fails at every start" if failed else ""),
            (
                f"{UNIT}: {unit.file_state or unit.load_state}, {unit.active_state}",
                "PCI: no NVSwitch (10de, class 0680)",
                "nvidia-smi -q: fabric N/A",
            ),
            "it answers NV_WARN_NOTHING_TO_DO; NVLink bridges and PCIe need none, and nothing else waits "
            "for it",
            (
                shell("sudo systemctl disable --now nvidia-fabricmanager"),
                shell("sudo systemctl reset-failed {}", UNIT),
            ),
            "hardware.nvswitches: 0 (the role fabric_manager then installs none)",
        )

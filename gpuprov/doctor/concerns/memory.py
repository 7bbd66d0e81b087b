"""Rules for memory errors that ECC has counted, and for the GPU's repairs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuprov.doctor.examination import Examination
from gpuprov.doctor.fault import Fault, rule
from gpuprov.untrusted import shell

DATA_CENTRE = re.compile(r"\b(?:[AHB]\d{1,3}X?|L\d{1,2}S?|V100|T4|P\d{2,3}|GH200|GB\d00|Tesla)\b")
"""Boards with ECC on by default; workstation boards have it off."""
SRAM_LIMIT = 4
"""Number of SRAM errors over all banks to report. NVIDIA's threshold is more than 4 (parity) or 2 (SEC-DED)
errors in one bank of addresses, which a flag of the driver reports.
"""
ROWS_LIMIT = 512
"""Maximum number of rows that can be remapped for uncorrectable errors (NVIDIA)."""
CORRECTED_MANY = 1_000_000
"""Number of corrected errors that is suspect (our choice: other GPUs of a fleet report none, or a few)."""
PAGES_LIMIT, PAGES_NEAR = 64, 60
"""Maximum number of pages that can be retired (NVIDIA), and the number from which clouds call a GPU worn."""


@rule(
    "errors.ecc_now",
    "D61",
    source="stas-debug oci-hc",
    after=("errors.recovery", "errors.xid"),
    health={"broken": "reset"},
)
def uncorrectable_now(seen: Examination) -> Iterator[Fault]:
    """Report uncorrectable memory errors since the driver was loaded. Broken for caches, or if the memory
    waits for its repair; else degraded.
    """
    for each in seen.health:
        dram, sram = each.volatile.uncorrectable_dram or 0, each.volatile.uncorrectable_sram or 0
        if dram + sram:
            pending = each.repairs.pending or each.repairs.retirement_pending
            yield Fault(
                "broken" if sram or pending is None or pending else "degraded",
                f"GPU {each.index}: {dram + sram} uncorrectable ECC errors since the driver was loaded",
                (f"nvidia-smi -q -d ECC: volatile, DRAM {dram}, SRAM {sram}",),
                "programs that used that memory were ended (CUDA 214); earlier results are valid",
                (
                    shell("stop the programs, then: sudo nvidia-smi --gpu-reset -i {}", each.index),
                    shell("or: sudo reboot"),
                ),
            )


@rule("errors.ecc_ever", "D63", source="nv-mem sichek stas-debug", health={"degraded": "isolate"})
def worn(seen: Examination) -> Iterator[Fault]:
    """Report more uncorrectable errors of the caches over the GPU's life than `SRAM_LIMIT` or the driver's
    threshold. Degraded above the threshold, else a risk.
    """
    for each in seen.health:
        sram = each.aggregate.uncorrectable_sram or 0
        if each.sram_threshold_exceeded or sram > SRAM_LIMIT:
            yield Fault(
                "degraded" if each.sram_threshold_exceeded else "risk",
                f"GPU {each.index}: {sram} uncorrectable SRAM errors over its life"
                + (": past the vendor's threshold" if each.sram_threshold_exceeded else ""),
                (f"nvidia-smi -q -d ECC: aggregate, SRAM uncorrectable {sram}",),
                "caches cannot be repaired as memory rows are",
                (shell("have the GPU replaced; sudo nvidia-bug-report.sh for the vendor"),)
                if each.sram_threshold_exceeded
                else (shell("watch it; NVIDIA's field diagnostic decides about a replacement"),),
            )


@rule(
    "errors.correctable", "D133", source="dcgm-313 choice", after=("errors.ecc_now", "errors.repair_failed")
)
def many_corrected(seen: Examination) -> Iterator[Fault]:
    """Report `CORRECTED_MANY` or more memory errors that ECC has corrected since the driver was loaded."""
    for each in seen.health:
        corrected = each.volatile.correctable or 0
        if corrected >= CORRECTED_MANY:
            yield Fault(
                "risk",
                f"GPU {each.index}: ECC has corrected {corrected} memory errors since the driver was loaded",
                (
                    f"nvidia-smi -q -d ECC: volatile, correctable {corrected}",
                    f"nvidia-smi -q -d ROW_REMAPPER: correctable {each.repairs.correctable or 0}",
                ),
                "results are right, but the memory wears out, and monitoring may block while the driver "
                "handles "
                "the errors",
                (
                    shell("when it is idle: sudo nvidia-smi --gpu-reset -i {}", each.index),
                    shell("if they come back: dcgmi diag -r 3 -i {}, and have the GPU replaced", each.index),
                ),
            )


@rule(
    "errors.repair_pending",
    "D64",
    source="oci-hc sichek",
    after=("errors.recovery",),
    health={"degraded": "reset"},
)
def repair_pending(seen: Examination) -> Iterator[Fault]:
    """Report a repair that needs a reset."""
    for each in seen.health:
        what = [
            name
            for name, waits in (
                ("a row remap", each.repairs.pending),
                ("a page's retirement", each.repairs.retirement_pending),
                ("a channel or TPC repair", each.repairs.repair_pending),
            )
            if waits
        ]
        if what:
            yield Fault(
                "degraded",
                f"GPU {each.index}: {' and '.join(what)} is pending",
                ("nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT,ECC: Pending Yes",),
                "bad memory was found and stays in use until the GPU is reset",
                (
                    shell("when it is idle: sudo nvidia-smi --gpu-reset -i {}", each.index),
                    shell("or: sudo reboot"),
                ),
            )


@rule("errors.repair_failed", "D65", source="nv-mem oci-hc aznhc")
def repair_failed(seen: Examination) -> Iterator[Fault]:
    """Report memory that cannot be repaired, also by more than `ROWS_LIMIT` remapped rows (broken), or banks
    without spare rows (risk).
    """
    for each in seen.health:
        rows = each.repairs.uncorrectable or 0
        if each.repairs.failed or each.repairs.unrepairable or rows > ROWS_LIMIT:
            yield Fault(
                "broken",
                f"GPU {each.index}: memory can no longer be repaired ({rows} rows remapped)",
                (
                    f"nvidia-smi -q -d ROW_REMAPPER: failure {'Yes' if each.repairs.failed else 'No'}, "
                    f"uncorrectable {rows}",
                    *(["nvidia-smi -q -d ECC: unrepairable memory Yes"] if each.repairs.unrepairable else []),
                ),
                "no spare rows are left in a bank",
                (
                    shell(
                        "take the GPU out of use and have it replaced; sudo "
                        "nvidia-bug-report.sh for the vendor"
                    ),
                ),
                urgent=True,
            )
        elif each.repairs.banks_without_spare:
            yield Fault(
                "risk",
                f"GPU {each.index}: {each.repairs.banks_without_spare} memory banks have no spare row left",
                ("nvidia-smi -q -d ROW_REMAPPER: bank remap availability, none",),
                "the next bad row in such a bank cannot be remapped",
                (shell("plan a replacement"),),
            )


@rule("errors.retired", "D66", source="nv-mem aws-hc aznhc")
def retired_pages(seen: Examination) -> Iterator[Fault]:
    """Report retired pages of GPUs before Ampere, which can retire at most 64: any for double-bit errors (a
    risk), or at least `PAGES_NEAR` (degraded).
    """
    for each in seen.health:
        single, double = each.repairs.retired_single or 0, each.repairs.retired_double or 0
        if single + double >= PAGES_NEAR or double:
            near = single + double >= PAGES_NEAR
            yield Fault(
                "degraded" if near else "risk",
                f"GPU {each.index}: {single + double} memory pages are retired, {double} for double-bit "
                f"errors",
                (f"nvidia-smi -q -d PAGE_RETIREMENT: single {single}, double {double}",),
                f"a GPU can retire {PAGES_LIMIT} pages",
                (shell("plan a replacement"),) if near else (shell("watch it"),),
            )


@rule("errors.ecc_off", "D67", source="imbue")
def ecc_off(seen: Examination) -> Iterator[Fault]:
    """Report ECC off on a data-centre GPU, or a change of it that needs a reset."""
    for gpu in seen.gpus:
        if gpu.ecc.pending is not None and gpu.ecc.current != gpu.ecc.pending:
            yield Fault(
                "risk",
                f"GPU {gpu.index}: ECC is {_on(gpu.ecc.current)} and will be {_on(gpu.ecc.pending)} "
                f"after a reset",
                ("nvidia-smi -q -d ECC: Current and Pending differ",),
                "it was changed by a user; memory size and error counts change with it",
                (
                    *(
                        [shell("sudo nvidia-smi -i {} -e 1   (if it is not intended)", gpu.index)]
                        if not gpu.ecc.pending
                        else []
                    ),
                    shell(
                        "if it is intended, when idle: sudo nvidia-smi --gpu-reset -i {}, or a reboot",
                        gpu.index,
                    ),
                ),
                f"settings.ecc: {str(bool(gpu.ecc.pending)).lower()}",
            )
        elif gpu.ecc.current is False and DATA_CENTRE.search(gpu.name or ""):
            yield Fault(
                "risk",
                f"GPU {gpu.index}: ECC is off",
                ("nvidia-smi -q -d ECC: Current Disabled",),
                "defective memory gives wrong results without an error",
                (shell("sudo nvidia-smi -i {} -e 1", gpu.index), shell("sudo reboot")),
                "settings.ecc: true",
            )


def _on(mode: bool | None) -> str:
    """Return `on` or `off`; None counts as off."""
    return "on" if mode else "off"

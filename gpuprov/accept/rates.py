"""The rates in a node's document, each with the peak and the floor that it is held against."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuprov.accept.floors import of_site
from gpuprov.accept.reference import RULE_OF_ALL_REDUCE, Floor, Reference, pcie_rate, reference, rules
from gpuprov.finding import Level

COMPARED_MIB = 1024
"""Size of the collectives that are judged."""


@dataclass(frozen=True)
class Measure:
    """One kind of rate.

    Args:
        place: where it stands in a GPU's part of the document.
        unit: of the value, the peak and the floor.
        peak: field of the published peaks.
        names: of the published gates and figures, the first that is known counts.
        key: of the figure there.
    """

    place: tuple[str, str]
    unit: str
    peak: str
    names: tuple[str, ...] = ()
    key: str = "value"


OF_GPU = {
    "memory_read": Measure(("memory", "read"), "GB/s", "memory_bandwidth_gb_s", ("memory_bandwidth_gb_s",)),
    "memory_copy": Measure(("memory", "driver_copy"), "GB/s", "memory_bandwidth_gb_s", ("d2d_copy_gb_s",)),
    "h2d": Measure(("host", "h2d_near"), "GB/s", "pcie", ("h2d_gb_s",)),
    "d2h": Measure(("host", "d2h_near"), "GB/s", "pcie", ("d2h_gb_s",)),
    "h2d_far": Measure(("host", "h2d_far"), "GB/s", "pcie"),
    "d2h_far": Measure(("host", "d2h_far"), "GB/s", "pcie"),
    "bf16": Measure(("matrix", "bf16"), "TFLOP/s", "fp16_bf16_dense_tflops", ("gemm_bf16_tflops",)),
    "bf16_burst": Measure(("matrix", "bf16"), "TFLOP/s", "fp16_bf16_dense_tflops", key="burst"),
    "fp16": Measure(
        ("matrix", "fp16"), "TFLOP/s", "fp16_bf16_dense_tflops", ("gemm_fp16_tflops", "gemm_bf16_tflops")
    ),
    "tf32": Measure(("matrix", "tf32"), "TFLOP/s", "tf32_dense_tflops", ("gemm_tf32_tflops",)),
    "fp8": Measure(("matrix", "fp8"), "TFLOP/s", "fp8_dense_tflops", ("gemm_fp8_tflops",)),
    "fp8_burst": Measure(("matrix", "fp8"), "TFLOP/s", "fp8_dense_tflops", key="burst"),
    "fp64": Measure(("matrix", "fp64"), "TFLOP/s", "fp64_tensor_tflops", ("gemm_fp64_tflops",)),
}
BY_LINK = {*(name for name, measure in OF_GPU.items() if measure.peak == "pcie"), "nvme_read", "nic"}
"""Measurements whose peak is what the PCIe link that is in use carries."""
COLLECTIVES = {"all_reduce": "allreduce", "all_gather": "allgather", "all_to_all": "alltoall"}


@dataclass(frozen=True)
class Rate:
    """One measured rate, and what it is held against.

    Args:
        gpu: `0`, `0>1` for a pair, `all` for a collective; a drive or port has its own name.
        peak: the vendor's, in the same unit; None where it is not known.
        floor: None where no threshold is known.
    """

    gpu: str
    measure: str
    value: float
    unit: str
    peak: float | None = None
    floor: Floor | None = None

    @property
    def share(self) -> float | None:
        """Of the peak."""
        return self.value / self.peak if self.peak else None

    @property
    def level(self) -> Level:
        """Against the floor alone."""
        if self.floor is None or self.value >= self.floor.warn:
            return "ok"
        return "bad" if self.value < self.floor.bad else "warn"

    @property
    def where(self) -> str:
        """`GPU 0 bf16`."""
        return self.measure if self.gpu == "all" else f"{part_name(self.gpu)} {self.measure}"

    @property
    def told(self) -> str:
        """`GPU 0 bf16: 688.0 TFLOP/s`."""
        return f"{self.where}: {self.value:.1f} {self.unit}"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "gpu": self.gpu,
            "measure": self.measure,
            "value": self.value,
            "unit": self.unit,
            "peak": self.peak,
            "share": None if self.share is None else round(self.share, 4),
            "floor": None if self.floor is None else self.floor.as_dict(),
            "level": self.level,
        }


def part_name(gpu: str) -> str:
    """`GPU 0`, `GPU 0>1`, or the name of a drive or port as it is."""
    return f"GPU {gpu}" if gpu[:1].isdigit() else gpu


def number(value: object) -> float | None:
    """A figure of a node's word; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def part(document: object, *names: str) -> Mapping[str, Any]:
    """A mapping inside a node's document; an empty one where there is none."""
    for name in names:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document if isinstance(document, Mapping) else {}


def rows(document: object, *names: str) -> list[Mapping[str, Any]]:
    """The mappings of a list inside a node's document."""
    told = part(document, *names[:-1]).get(names[-1])
    return [row for row in told if isinstance(row, Mapping)] if isinstance(told, list) else []


def rates(document: Mapping[str, Any], site: Mapping[str, float]) -> Iterator[Rate]:
    """All rates that a node measured.

    Args:
        site: measure → the site's own floor.
    """
    for gpu in rows(document, "gpus"):
        yield from _of_gpu(gpu, document, site)
    yield from _pairs(document, site)
    yield from _collectives(document, site)
    yield from _host_devices(document, site)


def model(document: Mapping[str, Any], index: int = 0) -> Reference:
    """What is published of one of a node's GPUs."""
    names = [
        str(part(row, "device").get("name", ""))
        for row in rows(document, "gpus")
        if row.get("index") == index
    ]
    return reference(names[0] if names else "")


def _of_gpu(gpu: Mapping[str, Any], document: Mapping[str, Any], site: Mapping[str, float]) -> Iterator[Rate]:
    index = int(number(gpu.get("index")) or 0)
    known = model(document, index)
    for name, measure in OF_GPU.items():
        value = number(part(gpu, *measure.place).get(measure.key))
        if value is None:
            continue
        peak = _link(document, index, known) if measure.peak == "pcie" else known.peak.get(measure.peak)
        floor = of_site(site, name) or known.floor(measure.names)
        yield Rate(str(index), name, value, measure.unit, peak, floor)


def _link(document: Mapping[str, Any], index: int, known: Reference) -> float | None:
    """GB/s of the PCIe link that is in use, else of the GPU's own."""
    for row in rows(document, "after", "gpus") or rows(document, "before", "gpus"):
        if row.get("index") == index:
            rate = pcie_rate(number(row.get("generation")), number(row.get("width")))
            return rate or known.peak.get("pcie_gb_s_per_direction")
    return known.peak.get("pcie_gb_s_per_direction")


def links_up(document: Mapping[str, Any]) -> int:
    """NVLinks that are up on every GPU, at least."""
    ups = [number(part(row, "nvlinks").get("up")) or 0 for row in rows(document, "before", "counters")]
    return int(min(ups, default=0))


def _pairs(document: Mapping[str, Any], site: Mapping[str, float]) -> Iterator[Rate]:
    known, linked = model(document), links_up(document) > 0
    peak = known.peak.get("nvlink_gb_s_per_direction") if linked else None
    for row in rows(document, "between", "pairs"):
        if (value := number(row.get("value"))) is not None:
            floor = of_site(site, "peer") or (known.floor(("p2p_gb_s",)) if linked else None)
            yield Rate(f"{row.get('from')}>{row.get('to')}", "peer", value, "GB/s", peak, floor)


def _collectives(document: Mapping[str, Any], site: Mapping[str, float]) -> Iterator[Rate]:
    known, linked = model(document), links_up(document) > 0
    ranks = int(number(part(document, "between", "nccl").get("ranks")) or 0)
    peak = known.peak.get("nvlink_gb_s_per_direction") if linked else None
    for size in rows(document, "between", "nccl", "sizes"):
        for name, stem in COLLECTIVES.items():
            told = part(size, name)
            value, mib = number(told.get("value")), round((number(told.get("bytes")) or 0) / 2**20)
            if value is None or mib != COMPARED_MIB:
                continue
            floor = of_site(site, name)
            if floor is None and linked:
                floor = known.floor((f"{stem}_busbw_{ranks}gpu_gb_s",))
            if floor is None and name == "all_reduce":
                floor = _any_all_reduce(linked)
            yield Rate("all", name, value, "GB/s", peak, floor)


def _host_devices(document: Mapping[str, Any], site: Mapping[str, float]) -> Iterator[Rate]:
    """Drives and ports, each against the PCIe link behind it."""
    for drive in rows(document, "host_devices", "drives"):
        if (value := number(part(drive, "read").get("value"))) is not None:
            peak = pcie_rate(number(drive.get("generation")), number(drive.get("width")))
            yield Rate(str(drive.get("name")), "nvme_read", value, "GB/s", peak, of_site(site, "nvme_read"))
    for port in rows(document, "host_devices", "ports"):
        if (value := number(port.get("gbits"))) is not None:
            link = pcie_rate(number(port.get("generation")), number(port.get("width")))
            floor = of_site(site, "nic")
            yield Rate(str(port.get("name")), "nic", value, "Gb/s", link and 8 * link, floor)


def _any_all_reduce(linked: bool) -> Floor:
    """The gate that is published for any node: one over NVLink, one over PCIe."""
    ordered = sorted(rules(RULE_OF_ALL_REDUCE), key=lambda row: float(row["min"]))
    row = ordered[-1 if linked else 0]
    return Floor(row["min"], row["min"], f"{row['who']}'s {row['min']:g}", str(row["note"]))

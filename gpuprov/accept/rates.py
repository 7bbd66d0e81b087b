"""The rates in a node's document, each with its peak and its floor."""

from __future__ import annotations

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
        place: keys of the rate in a GPU's part of the document.
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
"""Measurements whose peak is the rate of the PCIe link in use."""
GPUS = 64
"""Maximum number of GPUs in a node's document: rates look each of them up among all."""
DEVICES = 256
"""Maximum number of drives, of ports and of sizes of collectives in a node's document."""
_LISTS: dict[tuple[str, ...], tuple[str, int]] = {
    ("gpus",): ("GPUs", GPUS),
    ("before", "gpus"): ("GPUs", GPUS),
    ("before", "counters"): ("GPUs", GPUS),
    ("after", "gpus"): ("GPUs", GPUS),
    ("after", "counters"): ("GPUs", GPUS),
    ("host_devices", "drives"): ("drives", DEVICES),
    ("host_devices", "ports"): ("ports", DEVICES),
    ("between", "nccl", "sizes"): ("sizes of collectives", DEVICES),
}
"""Keys of a list in a node's document → its rows and their maximum number."""
COLLECTIVES = {"all_reduce": "allreduce", "all_gather": "allgather", "all_to_all": "alltoall"}
LARGEST = 1e15
"""Largest value of a measurement: larger ones become infinite in medians and scales of plots, and those above
2**64 are no numbers in the stored results (`with_json_numbers`).
"""


@dataclass(frozen=True)
class Rate:
    """One measured rate, with its peak and its floor.

    Args:
        gpu: `0`, `0>1` for a pair, `all` for a collective, or the name of a drive or port.
        peak: the vendor's, in the same unit; None if unknown.
        floor: None if no threshold is known.
    """

    gpu: str
    measure: str
    value: float
    unit: str
    peak: float | None = None
    floor: Floor | None = None

    @property
    def share(self) -> float | None:
        """Return the rate as a share of the peak; None if the peak is unknown."""
        return self.value / self.peak if self.peak else None

    @property
    def level(self) -> Level:
        """Return the level compared with the floor: `bad` or `warn` below its limits, else `ok`; `ok` without
        a floor.
        """
        if self.floor is None or self.value >= self.floor.warn:
            return "ok"
        return "bad" if self.value < self.floor.bad else "warn"

    @property
    def where(self) -> str:
        """Return the subject of the rate: `GPU 0 bf16`."""
        return self.measure if self.gpu == "all" else f"{part_name(self.gpu)} {self.measure}"

    @property
    def text(self) -> str:
        """Return the rate as text: `GPU 0 bf16: 688.0 TFLOP/s`."""
        return f"{self.where}: {self.value:.1f} {self.unit}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; the share is rounded to four digits."""
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
    """Return `GPU 0` or `GPU 0>1`, or the name of a drive or port unchanged."""
    return f"GPU {gpu}" if gpu[:1].isdecimal() else gpu


def number(value: object) -> float | None:
    """Return the value as a float, or None if it is not a number from -`LARGEST` to `LARGEST`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:  # an integer of more than 308 digits
        return None
    return found if abs(found) <= LARGEST else None


def part(document: object, *names: str) -> Mapping[str, Any]:
    """Return a mapping inside a node's document; an empty one if it is missing or no mapping."""
    for name in names:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document if isinstance(document, Mapping) else {}


def rows(document: object, *names: str) -> list[Mapping[str, Any]]:
    """Return the mappings of a list inside a node's document; an empty list if it is missing. Other items are
    left out.
    """
    result = part(document, *names[:-1]).get(names[-1])
    return [row for row in result if isinstance(row, Mapping)] if isinstance(result, list) else []


def too_many(document: object) -> tuple[str, int] | None:
    """Return the rows of a list that is longer than permitted, and their maximum number; None if all lists of
    a node's document are short enough.
    """
    return next((kind for names, kind in _LISTS.items() if len(rows(document, *names)) > kind[1]), None)


def rates(document: Mapping[str, Any], site: Mapping[str, float]) -> Iterator[Rate]:
    """Yield all rates in a node's document: of GPUs, pairs of GPUs, collectives, drives and ports; values
    that are missing are skipped.

    Args:
        site: measurement → the site's own floor.
    """
    for gpu in rows(document, "gpus"):
        yield from _of_gpu(gpu, document, site)
    yield from _pairs(document, site)
    yield from _collectives(document, site)
    yield from _host_devices(document, site)


def model(document: Mapping[str, Any], index: int = 0) -> Reference:
    """Return the published values of the GPU with this index; empty ones for an unknown model."""
    names = [
        str(part(row, "device").get("name", ""))
        for row in rows(document, "gpus")
        if row.get("index") == index
    ]
    return reference(names[0] if names else "")


def _of_gpu(gpu: Mapping[str, Any], document: Mapping[str, Any], site: Mapping[str, float]) -> Iterator[Rate]:
    """Yield the rates of one GPU with peaks and floors; the site's floor replaces a published one."""
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
    """Return the rate in GB/s per direction of the PCIe link in use, else of the GPU's own link; None if
    neither is known.
    """
    for row in rows(document, "after", "gpus") or rows(document, "before", "gpus"):
        if row.get("index") == index:
            rate = pcie_rate(number(row.get("generation")), number(row.get("width")))
            return rate or known.peak.get("pcie_gb_s_per_direction")
    return known.peak.get("pcie_gb_s_per_direction")


def links_up(document: Mapping[str, Any]) -> int:
    """Return the least number of active NVLinks of any GPU; 0 if it is unknown."""
    ups = [number(part(row, "nvlinks").get("up")) or 0 for row in rows(document, "before", "counters")]
    return int(min(ups, default=0))


def _pairs(document: Mapping[str, Any], site: Mapping[str, float]) -> Iterator[Rate]:
    """Yield the rates of copies between two GPUs; without NVLink they have no peak, and only the site's
    floor.
    """
    known, linked = model(document), links_up(document) > 0
    peak = known.peak.get("nvlink_gb_s_per_direction") if linked else None
    for row in rows(document, "between", "pairs"):
        if (value := number(row.get("value"))) is not None:
            floor = of_site(site, "peer") or (known.floor(("p2p_gb_s",)) if linked else None)
            yield Rate(f"{row.get('from')}>{row.get('to')}", "peer", value, "GB/s", peak, floor)


def _collectives(document: Mapping[str, Any], site: Mapping[str, float]) -> Iterator[Rate]:
    """Yield the bus bandwidths of the collectives at `COMPARED_MIB`; the floor is the site's, else the
    published one for NVLink and that number of GPUs, else (all-reduce only) the one for any node.
    """
    known, linked = model(document), links_up(document) > 0
    ranks = int(number(part(document, "between", "nccl").get("ranks")) or 0)
    peak = known.peak.get("nvlink_gb_s_per_direction") if linked else None
    for size in rows(document, "between", "nccl", "sizes"):
        for name, stem in COLLECTIVES.items():
            result = part(size, name)
            value, mib = number(result.get("value")), round((number(result.get("bytes")) or 0) / 2**20)
            if value is None or mib != COMPARED_MIB:
                continue
            floor = of_site(site, name)
            if floor is None and linked:
                floor = known.floor((f"{stem}_busbw_{ranks}gpu_gb_s",))
            if floor is None and name == "all_reduce":
                floor = _any_all_reduce(linked)
            yield Rate("all", name, value, "GB/s", peak, floor)


def _host_devices(document: Mapping[str, Any], site: Mapping[str, float]) -> Iterator[Rate]:
    """Yield the rates of drives (GB/s) and ports (Gb/s), each with the rate of its PCIe link as its peak and
    only the site's floor.
    """
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
    """Return the floor of an all-reduce published for any node: the highest gate with NVLink, the lowest
    without.
    """
    ordered = sorted(rules(RULE_OF_ALL_REDUCE), key=lambda row: float(row["min"]))
    row = ordered[-1 if linked else 0]
    return Floor(row["min"], row["min"], f"{row['who']}'s {row['min']:g}", str(row["note"]))

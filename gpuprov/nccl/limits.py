"""Speed limits of a machine's links, as its driver reports them."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

# Bytes a second and lane in one direction after line coding, by PCIe generation. Source: PCI-SIG's base
# specifications (2.5 and 5 GT/s with 8b/10b, 8 to 32 GT/s with 128b/130b, 64 GT/s with 242B/256B flits).
_PCIE_LANE = {1: 250e6, 2: 500e6, 3: 984.6e6, 4: 1969.2e6, 5: 3938.5e6, 6: 7563e6}

_GPU = re.compile(r"GPU (\d{1,18}):")
_LINK = re.compile(r"Link (\d{1,18}):\s*(\d{1,9}(?:\.\d{1,9})?) GB/s")


@dataclass(frozen=True)
class Limit:
    """The highest rate of a GPU in one direction in GB/s, and the path."""

    gbs: float
    path: str


def nvlink_limit(text: str) -> Limit | None:
    """Parse `nvidia-smi nvlink -s`: return the limit of the slowest GPU; None if a GPU has no active link."""
    speeds: dict[int, list[float]] = defaultdict(list)
    gpu = -1
    for line in text.splitlines():
        if found := _GPU.match(line.strip()):
            gpu = int(found[1])
            speeds[gpu] = []
        elif found := _LINK.search(line):
            speeds[gpu].append(float(found[2]))
    if not speeds or not all(speeds.values()):
        return None
    least = min(speeds.values(), key=sum)
    return Limit(round(sum(least), 3), f"NVLink, {len(least)} links of {least[0]:g} GB/s")


def pcie_limit(text: str) -> Limit | None:
    """Parse `--query-gpu=pcie.link.gen.max,pcie.link.width.max`: return the limit of the slowest GPU; None
    without a known link.
    """
    rows = [
        re.fullmatch(r"\s*(\d{1,18})\s*,\s*(\d{1,18})\s*", line) for line in text.splitlines() if line.strip()
    ]
    links = [(int(row[1]), int(row[2])) for row in rows if row and int(row[1]) in _PCIE_LANE]
    if not links:
        return None
    generation, width = min(links, key=lambda link: _PCIE_LANE[link[0]] * link[1])
    gbs = _PCIE_LANE[generation] * width / 1e9
    return Limit(round(gbs, 3), f"PCIe generation {generation}, {width} lanes")

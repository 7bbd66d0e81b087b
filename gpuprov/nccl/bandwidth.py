"""Bus bandwidth: parser of reported values, formula, and estimate for a model.

Bus bandwidth makes all-reduces of any number of ranks comparable with the speed of a link: each rank has
to send and receive 2(n-1)/n bytes for each byte of the buffer (a reduce-scatter and an all-gather), so
busbw = size / time * 2(n-1)/n. Source: nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

_TYPES = r"(?:u?int(?:8|32|64)|half|float|double|bfloat16|f8e[45]m[23]|fp8\w*)"
_FIGURES = r"([\d.]{1,32})\s+([\d.]{1,32})\s+([\d.]{1,32})\s+(\S+)"
_NCCL_TESTS_ROW = re.compile(
    rf"(?<![\d.])(\d{{1,18}})\s+\d{{1,18}}\s+{_TYPES}\s+\w+\s+(?:-?\d{{1,18}}\s+)?{_FIGURES}(?:\s+{_FIGURES})?\s*\Z"
)
_AVERAGE = re.compile(r"# Avg bus bandwidth\s*:\s*([\d.]{1,32})")
_OUT_OF_BOUNDS = re.compile(r"# Out of bounds values\s*:\s*(\d{1,18})\b")
_DECIMAL = r"(\d{1,18}(?:\.\d{1,18})?)"
_PLAIN_ROW = re.compile(rf"allreduce_mb {_DECIMAL} ms {_DECIMAL} busbw_GBs {_DECIMAL}")
_COUNT = re.compile(r"\d{1,18}")
_MIB = 1024 * 1024
SIZES = 4096
"""Maximum number of sizes of a log; further ones are ignored."""


def bus_bandwidth(size: float, seconds: float, ranks: int) -> float:
    """Return the bus bandwidth of an all-reduce in bytes a second.

    Args:
        size: bytes of the buffer on each rank.
        seconds: time of one all-reduce, above 0.
        ranks: number of ranks, at least 1.
    """
    return size / seconds * 2 * (ranks - 1) / ranks


def gradient_seconds(parameters: float, bandwidth: float) -> float:
    """Return the rule of thumb for an all-reduce of 4-byte gradients: their bytes / bandwidth, in seconds.

    The factor 2(n-1)/n of a ring is not included.

    Args:
        bandwidth: bytes a second.
    """
    return parameters * 4 / bandwidth


@dataclass
class Results:
    """Bandwidths reported in a log; GB/s is 10⁹ bytes a second, as in nccl-tests."""

    rows: dict[int, dict[str, float]] = field(default_factory=dict)
    average: float | None = None
    wrong: int = 0

    def feed(self, line: str) -> None:
        """Parse a line of nccl-tests or of `gpuprov nccl check`: a size, the average, or wrong values; ignore
        any other line.
        """
        if row := _NCCL_TESTS_ROW.search(line):
            self._table_row(row)
        elif row := _PLAIN_ROW.search(line):
            size, milliseconds, busbw = float(row[1]), float(row[2]), float(row[3])
            self._add(int(size * _MIB), {"time_us": milliseconds * 1000, "busbw": busbw})
        elif found := _AVERAGE.search(line):
            self.average = _number(found[1])
        elif found := _OUT_OF_BOUNDS.search(line):
            self.wrong = max(self.wrong, int(found[1]))

    def _table_row(self, row: re.Match[str]) -> None:
        """Add a row of nccl-tests' table, with its in-place bus bandwidth if it has one, and its counts of
        wrong values to `wrong`; ignore a row with a malformed number.
        """
        time_us, algbw, busbw = (_number(row[index]) for index in (2, 3, 4))
        if time_us is None or algbw is None or busbw is None:
            return
        figures = {"time_us": time_us, "algbw": algbw, "busbw": busbw}
        in_place = _number(row[8]) if row[8] else None
        if in_place is not None:
            figures["in_place_busbw"] = in_place
        self._add(int(row[1]), figures)
        self.wrong += sum(int(row[index]) for index in (5, 9) if row[index] and _COUNT.fullmatch(row[index]))

    def _add(self, size: int, figures: dict[str, float]) -> None:
        """Set the figures of a size; those of a new one are ignored if there are `SIZES` others."""
        if size in self.rows or len(self.rows) < SIZES:
            self.rows[size] = figures

    @property
    def peak(self) -> float | None:
        """Return the best bus bandwidth in GB/s, the reported average without rows, or None."""
        best = [max(row["busbw"], row.get("in_place_busbw", 0)) for row in self.rows.values()]
        return max(best, default=self.average)

    def as_dict(self) -> dict[str, Any] | None:
        """Return plain data for JSON; None if the log reports no bandwidth."""
        if self.peak is None:
            return None
        rows = [{"bytes": size, **self.rows[size]} for size in sorted(self.rows)]
        return {"unit": "GB/s", "peak": self.peak, "average": self.average, "wrong": self.wrong, "rows": rows}


def _number(word: str) -> float | None:
    """Parse a number; None for other text."""
    try:
        return float(word)
    except ValueError:
        return None

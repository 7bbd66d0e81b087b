"""Published values of GPUs, with sources: the vendor's peaks, operators' gates, others' measurements."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

RULE_OF_MEASURED = "target_over_measured"
RULE_OF_NODE = "gemm_over_best_gpu"
RULE_OF_ALL_REDUCE = "allreduce_busbw_node_gb_s"


@dataclass(frozen=True)
class Floor:
    """Lower limits of a measurement.

    Args:
        bad, warn: below the first a node fails, below the second it warns; in the measurement's unit.
        who: publisher of the gate, as text for people.
        source: title of the source; empty for the site's own.
    """

    bad: float
    warn: float
    who: str
    source: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"bad": self.bad, "warn": self.warn, "who": self.who, "source": self.source}


@dataclass(frozen=True)
class Reference:
    """Published values of one GPU model; empty for a model without any."""

    id: str = ""
    peak: Mapping[str, float] = field(default_factory=dict)
    thresholds: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)

    def floor(self, names: tuple[str, ...]) -> Floor | None:
        """Return the floor of a measurement by the first of its names that has one, or None.

        Operators' gates come first: below the lowest gate a node fails, below the highest it warns. Without a
        gate, NVIDIA DCGM's own rule derives the floor from measurements on good hardware. A doubtful gate, or
        one whose publisher only warns, does not count.
        """
        for name in names:
            gates = [
                row for row in self.thresholds.get(name, ()) if row["kind"] == "gate" and not row.get("doubt")
            ]
            if gates:
                least = min(gates, key=_least)
                return Floor(least["min"], max(map(_least, gates)), _listed(gates), titles(gates))
        for name in names:
            if rows := self.measured.get(name):
                best, rule = max(rows, key=_value), rules(RULE_OF_MEASURED)[0]
                floor = round(rule["min"] * best["value"], 1)
                measured = f"{best['value']:g} {best['unit']} measured on good hardware"
                who = f"{rule['min']:g} of the {measured}, {rule['who']}'s rule"
                return Floor(floor, floor, who, titles([best, rule]))
        return None


def _least(row: Mapping[str, Any]) -> float:
    """Return the lower limit of a gate."""
    return float(row["min"])


def _value(row: Mapping[str, Any]) -> float:
    """Return the value of a published measurement."""
    return float(row["value"])


def _listed(gates: list[dict[str, Any]]) -> str:
    """Return publishers and limits as text: `A's 300 and B's 350`."""
    return " and ".join(dict.fromkeys(f"{row['who']}'s {row['min']:g}" for row in gates))


@cache
def data() -> dict[str, Any]:
    """Return the content of `data/acceptance.json`, which is read once."""
    result: dict[str, Any] = json.loads((files(__package__) / "data/acceptance.json").read_text("utf-8"))
    return result


def rules(test: str) -> list[dict[str, Any]]:
    """Return the published gates that judge `test` and apply to any GPU."""
    return [row for row in data()["rules"] if row["test"] == test]


def titles(rows: list[dict[str, Any]]) -> str:
    """Return the titles of the rows' sources, each once, joined with `; `."""
    ids = dict.fromkeys(each for row in rows for each in row["source"])
    return "; ".join(data()["sources"][each]["title"] for each in ids)


def reference(name: str) -> Reference:
    """Return the published values of the GPU by the name that nvidia-smi prints;
    empty for an unknown name.
    """
    for row in data()["gpus"]:
        if row["nvidia_smi_name"].casefold() == name.casefold():
            return Reference(row["id"], row["peak"], row.get("thresholds", {}), row.get("measured", {}))
    return Reference()


def pcie_rate(generation: float | None, lanes: float | None) -> float | None:
    """Return the rate of a PCIe link in GB/s per direction; None if generation or lanes are unknown."""
    if generation is None or lanes is None:
        return None
    rate: float | None = data()["pcie_gb_s_per_direction"].get(f"{generation:g}x16")
    return rate and rate * lanes / 16

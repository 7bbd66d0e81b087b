"""What is published of a GPU, with sources: the vendor's peaks, operators' gates, what others measured."""

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
    """The least that a measurement may be.

    Args:
        bad, warn: below the first a node fails; below the second it is told. In the measurement's unit.
        who: whose gate it is, in words for people.
        source: where it stands: a title, or empty for the site's own.
    """

    bad: float
    warn: float
    who: str
    source: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"bad": self.bad, "warn": self.warn, "who": self.who, "source": self.source}


@dataclass(frozen=True)
class Reference:
    """One model of GPU; empty for a model with no published figures."""

    id: str = ""
    peak: Mapping[str, float] = field(default_factory=dict)
    thresholds: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)

    def floor(self, names: tuple[str, ...]) -> Floor | None:
        """The floor of a measurement by the first of its names that has any; None where none is known.

        Operators' gates come first: below the lowest of them no one accepts a node, below the highest
        somebody does not. Where there is none, NVIDIA DCGM's own rule makes one of what was measured on good
        hardware. A gate with a doubt, or whose publisher only warns, is none.
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
    return float(row["min"])


def _value(row: Mapping[str, Any]) -> float:
    return float(row["value"])


def _listed(gates: list[dict[str, Any]]) -> str:
    return " and ".join(dict.fromkeys(f"{row['who']}'s {row['min']:g}" for row in gates))


@cache
def data() -> dict[str, Any]:
    """`data/acceptance.json`."""
    told: dict[str, Any] = json.loads((files(__package__) / "data/acceptance.json").read_text("utf-8"))
    return told


def rules(test: str) -> list[dict[str, Any]]:
    """Gates that hold for any GPU, by what they judge."""
    return [row for row in data()["rules"] if row["test"] == test]


def titles(rows: list[dict[str, Any]]) -> str:
    """The sources of some rows in words."""
    ids = dict.fromkeys(each for row in rows for each in row["source"])
    return "; ".join(data()["sources"][each]["title"] for each in ids)


def reference(name: str) -> Reference:
    """What is published of the GPU that calls itself so; an empty one for a stranger."""
    for row in data()["gpus"]:
        if row["nvidia_smi_name"].casefold() == name.casefold():
            return Reference(row["id"], row["peak"], row.get("thresholds", {}), row.get("measured", {}))
    return Reference()


def pcie_rate(generation: float | None, lanes: float | None) -> float | None:
    """GB/s per direction of a link; None where it is not known."""
    if generation is None or lanes is None:
        return None
    rate: float | None = data()["pcie_gb_s_per_direction"].get(f"{generation:g}x16")
    return rate and rate * lanes / 16

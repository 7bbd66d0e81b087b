"""Published figures in the data: each row has a source; doubtful gates are reported but not used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gpuprov.accept.rates import COLLECTIVES, OF_GPU
from gpuprov.accept.reference import data, pcie_rate, reference

H200 = "NVIDIA H200"


def sourced(value: Any) -> Iterator[list[str]]:
    """Yield each `source` in nested data."""
    if isinstance(value, dict):
        if "source" in value:
            yield value["source"]
        for inner in value.values():
            yield from sourced(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from sourced(inner)


def test_every_figure_has_a_source_that_is_listed() -> None:
    listed = set(data()["sources"])
    for row in data()["gpus"]:
        assert row["source"], row["id"]
        for kind in ("thresholds", "measured"):
            for name, rows in row.get(kind, {}).items():
                assert all(each["source"] for each in rows), (row["id"], name)
    used = {
        each for part in ("gpus", "rules", "ratios_of_peak") for ids in sourced(data()[part]) for each in ids
    }
    assert used == listed


def test_every_measure_has_fields_that_are_published_of_some_gpu() -> None:
    """Measures name only fields that exist in the data of a GPU: a misspelt field would match none."""
    peaks = {field for row in data()["gpus"] for field in row["peak"]}
    names = {
        name for row in data()["gpus"] for kind in ("thresholds", "measured") for name in row.get(kind, {})
    }
    for measure in OF_GPU.values():
        assert measure.peak in peaks | {"pcie"}
        assert not measure.names or set(measure.names) & names, measure
    assert all(any(name.startswith(f"{stem}_busbw") for name in names) for stem in COLLECTIVES.values())


def test_a_gate_of_an_operator_comes_before_what_was_measured() -> None:
    floor = reference(H200).floor(("h2d_gb_s",))
    assert floor is not None
    assert (floor.bad, floor.warn, floor.who) == (48, 48, "Azure AzNHC's 48")
    assert "azurehpc" in floor.source


def test_between_two_gates_a_node_is_warned_of() -> None:
    """Warn between the gates of two operators: Azure needs 48 GB/s for an H100's host copies, Oracle 52."""
    floor = reference("NVIDIA H100 80GB HBM3").floor(("h2d_gb_s",))
    assert floor is not None
    assert (floor.bad, floor.warn) == (48, 52)


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("NVIDIA H100 NVL", "p2p_gb_s"),  # looks copied from another board
        ("NVIDIA B200", "allreduce_busbw_8gpu_gb_s"),  # the figure of another GPU
    ],
)
def test_a_gate_in_doubt_is_reported_and_not_used(gpu: str, name: str) -> None:
    known = reference(gpu)
    assert any(row.get("doubt") for row in known.thresholds[name])
    floor = known.floor((name,))
    assert floor is None or "DCGM's rule" in floor.who


def test_without_a_gate_dcgms_rule_speaks() -> None:
    """Check that the floor of a rate without a published limit is DCGM's, 75 % of the reference."""
    floor = reference(H200).floor(("gemm_bf16_tflops",))
    assert floor is not None
    assert floor.bad == pytest.approx(0.75 * 794.5, abs=0.1)
    assert "DCGM" in floor.who


def test_of_a_stranger_nothing_is_known() -> None:
    assert reference("NVIDIA H999").floor(("h2d_gb_s",)) is None
    assert reference("") == reference("NVIDIA H999")


@pytest.mark.parametrize(
    ("generation", "lanes", "rate"), [(5, 16, 63.02), (5, 8, 31.51), (4, 16, 31.51), (9, 16, None)]
)
def test_the_rate_of_a_link(generation: int, lanes: int, rate: float | None) -> None:
    assert pcie_rate(generation, lanes) == rate
    assert pcie_rate(None, lanes) is None

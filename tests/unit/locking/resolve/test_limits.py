"""Combinations of two parts that the catalog states as not working: each is refused or warned of by name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from gpuprov.catalog import load
from gpuprov.catalog.records import Limit, Span
from gpuprov.catalog.rules import limits
from gpuprov.catalog.version import Version
from gpuprov.locking.resolve.checks.mends import documented, mends
from tests.unit.locking.resolve.requests import A100, answer, rules

ROWS: tuple[Limit, ...] = load().tables["limits.limits"]


@pytest.mark.parametrize(
    ("gpu", "os", "stated", "rule"),
    [
        (A100, "rhel7", {"driver": "560.35.03", "kernel": "3.10.0-1160.el7.x86_64"}, "driver-kernel-minimum"),
        (
            A100,
            "ubuntu18.04",
            {"driver": "580.95.05", "kernel": "4.13.0-45-generic"},
            "driver-kernel-minimum",
        ),
        ("GH200 480GB", "ubuntu22.04", {"driver": "550.90.07", "gds": "2.16.1"}, "gds-superchip"),
        ("T4G", "rhel8", {"arch": "aarch64", "cuda": "10.2"}, "cuda-published"),
        ("Tesla C2050", "ubuntu18.04", {"driver": "418.226.00"}, "gpu-driver"),
        ("GeForce GTX 480", "ubuntu18.04", {"driver": "390.157", "cuda": "9.1"}, "gpu-cuda"),
    ],
)
def test_documented_limits_are_refused(gpu: str, os: str, stated: dict[str, Any], rule: str) -> None:
    assert rule in rules(answer(gpu, os, **stated).violations)


@pytest.mark.parametrize(
    ("gpu", "os", "stated", "rule"),
    [
        (
            "GB200",
            "ubuntu22.04",
            {"driver": "570.172.08", "kernel": "5.15.0-1042-nvidia-64k"},
            "superchip-kernel",
        ),
        (A100, "rhel7", {"driver": "550.54.15", "framework": "torch==2.7.0+cu126"}, "framework-glibc"),
        (A100, "ubuntu18.04", {"framework": "jax==0.7.1"}, None),
        (A100, "ubuntu20.04", {"framework": "torch==2.9.1"}, "framework-python"),
        (A100, "debian13", {"driver": "580.95.05", "framework": "tensorflow==2.19"}, "framework-python"),
        (A100, "rhel10", {"driver": "580.95.05", "cuda": "13.0.1", "doca_ofed": "2.9.0"}, "doca-kernel"),
        (
            A100,
            "ubuntu24.04",
            {"driver": "580.82.07", "gds": "2.26.6", "kernel": "6.17.0-5-generic", "module": "open"},
            "gds-kernel",
        ),
        (A100, "rhel10", {"driver": "580.95.05", "cuda": "12.6"}, "cuda-host-gcc"),
        ("GeForce RTX 5090", "fedora44", {"driver": "595.84", "cuda": "13.3"}, "cuda-host-gcc"),
        ("GeForce RTX 5090", "ubuntu26.04", {"driver": "595.71.05", "cuda": "13.1"}, "cuda-host-glibc"),
        ("GeForce RTX 5090", "fedora44", {"driver": "590.48.01", "cuda": "13.1"}, "cuda-host-glibc"),
        ("GeForce RTX 5090", "ubuntu22.04", {"driver": "570.124.06", "nccl": "2.25.1+cuda12.8"}, "nccl-gpu"),
        (
            "2x GeForce RTX 5090 D",
            "ubuntu22.04",
            {"driver": "570.148.08", "nccl": "2.27.5+cuda12.4"},
            "nccl-gpu",
        ),
        ("Tesla M60", "ubuntu22.04", {"driver": "570.172.08", "framework": "torch==2.9.1+cu126"}, None),
    ],
)
def test_limits_that_a_user_can_change_are_warned_of(
    gpu: str, os: str, stated: dict[str, Any], rule: str | None
) -> None:
    found = rules(answer(gpu, os, **stated).warnings)
    assert rule in found if rule else not {"framework-glibc"} & found


@pytest.mark.parametrize(
    ("framework", "gpu"),
    [
        ("tensorflow==2.18", "Tesla M60"),
        ("tensorflow==2.17", "GeForce GTX 750"),
        ("torch==2.11.0+cu128", "Tesla V100 SXM2 16GB"),
        ("jax==0.4.13", "GeForce GTX 750"),
    ],
)
def test_wheels_without_code_for_an_older_gpu_are_refused(framework: str, gpu: str) -> None:
    found = answer(gpu, "ubuntu22.04", driver="570.172.08", framework=framework)
    assert "framework-gpu" in rules(found.violations)


@pytest.mark.parametrize(
    ("gpu", "os", "stated"),
    [
        (A100, "rhel7", {"driver": "550.54.15", "kernel": "3.10.0-1160.el7.x86_64"}),
        (A100, "rhel8", {"driver": "580.95.05", "kernel": "4.18.0-553.el8_10.x86_64"}),
        ("GB200", "rhel9", {"driver": "580.95.05", "kernel": "5.14.0-611.el9_7.aarch64+64k"}),
        ("GB200", "ubuntu24.04", {"driver": "570.172.08", "kernel": "6.8.0-1021-nvidia-64k"}),
        (A100, "rhel8", {"driver": "550.54.15", "framework": "torch==2.6.0"}),
        (A100, "ubuntu24.04", {"driver": "580.95.05", "doca_ofed": "2.9.0"}),
        (A100, "ubuntu24.04", {"driver": "580.95.05", "doca_ofed": "2.9.3", "kernel": "6.12.1"}),
        (A100, "rhel10", {"driver": "580.95.05", "cuda": "13.0.1"}),
        ("T4G", "rhel8", {"arch": "aarch64", "driver": "450.119.03", "cuda": "11.0.3"}),
        (
            A100,
            "rhel9",
            {"driver": "595.71.05", "doca_ofed": "3.2.3", "kernel": "5.14.0-687.25.1.el9_8.x86_64"},
        ),
        ("GeForce RTX 5090", "ubuntu22.04", {"driver": "570.124.06", "nccl": "2.26.2+cuda12.8"}),
        ("8x B200", "ubuntu24.04", {"driver": "570.172.08", "cuda": "12.8", "nccl": "2.25.1+cuda12.8"}),
    ],
)
def test_their_neighbours_within_the_limits_are_not(gpu: str, os: str, stated: dict[str, Any]) -> None:
    found = answer(gpu, os, **stated)
    named = {row.rule for row in ROWS} - {"framework-python"} | {"doca-kernel", "gds-kernel", "cuda-host-gcc"}
    assert not named & (rules(found.warnings) | rules(found.violations))


def test_fermi_ends_with_branch_390_and_cuda_8() -> None:
    [gpu] = [gpu for gpu in load().gpus if gpu.id == "GeForce GTX 550 Ti"]
    assert (gpu.architecture, str(gpu.compute_capability)) == ("Fermi", "2.1")
    assert (gpu.max_driver_branch, str(gpu.last_cuda)) == (390, "8.0")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_each_limit_states_two_parts_and_its_rule_has_remedies(row: Limit) -> None:
    parts = len(limits.concerned(row)) + sum(map(bool, (row.os, row.arch, row.flavour)))
    assert parts + (row.capability is not None) + (row.superchip is not None) > 1
    assert not row.refused or (documented(row.rule) and mends(row.rule))


def test_a_release_with_fewer_digits_is_the_newest_that_it_names() -> None:
    span = Span(first=Version("2.7"), before=Version("3.10.2"))
    assert [limits.within(span, Version(each)) for each in ("2.6.9", "2.7", "2", "3.10", "3.10.1")] == [
        False,
        True,
        True,
        False,
        True,
    ]


def test_each_condition_of_releases_is_compared() -> None:
    """Compare the names with the record's fields: a condition that is left out would be no condition."""
    spans = {field.name for field in fields(Limit) if "Span" in str(field.type)}
    assert {*limits.SPANS, "capability"} == spans

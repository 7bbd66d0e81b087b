"""Guests: virtual GPUs, and confidential computing: locks against the mirror, and refusals by name."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuprov.catalog import load
from gpuprov.catalog.guests import is_virtual
from gpuprov.cli.common.group import run
from gpuprov.drift.observations import OBSERVERS
from gpuprov.errors import Exit, Refused
from gpuprov.inventory.discover.match import kinds, match
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation, expectations
from gpuprov.verify.observers.gpu import PROTECTED, Gpus
from gpuprov.verify.suite import test_hardware as checks
from gpuprov_lab.mirror import nvidia
from tests.unit.doctor.machines import edit_smi, virtual
from tests.unit.locking.test_gpudirect import lock

VIRTUAL = ("NVIDIA A10-24Q", "GRID T4-4C", "NVIDIA A100-1-5CME", "NVIDIA H100XM-80C", "GRID P40-2B4")
ONE = {"gpu": {"model": "H200 SXM", "count": 1}}


def expected(group: Any) -> dict[str, Any]:
    """Return the expectations of a group by check."""
    return {each.check: each.expected for each in expectations(group)}


@pytest.mark.parametrize("name", VIRTUAL)
def test_a_virtual_gpu_is_refused_by_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert is_virtual(name)
    assert run(["resolve", "--gpu", name, "--os", "ubuntu24.04"]) == Exit.REFUSED
    said = capsys.readouterr().err
    assert "[vgpu-driver]" in said
    assert "hypervisor" in said


def test_no_gpu_of_the_catalog_has_the_name_of_a_virtual_one() -> None:
    names = [name for gpu in load().gpus for name in (gpu.id, gpu.nvidia_smi_name, *gpu.aliases)]
    assert len(names) > 1000
    assert [name for name in names if is_virtual(name)] == []


def test_a_lock_for_virtual_gpus_is_refused(tmp_path: Path, fleet: Path, mirror: nvidia.Mirror) -> None:
    hardware = {"gpu": {"model": "NVIDIA L40S-48Q", "count": 1}}
    with pytest.raises(Refused, match="vgpu-driver"):
        lock(tmp_path, fleet, mirror, hardware=hardware)


def test_discovery_tells_virtual_gpus_from_passthrough() -> None:
    among = kinds(load())
    there = match(Facts("gpu01", "", 0, virtual()), among)
    assert there.profile is not None
    guest = virtual()
    edit_smi(
        guest, "<product_name>NVIDIA H200</product_name>", "<product_name>NVIDIA H200-141C</product_name>"
    )
    found = match(Facts("gpu01", "", 0, guest), among)
    assert found.profile is None
    assert found.differences == ("virtual GPUs, with the guest driver of their hypervisor: NVIDIA H200-141C",)


@pytest.mark.parametrize(
    ("model", "stack"),
    [
        ("H200 SXM", {"driver": "580.126.16"}),
        ("H100 PCIe", {"driver": "570.195.03"}),
        ("B200", {"driver": "580.126.16"}),
        ("RTX PRO 6000 Blackwell Server", {"driver": "590.48.01"}),
    ],
)
def test_confidential_gpus_are_expected_to_be_on(
    tmp_path: Path, fleet: Path, mirror: nvidia.Mirror, model: str, stack: dict[str, str]
) -> None:
    one = {"gpu": {"model": model, "count": 1}}
    group = lock(tmp_path, fleet, mirror, hardware=one, settings={"confidential": True}, **stack)
    assert expected(group)["gpu.confidential"] == "on"
    off = lock(tmp_path, fleet, mirror, hardware=one, settings={"confidential": False}, **stack)
    assert expected(off)["gpu.confidential"] == "off"
    assert "gpu.confidential" not in expected(lock(tmp_path, fleet, mirror, hardware=one, **stack))


@pytest.mark.parametrize(
    ("hardware", "stack", "settings", "rule"),
    [
        ({"gpu": {"model": "A100 PCIe 80GB", "count": 1}}, {}, {}, "confidential-gpu"),
        ({"gpu": {"model": "L40S", "count": 1}}, {}, {}, "confidential-gpu"),
        (ONE, {"driver": "570.195.03"}, {}, "confidential-driver"),
        (ONE, {"module": "proprietary"}, {}, "confidential-module"),
        ({"gpu": {"model": "H200 SXM", "count": 4}}, {}, {}, "confidential-gpus"),
        (ONE, {"gds": "auto"}, {}, "confidential-direct"),
        (ONE, {}, {"peer_memory": "auto"}, "confidential-direct"),
        (ONE, {}, {"mig": ["1g.18gb"]}, "confidential-mig"),
    ],
)
def test_what_confidential_computing_forbids_is_refused_by_name(
    tmp_path: Path,
    fleet: Path,
    mirror: nvidia.Mirror,
    hardware: dict[str, Any],
    stack: dict[str, str],
    settings: dict[str, Any],
    rule: str,
) -> None:
    stated = {"confidential": True, **settings}
    with pytest.raises(Refused, match=rf"confidential is true, and .*\[{rule}\]"):
        lock(tmp_path, fleet, mirror, hardware=hardware, settings=stated, **stack)
    lock(tmp_path, fleet, mirror, hardware=hardware, settings=settings, **stack)


@pytest.mark.parametrize(
    ("protected", "seen"), [((0, 0), "off"), ((80994, 80994), "on"), ((80994, 0), "on for GPU 0")]
)
def test_both_witnesses_read_the_mode(protected: tuple[int, int], seen: str) -> None:
    machine = deepcopy(virtual())
    begin = machine["smi"]["stdout"].split("<cc_protected_memory_usage>")
    assert len(begin) == 3
    parts = [begin[0]]
    for size, text in zip(protected, begin[1:], strict=True):
        parts.append(text.replace("<total>0 MiB</total>", f"<total>{size} MiB</total>", 1))
    machine["smi"]["stdout"] = "<cc_protected_memory_usage>".join(parts)
    expectation = Expectation("gpu.confidential", "on", None)
    assert OBSERVERS["gpu.confidential"](Facts("gpu01", "", 0, machine), expectation) == seen

    class Host:
        """Answers of nvidia-smi, as testinfra returns them."""

        gpu: Any

        def run(self, command: str) -> Any:
            """Return the table that a query prints."""
            rows = [f"{n}, {size}" for n, size in enumerate(protected)]
            if command != PROTECTED:
                rows = [f"{n}, 00000000:0{n}:00.0, NVIDIA H200, 580.159.04, Enabled" for n in range(2)]
            return SimpleNamespace(stdout="\n".join(rows), stderr="", succeeded=True, rc=0)

    host = Host()
    host.gpu = type(
        "G", (Gpus,), {"run": lambda self, command: host.run(command), "__init__": lambda s: None}
    )()
    checks.test_confidential_computing_is_as_stated(host, seen)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        checks.test_confidential_computing_is_as_stated(host, "neither")  # type: ignore[arg-type]

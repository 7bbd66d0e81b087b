"""Settings that a GPU does not have: refused if they cannot be intended, reported if they have no effect."""

from __future__ import annotations

from typing import Any

import pytest

from gpuprov.catalog import load
from gpuprov.catalog.gpu_names import find_gpu
from gpuprov.errors import Refused
from gpuprov.locking.gpu_settings import check_gpu_settings
from gpuprov.model.lock import Setting


def messages(gpu: str, **settings: Any) -> list[str]:
    """Return the messages about these settings on that GPU."""
    lines: list[str] = []
    stated = {
        name: Setting(value=value, reason="stated", source="fleet.yml") for name, value in settings.items()
    }
    check_gpu_settings("train", find_gpu(load(), gpu), stated, lines.append)
    return lines


@pytest.mark.parametrize("gpu", ["GeForce RTX 4090", "RTX 3060 Laptop GPU", "Tesla T4", "L40S", "CMP 170HX"])
def test_gpu_instances_are_refused_on_what_cannot_be_divided(gpu: str) -> None:
    with pytest.raises(
        Refused, match=r"train: .* cannot be divided into GPU instances \[gpu-mig\]; remove mig"
    ):
        messages(gpu, mig=["1g.5gb"])
    assert messages(gpu, mig=[]) == []


@pytest.mark.parametrize("gpu", ["A100 SXM4 80GB", "H200 SXM", "H800 PCIe", "RTX PRO 5000 Blackwell", "H20"])
def test_boards_that_have_them_and_those_that_nobody_read_of_are_not_refused(gpu: str) -> None:
    assert messages(gpu, mig=["1g.10gb"], ecc=True, clocks={"graphics": 1000, "memory": 1000}) == []


def test_what_consumer_boards_lack_is_reported() -> None:
    clocks = {"graphics": 1000, "memory": 1000}
    (none,) = messages("GeForce RTX 5090", ecc=True)
    assert "GeForce RTX 5090 (geforce) has no ECC setting" in none
    (unread,) = messages("GeForce RTX 3080", ecc=True)
    assert "GeForce RTX 3080 (geforce) may have no ECC" in unread
    assert messages("GeForce RTX 4090", ecc=True) == messages("GeForce RTX 3090 Ti", ecc=True) == []
    (locked,) = messages("GeForce RTX 4090", clocks=clocks)
    assert locked.endswith("they are locked instead")
    (none,) = messages("GeForce GTX 1080", clocks=clocks)
    assert none.endswith("nothing sets them")
    assert messages("GeForce RTX 4090", ecc=False) == []


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"clocks": {"graphics": 1980}}, "clocks"),
        ({"power_limit": 600, "compute_mode": "exclusive_process"}, "power_limit, compute_mode"),
    ],
)
def test_what_a_driver_without_persistence_forgets_is_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(
        Refused, match=rf"forgets {named} when .*; .*persistence: true.*, or leave out {named}"
    ):
        messages("H200 SXM", persistence=False, **settings)
    for persistence in (True, None):
        assert messages("H200 SXM", persistence=persistence, **settings) == []


def test_without_persistence_the_defaults_can_be_stated() -> None:
    assert messages("H200 SXM", persistence=False, compute_mode="default", ecc=True, mig=[]) == []

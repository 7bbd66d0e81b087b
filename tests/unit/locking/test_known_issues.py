"""Kernels that break a driver, withdrawn releases, drivers before a board's first: `lock` refuses or
warns.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov.errors import Refused
from gpuprov.locking.build import build_lock
from tests.unit.locking.fleets import Write


def changed(fleet: Path, **more: Any) -> Path:
    """Add settings of the group `train`, and other keys of the fleet, to a fleet file."""
    stated = yaml.safe_load(fleet.read_text())
    stated["groups"]["train"] |= {name: more.pop(name) for name in ("settings", "os") if name in more}
    fleet.write_text(yaml.safe_dump({**stated, **more}))
    return fleet


@pytest.mark.parametrize(
    ("system", "driver", "kernel", "issue"),
    [
        ("ubuntu24.04", "590.48.01", "6.19.10-061910-generic", "590.48.01-linux-6.19"),
        ("rhel9", "575.57.08", "5.14.0-687.12.1.el9_8.x86_64", "575.57.08-rhel-9.8"),
    ],
)
def test_a_kernel_that_breaks_the_driver_is_refused_with_what_would_work(
    system: str, driver: str, kernel: str, issue: str, one_group: Write
) -> None:
    fleet = changed(one_group(driver=driver), os=system, settings={"kernel": kernel})
    with pytest.raises(Refused, match=rf"\[{issue}\]") as caught:
        build_lock(fleet)
    assert f"driver {driver} does not build against kernel" in str(caught.value)
    assert "what would work: driver " in str(caught.value)


def test_another_kernel_of_the_same_driver_is_locked(one_group: Write) -> None:
    fleet = changed(one_group(driver="590.48.01"), settings={"kernel": "6.8.0-87-generic"})
    assert build_lock(fleet).groups["train"].components.driver.version == "590.48.01"


def test_a_driver_before_the_first_that_lists_the_board_is_narrated(one_group: Write) -> None:
    said: list[str] = []
    with pytest.raises(Refused, match="no package cuda-drivers-550"):  # the mirror does not have the branch
        build_lock(one_group(driver="550.54.14"), narrate=said.append)
    assert any(
        "H200 SXM is first listed by 550.90.07; 550.78 does not list it, and 550.54.14 is not newer" in line
        for line in said
    ), said


def test_a_withdrawn_release_is_refused_until_the_site_s_catalog_forgets_it(
    one_group: Write, tmp_path: Path
) -> None:
    (tmp_path / "catalog").mkdir()
    issue = {
        "id": "withdrawn-580.178.04",
        "kind": "withdrawn",
        "drivers": ["580.178.04", "580.173.02"],
        "condition": "by the vendor on 2026-12-01",
        "effect": "it corrupts memory",
        "remedy": "driver 580.159.04",
        "source": ["own"],
    }
    sources = {"own": {"title": "the vendor's page", "dated": "2026-12-01"}}
    (tmp_path / "catalog/drivers.json").write_text(json.dumps({"known_issues": [issue], "sources": sources}))
    fleet = changed(one_group(driver="580.178.04"), catalog_dirs=["catalog"])
    with pytest.raises(Refused, match=r"was withdrawn \(by the vendor on 2026-12-01\).*\[withdrawn-580"):
        build_lock(fleet)
    branch = changed(one_group(driver=580), catalog_dirs=["catalog"])
    assert build_lock(branch).groups["train"].components.driver.version == "580.159.04"
    without = changed(one_group(driver="580.178.04"), catalog_dirs=[])
    assert build_lock(without).groups["train"].components.driver.version == "580.178.04"

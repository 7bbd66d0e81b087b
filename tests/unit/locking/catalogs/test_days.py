"""Days of drivers in a refresh: those that NVIDIA's rpm packages state."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gpuprov.catalog import load
from gpuprov.catalog.loading import read_data
from gpuprov.catalog.records import DriverDates
from gpuprov.catalog.releases import OWN
from gpuprov.catalog.rules.dates import driver_day
from gpuprov.catalog.version import Version, version
from gpuprov.errors import Exit
from gpuprov.locking.catalogs.refresh.days import BUILT, propose_days
from gpuprov.locking.catalogs.refresh.proposal import Change, Proposal, read_documents
from gpuprov.locking.catalogs.refresh.seen import Reading, Seen
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror import rpm as mirror_rpm
from gpuprov_lab.mirror.specs import PackageSpec
from tests.unit.locking.catalogs.test_refresh import refresh

ON = 1_795_132_800
"""2026-11-20, in seconds."""
DAY = "2026-11-20"
NEW = "595.99.07"
READING = Reading("index-nvidia", {"title": "an index", "dated": "2026-11-27"}, ("rhel9",), ())


def one_more(folder: str, specs: list[PackageSpec]) -> list[PackageSpec]:
    """Return the packages, with one more release of branch 595."""
    late = [spec for spec in specs if "595.91.07" in spec.version and spec.name.startswith("kmod-nvidia")]
    return [*specs, *(replace(spec, version=spec.version.replace("595.91.07", NEW)) for spec in late)]


def proposed(**built: str) -> list[Change]:
    """Return the changes that follow from drivers and days of packages, `v580_95_05="2025-09-20"`."""
    proposal = Proposal(read_documents(OWN))
    held: dict[Version, list[Seen]] = {}
    for name, day in built.items():
        release = version(name[1:].replace("_", "."))
        held[release] = [
            Seen("driver", release, "rhel9", {"flavour": "open", BUILT: each}) for each in day.split()
        ]
    propose_days(proposal, load(), READING, held, "2026-11-27")
    return proposal.changes


def test_a_new_driver_is_dated_by_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_rpm, "BUILT", ON)
    mirror = nvidia.build(tmp_path / "mirror", load(), ["rhel9"], change=one_more)
    data = Path(shutil.copytree(OWN, tmp_path / "data"))
    said = refresh(mirror, data, "--write")
    assert said.return_value == Exit.OK, said.exception
    [line] = [each for each in said.stdout.splitlines() if "drivers.release_dates.595" in each]
    assert line.startswith("~ drivers.release_dates.595.released: packages of ")
    written = read_data(data)
    found = driver_day(written, version(NEW))
    assert found is not None
    assert str(found) == DAY
    assert found.source[-1].startswith("index-nvidia-")
    before: DriverDates = load().driver_dates[595]
    assert before.released.items() <= written.driver_dates[595].released.items()
    assert "release_dates" not in refresh(mirror, data).stdout  # nothing is proposed twice


def test_the_first_of_several_days_counts_and_a_known_driver_keeps_its_own() -> None:
    [change] = proposed(v595_99_07="2026-11-22 2026-11-20", v595_91_07="2026-01-01")
    assert change.value[NEW] == DAY
    assert change.value["595.91.07"] == str(load().driver_dates[595].released[version("595.91.07")])
    assert not change.by_hand
    assert list(change.value) == sorted(change.value, key=lambda each: version(each).parts)


def test_a_branch_without_days_gets_a_record() -> None:
    [change] = proposed(v625_10_01=DAY)
    assert change.value == {
        "branch": 625,
        "released": {"625.10.01": DAY},
        "source": ["index-nvidia-2026-11-27"],
    }


def test_a_day_after_the_reading_is_none() -> None:
    assert proposed(v595_99_07="2027-01-01") == []

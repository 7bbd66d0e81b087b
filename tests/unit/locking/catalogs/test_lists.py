"""Parsing of wheels, archives and lists of GPUs."""

from __future__ import annotations

import gzip
import json
import os
import zipfile
from pathlib import Path

import pytest

from gpuprov.catalog import load, version
from gpuprov.catalog.releases import OWN
from gpuprov.errors import InvalidInput
from gpuprov.locking.catalogs.refresh import wheels
from gpuprov.locking.catalogs.refresh.gpu_lists import parse_json, parse_readme
from gpuprov.locking.catalogs.refresh.packages import read_archives
from gpuprov.locking.catalogs.refresh.proposal import Proposal, read_documents
from gpuprov.locking.catalogs.refresh.propose import propose
from gpuprov.locking.catalogs.refresh.seen import ListedGpu, NotRead, Reading
from gpuprov.locking.repository.sources import AptSource
from gpuprov_lab.mirror import apt
from gpuprov_lab.mirror.specs import PackageSpec

DAY = "2027-01-15"
README = """
Appendix A. Supported NVIDIA GPU Products
    1. Installation ...........

Appendix A. Supported NVIDIA GPU Products

 NVIDIA GPU product                    Device PCI ID*  VDPAU features**
 -----------------------------------  ---------------  ---------------
 NVIDIA GeForce RTX 3060               2487             K
 NVIDIA GeForce RTX 3060 Laptop GPU    249C 1D05 1194   K

Below are the legacy GPUs that are no longer supported in the unified driver.

The 470.xx driver supports the following set of GPUs:

 GeForce GTX 680                       1180             C

The 71.86.xx driver supports the following set of GPUs:

 RIVA TNT                              0020

Appendix B. Minimum Software Requirements
 NVIDIA no GPU at all                  FFFF
"""


def proposed(*readings: Reading) -> Proposal:
    """Return the proposal from readings, against the shipped catalog."""
    return propose(load(), read_documents(OWN), readings, DAY)[0]


def test_a_readme_says_the_same_as_the_list() -> None:
    chips = [
        {"devid": "0x2487", "name": "NVIDIA GeForce RTX 3060", "features": []},
        {"devid": "0x249C", "name": "NVIDIA GeForce RTX 3060 Laptop GPU", "features": []},
        {"devid": "0x1180", "name": "GeForce GTX 680", "legacybranch": "470.xx", "features": []},
        {"devid": "0x0020", "name": "RIVA TNT", "legacybranch": "71.86.xx", "features": []},
    ]
    listed = list(parse_json(json.dumps({"chips": chips}), "here"))
    assert listed == list(parse_readme(README))
    assert listed[2] == ListedGpu("1180", "GeForce GTX 680", 470)


@pytest.mark.parametrize("text", ["", "[]", '{"chips": [{}]}', '{"chips": [{"devid": 3}]}', '{"chips": 3}'])
def test_a_list_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"here: supported-gpus\.json: "):
        list(parse_json(text, "here"))


def test_a_readme_without_the_appendix_lists_nothing() -> None:
    assert list(parse_readme("")) == list(parse_readme(README.replace("Appendix A.", "Appendix Z."))) == []


def wheel(folder: Path, name: str, number: str, *asks: str) -> None:
    """Write a wheel without code into a folder, with its metadata and requirements."""
    stem = f"{name.replace('-', '_')}-{number}"
    said = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\nRequires-Python: >=3.11"]
    said += [f"Requires-Dist: {each}" for each in asks]
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as made:
        made.writestr(f"{stem}.dist-info/METADATA", "\n".join(said) + "\n")
        made.writestr(
            f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        made.writestr(f"{stem}.dist-info/RECORD", "")


@pytest.mark.thorough
def test_wheels_are_read_as_pip_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = str(load().cudnn[-1].version)
    for number in ("9.99.0.1", newest):
        wheel(tmp_path, "nvidia-cudnn-cu13", number)
    wheel(
        tmp_path, "torch", "2.99.0", "nvidia-cudnn-cu13==9.99.0.1", "cuda-toolkit[cudart]==13.2.2", "filelock"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)  # ignore constraints of this machine's pip
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(wheels, "LIBRARIES", {"nvidia-cudnn-cu13": "cudnn", "nvidia-nccl-cu13": "nccl"})
    monkeypatch.setattr(wheels, "FRAMEWORKS", {"torch": "torch"})
    reading, missing = wheels.read_wheels(load(), DAY)
    assert isinstance(missing, NotRead)
    assert (missing.what, "No matching distribution" in missing.why) == ("wheels of nvidia-nccl-cu13", True)
    assert isinstance(reading, Reading)
    cudnn, torch = (change.value for change in proposed(reading).changes)
    assert cudnn == {"version": "9.99.0.1", "wheel_cuda_majors": [13], "source": [f"pypi-{DAY}"]}
    assert (torch["version"], torch["cuda"], torch["cudnn"]) == ("2.99.0", "13.2", "9.99.0.1")
    assert (torch["python"], torch["min_driver_minor_compat"]) == (">=3.11", "580.65.06")


def test_only_the_newest_versions_of_a_framework_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = ", ".join(f"9.{number}.0" for number in range(50))
    asked = []

    def pip(*arguments: str, **_: object) -> bytes:
        """Answer as pip, and record what is requested."""
        if arguments[0] == "index":
            return f"torch (9.49.0)\nAvailable versions: {listed}, {listed}\n".encode()
        asked.append(arguments[-1])
        return json.dumps({"install": [{"metadata": {}}]}).encode()

    monkeypatch.setattr(wheels, "run_pip", pip)
    monkeypatch.setattr(wheels, "LIBRARIES", {})
    monkeypatch.setattr(wheels, "FRAMEWORKS", {"torch": "torch"})
    [reading] = wheels.read_wheels(load(), DAY)
    assert isinstance(reading, Reading)
    assert asked == [f"torch==9.{number}.0" for number in range(49, 29, -1)]
    assert [f"torch=={seen.version}" for seen in reading.seen] == asked


def archive(root: Path, suite: str, *specs: PackageSpec) -> AptSource:
    """Build a suite with packages in `non-free`, and return its source."""
    empty: dict[str, tuple[PackageSpec, ...]] = {"contrib": (), "non-free-firmware": (), "main": ()}
    apt.build_suite(root, suite, {**empty, "non-free": specs}, "amd64", None)
    return AptSource(root.as_uri(), suite, ("main",), trusted=True)


def test_an_archive_s_newer_driver_takes_the_older_ones_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = json.dumps({"chips": [{"devid": "0x2F06", "name": "NVIDIA GeForce RTX 5060"}]}).encode()
    path = "usr/share/doc/nvidia-driver/supported-gpus.json.gz"
    smi = PackageSpec("nvidia-smi", "535.299.01-1", "amd64")
    tesla = PackageSpec("nvidia-tesla-535-smi", "535.216.03-3", "amd64")
    driver = PackageSpec("nvidia-driver", "535.299.01-1", "amd64", files={path: gzip.compress(listed)})
    security = PackageSpec("nvidia-smi", "535.309.01-1~deb12u1", "amd64")
    root = tmp_path / "debian"
    sources = [
        archive(root, "bookworm", smi, tesla, driver),
        archive(root, "bookworm-updates"),
        archive(root, "bookworm-security", security),
    ]
    monkeypatch.setattr("gpuprov.locking.archives.own_sources", lambda: ("bookworm", sources))
    reading, *missing = read_archives(load(), DAY)
    assert {each.what for each in missing} == {"the archive of Debian 13", "the archive of Debian 11"}
    assert isinstance(reading, Reading)
    proposal = proposed(reading)
    (drivers,) = [change for change in proposal.changes if change.field == "archive_drivers"]
    assert (drivers.name, drivers.by_hand) == ("debian12", ())
    assert drivers.why == "debian has 535.299.01 instead of 535.261.03"
    assert [row["version"] for row in drivers.value][:3] == ["535.309.01", "535.299.01", "535.216.03"]
    (lower,) = [change for change in proposal.changes if change.name == "GeForce RTX 5060"]
    assert lower.why == "device 2F06 is listed by 535.299.01 already"
    assert version(lower.value["2F06"]) == reading.gpu_lists[0].release

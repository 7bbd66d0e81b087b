"""Cloud machine types, and the fleet that `gpuprov init --instance` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprov.catalog import load
from gpuprov.cli.common.group import run
from gpuprov.errors import InvalidInput
from gpuprov.inventory.instances import find_instance, instance_hardware
from gpuprov.locking.hardware import locked_hardware
from gpuprov.model.fleet import read_fleet
from gpuprov.model.hardware import NicHardware
from gpuprov.model.profile import load_profile, overlay


def init(tmp_path: Path, *words: str) -> int:
    """Run `gpuprov init` for eight hosts; return the exit code."""
    return run(["init", "-F", str(tmp_path / "fleet.yml"), "--hosts", "gpu[01-08]", *words])


def test_a_machine_type_becomes_a_fleet(tmp_path: Path) -> None:
    assert init(tmp_path, "--instance", "aws:p5.48xlarge", "--os", "ubuntu24.04", "--site", "us-east-1") == 0
    [group] = read_fleet(tmp_path / "fleet.yml").groups.values()
    assert (group.profile, len(group.hosts), group.site) == ("hgx-h100-8", 8, "us-east-1")
    hardware = overlay(load_profile(group.profile, []).profile.hardware, group.hardware)
    locked = locked_hardware(load(), group.profile, hardware)
    assert (locked.gpu_count, locked.cpu_cores, locked.nvlink, locked.nvswitches) == (8, 96, True, None)
    assert locked.nics == [NicHardware(kind="efa", speed_gbits=100, count=32)]


def test_the_guest_of_a_part_of_a_board_expects_no_switches(tmp_path: Path) -> None:
    assert init(tmp_path, "--instance", "gcp:a2-highgpu-1g", "--os", "debian12") == 0
    [group] = read_fleet(tmp_path / "fleet.yml").groups.values()
    locked = locked_hardware(
        load(), "x", overlay(load_profile(group.profile, []).profile.hardware, group.hardware)
    )
    assert (locked.gpu_count, locked.nvlink, locked.nvswitches, locked.nics, locked.nvme) == (
        1, None, None, [], None,
    )  # fmt: skip


def test_arm_is_stated(tmp_path: Path) -> None:
    """Check that the fleet of an ARM instance states its architecture."""
    assert init(tmp_path, "--instance", "gcp:a4x-highgpu-4g", "--os", "ubuntu24.04") == 0
    assert read_fleet(tmp_path / "fleet.yml").groups["gpu"].arch == "aarch64"


def test_profile_or_instance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that `init` with neither `--profile` nor `--instance`, or with both, is refused."""
    assert init(tmp_path, "--os", "debian12") == 2
    assert "missing: --profile (or --instance)" in capsys.readouterr().err
    assert init(tmp_path, "--os", "debian12", "--profile", "dev-t4", "--instance", "aws:p5.48xlarge") == 2
    assert "both --profile and --instance" in capsys.readouterr().err


def test_a_misspelt_type_names_its_neighbours() -> None:
    with pytest.raises(InvalidInput, match=r"aws:p5\.48xlarge"):
        find_instance(load(), "aws:p5.48xlrge")


@pytest.mark.parametrize("name", load().instances)
def test_every_type_has_a_shipped_profile(name: str) -> None:
    instance = load().instances[name]
    profile = load_profile(instance.profile, []).profile
    hardware = locked_hardware(
        load(), instance.profile, overlay(profile.hardware, instance_hardware(instance, profile.hardware))
    )
    assert hardware.gpu_count == instance.gpus

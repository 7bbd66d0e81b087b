"""Existing locks: whether they are stale, what is kept, and what `--upgrade` changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from gpuprov.catalog import load
from gpuprov.cli.lock import command
from gpuprov.errors import Exit, InvalidInput, Refused
from gpuprov.locking.build import build_lock
from gpuprov.model.components import MOVABLE
from gpuprov.model.lock import Lock, LockedGroup, read_lock
from gpuprov_lab.mirror import nvidia
from tests.unit.locking.fleets import Write


def _run(fleet: Path, *arguments: str) -> Result:
    """Run `gpuprov lock` for a fleet; return the result."""
    return CliRunner().invoke(command, ["--fleet", str(fleet), *arguments], standalone_mode=False)


def _train(fleet: Path) -> LockedGroup:
    """Return the group `train` of the lock next to a fleet."""
    return read_lock(fleet.with_name("fleet.lock.yml")).groups["train"]


def test_check_tells_a_stale_lock(one_group: Write) -> None:
    fleet = one_group(driver="570", nccl="auto")
    assert _run(fleet, "--check").return_value == Exit.DRIFT
    assert _run(fleet).return_value == Exit.OK
    assert _run(fleet, "--check").return_value == Exit.OK
    before = fleet.with_name("fleet.lock.yml").read_bytes()
    said = _run(one_group(driver="580", nccl="auto"), "--check")
    assert said.return_value == Exit.DRIFT
    assert "train.components.driver.version" in said.stdout
    assert fleet.with_name("fleet.lock.yml").read_bytes() == before


def test_upgrade_moves_what_is_named_and_nothing_else(one_group: Write) -> None:
    fleet = one_group(driver="580.95.05", cuda="13.0.2", cudnn="9.15", nccl="2.28.3", dcgm="4.4")
    assert _run(fleet).return_value == Exit.OK
    one_group(driver="580", cuda="13", cudnn="auto", nccl="auto", dcgm="4")
    assert _run(fleet).return_value == Exit.OK
    first = _train(fleet).components
    assert (first.driver.version, first.cuda and first.cuda.version) == ("580.95.05", "13.0.2")
    said = _run(fleet, "--upgrade", "driver", "dcgm").stdout
    second = _train(fleet).components
    assert "train.components.driver.version" in said
    assert "580.95.05 → 580.178.04" in said
    assert "components.cuda" not in said
    assert second.fabricmanager is not None
    assert second.fabricmanager.version == second.driver.version == "580.178.04"
    assert second.dcgm is not None
    assert second.dcgm.version == "4.6.0"
    assert (second.cuda, second.cudnn, second.nccl) == (first.cuda, first.cudnn, first.nccl)
    _run(fleet, "--upgrade")
    third = _train(fleet).components
    assert third.cuda is not None
    assert third.cuda.version == "13.0.3"
    assert third.nccl is not None
    assert first.nccl is not None
    assert third.nccl.version > first.nccl.version


def test_what_was_to_move_and_did_not_is_reported(one_group: Write) -> None:
    fleet = one_group(driver="580.95.05", cuda="13.0.2")
    first = _run(fleet)
    assert first.stderr.endswith("then: gpuprov plan\n")
    assert " stays " not in first.stderr
    assert "train: driver stays 580.95.05: fleet.yml," in _run(fleet, "--upgrade", "driver").stderr
    one_group(driver="580", cuda="13.0.2")
    assert " stays " not in _run(fleet, "--upgrade", "driver").stderr


def test_a_lock_beside_the_fleets_own_leads_to_an_upgrade(one_group: Write, tmp_path: Path) -> None:
    path = tmp_path / "next.lock.yml"
    said = _run(one_group(driver="580.95.05"), "--lock", str(path)).stderr
    assert said.endswith(f"then: gpuprov upgrade --to {path} --plan\n")


def test_a_locked_driver_gives_way_to_other_hardware(one_group: Write) -> None:
    first = build_lock(one_group(driver="595.91.07"))
    fleet = one_group(driver=None)
    assert build_lock(fleet, previous=first).groups["train"].components.driver.version == "595.91.07"
    fleet.write_text(fleet.read_text().replace("profile: h200", "profile: v100"))
    result: list[str] = []
    moved = build_lock(fleet, previous=first, narrate=result.append)
    assert moved.groups["train"].components.driver.branch == 580
    assert any("driver 595.91.07 cannot stay" in line for line in result)


def test_all_groups_are_counted_before_a_lock_is_written(
    one_group: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Count also keys and connections, which a fleet states once and each group has in the lock."""
    fleet = one_group(driver="580.95.05")
    [group] = build_lock(fleet).groups.values()
    settings = sum(len(each.model_dump_json()) for each in group.settings.values())
    size = settings + len(group.model_copy(update={"settings": {}}).model_dump_json())
    monkeypatch.setattr("gpuprov.locking.build.MAX_BYTES", size)
    build_lock(fleet)
    monkeypatch.setattr("gpuprov.locking.build.MAX_BYTES", size - 1)
    with pytest.raises(Refused, match="all groups together have more than"):
        build_lock(fleet)


@pytest.mark.parametrize("change", [{"packages": {"nvidia-open": "1_2"}}, {"closure": {}}])
def test_a_lock_that_was_changed_by_hand_is_made_again(one_group: Write, change: dict[str, Any]) -> None:
    """Replace a version that is invalid or not offered, and packages that the closure lacks."""
    fleet = one_group(driver="580.95.05")
    first = build_lock(fleet)
    document = first.model_dump(mode="json", by_alias=True, exclude_none=True)
    driver = document["groups"]["train"]["components"]["driver"]
    driver |= {key: dict.fromkeys(driver[key], "1_2") if value else value for key, value in change.items()}
    assert build_lock(fleet, previous=Lock.model_validate(document)) == first


def test_nodes_compile_for_others_only_where_it_is_stated(one_group: Write) -> None:
    result: list[str] = []

    def build(hosts: str, previous: Lock | None = None, **stack: object) -> str | None:
        """Lock these hosts, and keep the lock; return `once` if one node compiles for others, else None."""
        fleet = one_group(driver="580.95.05", **stack)
        plain = yaml.safe_load(fleet.read_text())
        plain["groups"]["train"]["hosts"] = hosts
        fleet.write_text(yaml.safe_dump(plain))
        built.append(build_lock(fleet, previous=previous, narrate=result.append))
        return built[-1].groups["train"].components.driver.build

    built: list[Lock] = []
    assert build("gpu01") is None
    assert build("gpu[01-02]") is None
    assert build("gpu[01-02]", module_build="dkms") is None
    assert build("gpu[01-02]", previous=built[-1], builder="gpu01") == "once"
    assert not any("each node compiles" in line for line in result)
    assert build("gpu[01-02]", previous=built[-1]) is None
    assert any("train: each node compiles its own module" in line for line in result)


def test_a_newer_revision_is_taken_only_by_upgrade(one_group: Write, tmp_path: Path) -> None:
    def build(*old: str) -> nvidia.Mirror:
        """Build the mirror without these versions."""
        return nvidia.build(
            tmp_path / "moving",
            load(),
            ["ubuntu24.04"],
            change=lambda _, specs: [spec for spec in specs if spec.version not in old],
        )

    first = build_lock(one_group(build("1:4.6.0-1"), driver="580.95.05", dcgm="4"))
    fleet = one_group(build(), driver="580.95.05", dcgm="4")
    kept = build_lock(fleet, previous=first).groups["train"].components.dcgm
    moved = build_lock(fleet, previous=first, upgrade=MOVABLE).groups["train"].components.dcgm
    assert kept is not None
    assert moved is not None
    assert (kept.version, moved.version) == ("4.5.3", "4.6.0")


@pytest.mark.parametrize(
    ("stack", "said"),
    [
        ({"cudnn": 9.1}, "in quotes"),
        ({"cuda": ["12.8", "auto"]}, "only none or auto"),
        ({"cuda": []}, "at least 1"),
    ],
)
def test_what_nobody_can_mean(one_group: Write, stack: dict[str, object], said: str) -> None:
    """Check the messages for values of a stack that have the wrong form: a number, a wrong list."""
    with pytest.raises(InvalidInput, match=said):
        build_lock(one_group(**stack))


def test_components_are_named_only_with_upgrade(one_group: Write) -> None:
    assert isinstance(_run(one_group(), "driver").exception, InvalidInput)
    assert isinstance(_run(one_group(), "--upgrade", "kernel").exception, InvalidInput)


def test_no_link_leads_the_lock_to_a_new_file(one_group: Write, tmp_path: Path) -> None:
    """Check the folder of another person: a shell would run lines of the fleet in the lock."""
    fleet, profile = one_group(driver="580"), tmp_path / "home/.profile"
    profile.parent.mkdir()
    hook = f'rollout: {{hooks: {{drain: {{run: "x\\ntouch {tmp_path}/run\\n"}}}}}}\n'
    fleet.write_text(fleet.read_text() + hook)
    fleet.with_name("fleet.lock.yml").symlink_to(profile)
    said = _run(fleet)
    assert isinstance(said.exception, InvalidInput)
    assert "fleet.lock.yml cannot be written: is a link to a file that does not exist" in str(said.exception)
    assert not profile.exists()


def test_no_link_leads_the_lock_to_that_of_another_fleet(one_group: Write, tmp_path: Path) -> None:
    fleet, other = one_group(driver="580"), tmp_path / "other/fleet.lock.yml"
    assert _run(fleet).return_value == Exit.OK
    lock = fleet.with_name("fleet.lock.yml")
    other.parent.mkdir()
    before = lock.rename(other).read_bytes()
    lock.symlink_to(other)
    said = _run(one_group(driver="570"))
    assert isinstance(said.exception, InvalidInput)
    assert f"fleet.lock.yml is a link to {other}" in str(said.exception)
    assert other.read_bytes() == before
    lock.unlink()
    other.rename(fleet.with_name("kept.lock.yml"))
    lock.symlink_to("kept.lock.yml")
    assert _run(fleet).return_value == Exit.OK
    assert lock.is_symlink()

"""Lock of one fleet with every system, from a mirror in the layout of NVIDIA's own repositories."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from gpuprov.accept.floors import of_lock
from gpuprov.errors import Refused
from gpuprov.inventory.variables import group_variables
from gpuprov.locking import components
from gpuprov.locking.build import build_lock
from gpuprov.locking.changes import MOST, changes
from gpuprov.model.lock import Lock, render_lock
from gpuprov.roles import expectations
from gpuprov.upgrade import fetching
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.key import signing_key
from tests.unit.locking.fleets import GROUPS, PACKAGES, STREAMS, Write


@pytest.mark.parametrize(
    ("group", "component"), [(group, component) for group, wanted in PACKAGES.items() for component in wanted]
)
def test_names_and_versions_are_the_distributions_own(lock: Lock, group: str, component: str) -> None:
    found = dict(lock.groups[group].components.each())
    assert found[component].packages == PACKAGES[group][component]
    assert found[component].packages.items() <= found[component].closure.items()


def test_the_version_of_nccl_has_the_cuda_that_it_is_built_for(lock: Lock) -> None:
    found = {name: group.components.nccl for name, group in lock.groups.items() if group.components.nccl}
    for name, nccl in found.items():
        before, _, built_for = nccl.version.partition("+")
        assert re.fullmatch(r"cuda1[23]\.\d", built_for), name
        assert all(re.match(rf"{before}-\d+\+{built_for}$", full) for full in nccl.packages.values()), name
    assert found


@pytest.mark.parametrize(("group", "stream"), STREAMS.items())
def test_module_streams(lock: Lock, group: str, stream: str | None) -> None:
    """Check the module stream of the driver that is locked for a system."""
    assert lock.groups[group].components.driver.stream == stream


def test_what_is_not_stated_is_not_managed(lock: Lock) -> None:
    assert [name for name, _ in lock.groups["u24-a100"].components.each()] == ["driver"]
    assert [name for name, _ in lock.groups["r9-b200"].components.each()] == [
        "driver",
        "fabricmanager",
        "nvsdm",
        "nvlsm",
        "dcgm",
    ]


def test_one_branch_only_in_a_closure(lock: Lock) -> None:
    for name, group in lock.groups.items():
        driver = group.components.driver
        found = {version.partition("-")[0].removeprefix("3:") for version in driver.closure.values()}
        assert found == {driver.version}, name
        assert len(driver.closure) > len(driver.packages)
        others = [each for _, each in group.components.with_driver() if each.packages.keys() != {"nvlsm"}]
        assert {each.version for each in others} == {driver.version}


def test_switches_are_where_the_board_has_them(lock: Lock) -> None:
    switched = {name for name, group in lock.groups.items() if group.hardware.nvswitch}
    assert switched == {name for name in GROUPS if name.endswith(("h200", "b200"))}
    assert {name for name, group in lock.groups.items() if group.components.fabricmanager} == switched


def test_module_that_is_compiled(lock: Lock) -> None:
    compiled = {name: group.components.driver.module_package for name, group in lock.groups.items()}
    assert compiled["u22-h200"] == "nvidia-dkms-570-open"
    assert compiled["d12-a100"] == "nvidia-kernel-dkms"
    assert compiled["r8-a100"] == "kmod-nvidia-latest-dkms"


def test_what_is_stated_to_be_absent_is_looked_for(lock: Lock) -> None:
    group = lock.groups["r9-b200"]
    names = ("cuda-toolkit-12-8", "cuda-drivers", "cuda-keyring", "libcublas-12-8", "nvidia-driver-cuda")
    [absent] = [each for each in expectations(group) if each.check.endswith(".absent")]
    assert (absent.check, absent.role, absent.expected) == ("cuda.absent", "cuda_toolkit", [])
    assert [name for name in names if re.fullmatch(str(absent.subject), name)] == [names[0], names[3]]
    [unwanted] = group_variables(group)["cuda_toolkit_unwanted"]
    assert [name for name in names if re.match(unwanted, f"{name}=1")] == [names[0], names[3]]


def test_what_is_held_is_every_closure_once(lock: Lock) -> None:
    group = lock.groups["u22-h200"]
    [held] = [each.expected for each in expectations(group) if each.check == "pins.hold"]
    closures = [component.closure for _, component in group.components.each()]
    assert held == sorted({name for closure in closures for name in closure})
    assert len(held) == sum(map(len, closures)) == 29
    assert group_variables(group)["package_pins_packages"].keys() == set(held)


def test_the_driver_moves_with_its_companions_and_without_other_branches(lock: Lock) -> None:
    variables = group_variables(lock.groups["u24-h200"])
    assert {"nvidia-fabricmanager", "libnvidia-nscq"} < variables["nvidia_driver_packages"].keys()
    unwanted = re.compile("|".join(variables["nvidia_driver_unwanted"]))
    installed = {
        "nvidia-open-570=570.195.03-0ubuntu1": True,
        "nvidia-driver-pinning-570.195.03=570.195.03-0ubuntu1": True,
        "libnvidia-nscq-570=1:570.195.03-1": True,
        "nvidia-open=580.95.05-0ubuntu1": False,
        "nvidia-settings=570.195.03-0ubuntu1": False,
        "libxnvctrl0=510.47.03-0ubuntu4.24.04.1": False,
        "nvidia-container-toolkit=1.18.1-1": False,
        "cuda-toolkit-12-8=12.8.2-1": False,
        "nvlsm=2025.10.14-1": False,
    }
    assert {name: bool(unwanted.match(name)) for name in installed} == installed


def test_toolkits_side_by_side(lock: Lock) -> None:
    cuda = lock.groups["u22-h200"].components.cuda
    assert cuda is not None
    assert (cuda.default, cuda.version, cuda.toolkits) == (
        "12.8",
        "12.8.2",
        {"12.4": "12.4.1", "12.8": "12.8.2"},
    )


def test_repositories_carry_the_key_that_was_checked(lock: Lock, mirror: nvidia.Mirror) -> None:
    debian, rhel = lock.groups["d13-a100"].repositories, lock.groups["r9-h200"].repositories
    assert debian["nvidia"].url == mirror.cuda().format(folder="debian13", arch="x86_64")
    assert rhel["nvidia"].url == mirror.cuda().format(folder="rhel9", arch="x86_64")
    assert set(debian) == {"nvidia", "container-toolkit"}
    body = "".join(mirror.key.read_text().partition("\n\n")[2].split("=")[0].split())
    for repository in (*debian.values(), *rhel.values()):
        assert body in "".join(str(repository.signed_by).split())


def test_a_rotated_key_is_a_change_that_a_person_can_read(lock: Lock) -> None:
    with signing_key() as fresh:
        group = lock.groups["d13-a100"]
        other = group.repositories["nvidia"].model_copy(update={"signed_by": fresh.public.decode()})
        changed = group.model_copy(update={"repositories": {**group.repositories, "nvidia": other}})
        [line] = changes(lock, lock.model_copy(update={"groups": {**lock.groups, "d13-a100": changed}}))
        assert line.endswith(f" → key {fresh.fingerprint}")
        assert line.startswith("d13-a100.repositories.nvidia.signed_by  key ")


def test_versions_of_components_are_printed_before_details(lock: Lock) -> None:
    groups = {}
    for name, group in lock.groups.items():
        driver = group.components.driver.model_copy(update={"version": "1.2", "source": "another"})
        components = group.components.model_copy(update={"driver": driver})
        groups[name] = group.model_copy(update={"components": components})
    lines = changes(lock, lock.model_copy(update={"groups": groups}))
    versions = [line for line in lines if line.endswith(" → 1.2")]
    assert lines[: len(groups)] == versions
    assert [line.partition(".")[0] for line in versions] == list(groups)
    assert len(lines) == 2 * len(groups)


def test_a_long_value_is_cut_on_the_screen(lock: Lock) -> None:
    group = lock.groups["d13-a100"]
    driver = group.components.driver.model_copy(update={"source": "a page; " * 40})
    components = group.components.model_copy(update={"driver": driver})
    changed = group.model_copy(update={"components": components})
    [line] = changes(lock, lock.model_copy(update={"groups": {**lock.groups, "d13-a100": changed}}))
    assert line.endswith(" → " + ("a page; " * 40)[:MOST] + "…")
    assert len(line) < 3 * MOST


@pytest.mark.parametrize(
    ("repository", "fingerprint"),
    [
        ("nvidia", "EB693B3035CD5710E231E123A4B469963BF863CC"),
        ("container-toolkit", "C95B321B61E88C1809C4F759DDCAE044F796ECB0"),
    ],
)
def test_a_mirror_with_another_key_than_nvidias_is_refused(
    one_group: Write, repository: str, fingerprint: str
) -> None:
    fleet = one_group(driver=580, container_toolkit="auto")
    said = yaml.safe_load(fleet.read_text())
    del said["repositories"][repository]["key"]
    fleet.write_text(yaml.safe_dump(said))
    with pytest.raises(Refused, match=fingerprint):
        build_lock(fleet)


def test_the_same_inputs_give_the_same_bytes(fleet: Path, lock: Lock) -> None:
    assert render_lock(build_lock(fleet)) == render_lock(lock)
    assert render_lock(build_lock(fleet, previous=lock)) == render_lock(lock)


def test_a_frozen_mirror_is_locked_with_its_day(one_group: Write) -> None:
    fleet = one_group(driver=580)
    assert "frozen" not in render_lock(build_lock(fleet))
    said = yaml.safe_load(fleet.read_text())
    today = datetime.now(UTC).date()
    said["repositories"]["nvidia"]["frozen"] = today
    fleet.write_text(yaml.safe_dump(said))
    lock = build_lock(fleet)
    assert f"\n        frozen: '{today}'\n" in render_lock(lock)
    [group] = lock.groups.values()
    [source] = group_variables(group)["repositories_sources"]
    assert (source["id"], source["frozen"]) == ("nvidia", str(today))
    assert "Check-Valid-Until: no\n" in fetching.sources(group.model_copy(update={"repositories": {}}), group)


@pytest.mark.parametrize(
    ("driver", "near"),
    [
        ("595.91.97", r".*\[driver-in-index\]; expected of its branch 595.91.07 or 595.71.05"),
        ("630.10.01", r".*; expected one of 615.71.10"),
    ],
)
def test_a_driver_that_no_index_has_is_refused_with_those_of_its_branch(
    one_group: Write, driver: str, near: str
) -> None:
    with pytest.raises(Refused, match=rf"{driver} in {near}"):
        build_lock(one_group(driver=driver))


@pytest.mark.parametrize("offered", [{"-oDir::Bin::dpkg=/bin/sh": "1"}, {"nvidia-x": "1;id"}])
def test_a_name_or_version_of_an_index_that_is_none_is_refused(
    one_group: Write, monkeypatch: pytest.MonkeyPatch, offered: dict[str, str]
) -> None:
    closure = components.closure
    monkeypatch.setattr(components, "closure", lambda *asked: {**closure(*asked), **offered})
    with pytest.raises(Refused, match=r"train: \w+\.closure\..* has no form of a lock"):
        build_lock(one_group(driver="580"))


def test_a_version_cut_short_is_locked_as_the_whole_one(one_group: Write) -> None:
    assert build_lock(one_group(driver="595.91")).groups["train"].components.driver.version == "595.91.07"


def test_a_gpu_that_only_lists_name_is_locked_by_its_own_name(one_group: Write) -> None:
    path = one_group(driver="580")
    profile = path.parent / "profiles" / "h200.yml"
    profile.write_text(yaml.safe_dump({"hardware": {"gpu": {"model": "RTX PRO 4500 Blackwell", "count": 2}}}))
    hardware = build_lock(path).groups["train"].hardware
    assert (hardware.gpu_model, hardware.gpu_pci_ids) == ("RTX PRO 4500 Blackwell", ["10de:2c31"])
    assert not hardware.nvswitch


def test_a_group_that_asks_for_instances_of_a_consumer_board_is_refused(one_group: Write) -> None:
    path = one_group(driver="580")
    profile = path.parent / "profiles" / "h200.yml"
    stated = {"gpu": {"model": "RTX 4090", "count": 2}}
    profile.write_text(yaml.safe_dump({"hardware": stated, "settings": {"mig": ["1g.5gb"]}}))
    with pytest.raises(Refused, match="gpu-mig"):
        build_lock(path)


def test_floors_are_in_the_lock_where_the_fleet_states_them_alone(one_group: Write) -> None:
    fleet = one_group(driver=580)
    assert "floors" not in render_lock(build_lock(fleet))
    said = yaml.safe_load(fleet.read_text())
    [group] = said["groups"].values()
    group["floors"] = {"bf16": 650}
    fleet.write_text(yaml.safe_dump(said))
    lock = build_lock(fleet)
    assert "\n    floors:\n      bf16: 650.0\n" in render_lock(lock)
    assert of_lock(lock) == {node: {"bf16": 650.0} for node in lock.hosts()}


def test_a_refusal_that_no_single_change_would_mend_says_what_to_do(one_group: Write) -> None:
    with pytest.raises(Refused, match="no single change works: state less under `stack`"):
        build_lock(one_group(driver="470", cuda="13.0", cudnn="8.9"))

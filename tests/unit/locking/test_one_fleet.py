"""The lock of one fleet on every system, against a mirror in the layout of NVIDIA's own repositories."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from gpuprov.catalog import load
from gpuprov.cli.lock import command
from gpuprov.errors import Exit, InvalidInput, Refused
from gpuprov.expectations import expectations
from gpuprov.inventory.variables import group_variables
from gpuprov.lab.mirror import nvidia
from gpuprov.lab.mirror.key import signing_key
from gpuprov.lock import Lock, LockedGroup, read_lock, render_lock
from gpuprov.locking import MOVABLE, build_lock, changes

SYSTEMS = ["ubuntu22.04", "ubuntu24.04", "debian12", "debian13", "rhel8", "rhel9", "rhel10"]
LIBRARIES = {"cudnn": "auto", "nccl": "auto"}
# group: system, profile, what is wanted besides NVIDIA's repository
GROUPS = {
    "u22-h200": ("ubuntu22.04", "h200", {"driver": "570.195.03", "cuda": ["12.8", "12.4"], **LIBRARIES}),
    "u22-a100": ("ubuntu22.04", "a100", {"driver": "535.309.01", "module": "proprietary"}),
    "u24-h200": ("ubuntu24.04", "h200", {"driver": "580.126.16", "cuda": "13.0", **LIBRARIES}),
    "u24-a100": ("ubuntu24.04", "a100", {"driver": "590.48.01"}),
    "d12-h200": ("debian12", "h200", {"driver": "580.95.05", "cuda": "13.0.2", **LIBRARIES}),
    "d12-a100": ("debian12", "a100", {"driver": "580.95.05", "module": "proprietary"}),
    "d13-h200": ("debian13", "h200", {"driver": "595.71.05", "cuda": "auto", **LIBRARIES}),
    "d13-a100": ("debian13", "a100", {"driver": 590, "container_toolkit": "1.18", "dcgm": "4.5.2"}),
    "r8-h200": ("rhel8", "h200", {"driver": "570.211.01", "cuda": "12.8", **LIBRARIES}),
    "r8-a100": ("rhel8", "a100", {"driver": "535.309.01", "module": "proprietary"}),
    "r9-h200": ("rhel9", "h200", {"driver": "580.126.16", "cuda": "13.0", **LIBRARIES}),
    "r9-b200": ("rhel9", "b200", {"driver": 580, "cuda": "none", "dcgm": 4}),
    "r10-h200": ("rhel10", "h200", {"driver": "610.57.04", "cuda": "auto", **LIBRARIES}),
    "r10-a100": ("rhel10", "a100", {"driver": "595.91.07", "container_toolkit": "auto"}),
}
PROFILES = {
    "h200": ("H200 SXM", 8),
    "a100": ("A100 PCIe 80GB", 2),
    "b200": ("B200", 8),
    "v100": ("V100 SXM2 32GB", 4),
}

# group: {component: {package: exact version}}, of what was stated or follows from the hardware
PACKAGES: dict[str, dict[str, dict[str, str]]] = {
    "u22-h200": {
        "driver": {"nvidia-open-570": "570.195.03-0ubuntu1"},
        "fabricmanager": {"nvidia-fabricmanager-570": "570.195.03-1"},
        "nscq": {"libnvidia-nscq-570": "570.195.03-1"},
        "cuda": {"cuda-toolkit-12-8": "12.8.2-1", "cuda-toolkit-12-4": "12.4.1-1"},
        "cudnn": dict.fromkeys(
            ("libcudnn9-cuda-12", "libcudnn9-headers-cuda-12", "libcudnn9-dev-cuda-12"), "9.28.0.42-1"
        ),
        "nccl": dict.fromkeys(("libnccl2", "libnccl-dev"), "2.26.5-1+cuda12.2"),
    },
    "u22-a100": {"driver": {"cuda-drivers-535": "535.309.01-0ubuntu1"}},
    "u24-h200": {
        "driver": dict.fromkeys(
            ("nvidia-open", "nvidia-persistenced", "nvidia-driver-pinning-580.126.16"), "580.126.16-1ubuntu1"
        ),
        "fabricmanager": {"nvidia-fabricmanager": "580.126.16-1ubuntu1"},
        "nscq": {"libnvidia-nscq": "580.126.16-1ubuntu1"},
        "cuda": {"cuda-toolkit-13-0": "13.0.3-1"},
        "cudnn": dict.fromkeys(
            ("libcudnn9-cuda-13", "libcudnn9-headers-cuda-13", "libcudnn9-dev-cuda-13"), "9.28.0.42-1"
        ),
        "nccl": dict.fromkeys(("libnccl2", "libnccl-dev"), "2.28.9-1+cuda13.0"),
    },
    "u24-a100": {
        "driver": dict.fromkeys(
            ("nvidia-open", "nvidia-persistenced", "nvidia-driver-pinning-590.48.01"), "590.48.01-0ubuntu1"
        )
    },
    "d12-h200": {
        "driver": dict.fromkeys(
            (
                "nvidia-driver-cuda",
                "nvidia-kernel-open-dkms",
                "nvidia-persistenced",
                "nvidia-driver-pinning-580.95.05",
            ),
            "580.95.05-1",
        ),
        "fabricmanager": {"nvidia-fabricmanager": "580.95.05-1"},
        "nscq": {"libnvidia-nscq": "580.95.05-1"},
        "cuda": {"cuda-toolkit-13-0": "13.0.2-1"},
    },
    "d12-a100": {
        "driver": dict.fromkeys(
            (
                "nvidia-driver-cuda",
                "nvidia-kernel-dkms",
                "nvidia-persistenced",
                "nvidia-driver-pinning-580.95.05",
            ),
            "580.95.05-1",
        )
    },
    "d13-h200": {
        "cuda": {"cuda-toolkit-13-2": "13.2.2-1"},
        "nccl": dict.fromkeys(("libnccl2", "libnccl-dev"), "2.29.7-1+cuda13.2"),
    },
    "d13-a100": {
        "container_toolkit": dict.fromkeys(
            (
                "nvidia-container-toolkit",
                "nvidia-container-toolkit-base",
                "libnvidia-container-tools",
                "libnvidia-container1",
            ),
            "1.18.1-1",
        ),
        "dcgm": dict.fromkeys(
            ("datacenter-gpu-manager-4-core", "datacenter-gpu-manager-4-cuda13"), "1:4.5.2-1"
        ),
    },
    "r8-h200": {
        "driver": dict.fromkeys(
            ("nvidia-driver-cuda", "kmod-nvidia-open-dkms", "nvidia-persistenced"), "3:570.211.01-1.el8"
        ),
        "fabricmanager": {"nvidia-fabric-manager": "570.211.01-1"},
        "nscq": {"libnvidia-nscq-570": "570.211.01-1"},
        "cudnn": dict.fromkeys(("libcudnn9-cuda-12", "libcudnn9-devel-cuda-12"), "9.28.0.42-1"),
        "nccl": dict.fromkeys(("libnccl", "libnccl-devel"), "2.26.5-1+cuda12.2"),
    },
    "r8-a100": {
        "driver": dict.fromkeys(
            ("nvidia-driver-cuda", "kmod-nvidia-latest-dkms", "nvidia-persistenced"), "3:535.309.01-1.el8"
        )
    },
    "r9-h200": {
        "driver": dict.fromkeys(
            ("nvidia-driver-cuda", "kmod-nvidia-open-dkms", "nvidia-persistenced"), "3:580.126.16-1.el9"
        ),
        "fabricmanager": {"nvidia-fabricmanager": "580.126.16-1"},
        "nscq": {"libnvidia-nscq": "580.126.16-1"},
    },
    "r9-b200": {
        "fabricmanager": {"nvidia-fabricmanager": "580.178.04-1"},
        "nvsdm": {"libnvsdm": "580.178.04-1"},
        "nvlsm": {"nvlsm": "2025.10.14-1"},
        "dcgm": dict.fromkeys(
            ("datacenter-gpu-manager-4-core", "datacenter-gpu-manager-4-cuda13"), "1:4.6.0-1"
        ),
    },
    "r10-h200": {
        "driver": dict.fromkeys(
            ("nvidia-driver-cuda", "kmod-nvidia-open-dkms", "nvidia-persistenced"), "3:610.57.04-1.el10"
        ),
        "cuda": {"cuda-toolkit-13-3": "13.3.1-1"},
    },
}
STREAMS = {
    "r8-h200": "nvidia-driver:570-open",
    "r8-a100": "nvidia-driver:535-dkms",
    "r9-h200": "nvidia-driver:580-open",
    "r10-h200": None,
    "u24-h200": None,
}

Write = Callable[..., Path]


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> nvidia.Mirror:
    return nvidia.build(tmp_path_factory.mktemp("mirror"), load(), SYSTEMS)


@pytest.fixture(scope="module")
def fleet(mirror: nvidia.Mirror, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole fleet, as a person writes it."""
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "profiles").mkdir()
    for name, (model, count) in PROFILES.items():
        profile = {"hardware": {"gpu": {"model": model, "count": count}}}
        (folder / "profiles" / f"{name}.yml").write_text(yaml.safe_dump(profile))
    return _written(folder / "fleet.yml", GROUPS, mirror)


@pytest.fixture(scope="module")
def lock(fleet: Path) -> Lock:
    return build_lock(fleet)


@pytest.fixture
def one_group(fleet: Path, mirror: nvidia.Mirror, tmp_path: Path) -> Write:
    """Writes a fleet of one group of 8 x H200 on Ubuntu 24.04 with what is stated."""
    shutil.copytree(fleet.parent / "profiles", tmp_path / "profiles")

    def write(place: nvidia.Mirror = mirror, **stack: object) -> Path:
        return _written(tmp_path / "fleet.yml", {"train": ("ubuntu24.04", "h200", stack)}, place)

    return write


def _written(
    path: Path, groups: dict[str, tuple[str, str, dict[str, object]]], mirror: nvidia.Mirror
) -> Path:
    key = str(mirror.key)
    stated = {
        "groups": {
            name: {
                "profile": profile,
                "hosts": f"{name}-[1-2]",
                "os": system,
                "stack": {"repository": "nvidia", **stack},
            }
            for name, (system, profile, stack) in groups.items()
        },
        "repositories": {
            "nvidia": {"url": mirror.cuda(), "key": key},
            "container-toolkit": {"url": mirror.container_toolkit(), "key": key},
        },
    }
    path.write_text(yaml.safe_dump(stated))
    return path


def _run(fleet: Path, *arguments: str) -> Result:
    return CliRunner().invoke(command, ["--fleet", str(fleet), *arguments], standalone_mode=False)


def _train(fleet: Path) -> LockedGroup:
    return read_lock(fleet.with_name("fleet.lock.yml")).groups["train"]


@pytest.mark.parametrize(
    ("group", "component"), [(group, component) for group, wanted in PACKAGES.items() for component in wanted]
)
def test_names_and_versions_are_the_distributions_own(lock: Lock, group: str, component: str) -> None:
    found = dict(lock.groups[group].components.each())
    assert found[component].packages == PACKAGES[group][component]
    assert found[component].packages.items() <= found[component].closure.items()


@pytest.mark.parametrize(("group", "stream"), STREAMS.items())
def test_module_streams(lock: Lock, group: str, stream: str | None) -> None:
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


def test_a_locked_driver_gives_way_to_other_hardware(one_group: Write) -> None:
    first = build_lock(one_group(driver="595.91.07"))
    fleet = one_group(driver=None)
    assert build_lock(fleet, previous=first).groups["train"].components.driver.version == "595.91.07"
    fleet.write_text(fleet.read_text().replace("profile: h200", "profile: v100"))
    told: list[str] = []
    moved = build_lock(fleet, previous=first, narrate=told.append)
    assert moved.groups["train"].components.driver.branch == 580
    assert any("driver 595.91.07 cannot stay" in line for line in told)


def test_a_newer_revision_is_taken_only_by_upgrade(one_group: Write, tmp_path: Path) -> None:
    def build(*old: str) -> nvidia.Mirror:
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
        ({"cuda": ["12.8", "auto"]}, "one word alone"),
        ({"cuda": []}, "at least 1"),
    ],
)
def test_what_nobody_can_mean(one_group: Write, stack: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        build_lock(one_group(**stack))


def test_components_are_named_only_with_upgrade(one_group: Write) -> None:
    assert isinstance(_run(one_group(), "driver").exception, InvalidInput)
    assert isinstance(_run(one_group(), "--upgrade", "kernel").exception, InvalidInput)

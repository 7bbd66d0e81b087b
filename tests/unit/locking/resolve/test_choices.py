"""Choices for unstated values: mixed hosts, fabric managers, policies, repositories, and the round trip."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from gpuprov.catalog import load
from gpuprov.errors import InvalidInput
from gpuprov.locking.resolve import Request, resolve
from tests.unit.locking.resolve.requests import A100, FED_BACK, H200_BOARD, V100, answer, rules

CATALOG = load()


def test_v100_and_h100_stay_on_580_with_proprietary_modules() -> None:
    stack = answer((V100, "H100 PCIe")).stack
    assert (stack.branch, stack.module) == (580, "proprietary")
    assert stack.cuda is not None
    assert stack.cuda.startswith("12.9")
    assert stack.cudnn == "9.10.2.21"


def test_v100_and_b200_cannot_share_a_host_and_the_answer_says_why() -> None:
    found = answer((V100, "B200"))
    (violation,) = found.violations
    assert "proprietary" in violation.text
    assert V100 in violation.text
    assert "B200" in violation.text


def test_eight_h200_get_a_fabric_manager_equal_to_the_driver() -> None:
    found = answer(H200_BOARD)
    assert found.stack.fabricmanager == found.stack.nscq == found.stack.driver
    assert found.packages["fabricmanager"].version == found.stack.driver


@pytest.mark.parametrize("gpu", ["H200 NVL", "L40S", "GeForce RTX 4090", "H100 PCIe"])
def test_pcie_boards_get_none(gpu: str) -> None:
    found = answer(gpu)
    assert found.stack.fabricmanager == found.stack.nscq == found.stack.imex == "none"
    assert not {"fabricmanager", "nscq", "nvsdm", "nvlsm", "imex"} & set(found.packages)


def test_nvlink5_boards_get_nvlsm_and_superchips_imex() -> None:
    board = answer(("8x B200",))
    assert {"fabricmanager", "nvlsm", "nvsdm"} <= set(board.packages)
    assert board.packages["nvlsm"].unversioned == ("infiniband-diags",)
    rack = answer("GB200")
    assert rack.stack.arch == "aarch64"
    assert (rack.stack.imex, rack.stack.fabricmanager) == (rack.stack.driver, "none")


@pytest.mark.parametrize(
    ("gpus", "verdict", "rule"),
    [
        (("4x NVIDIA H200",), "ok", None),  # a board with four GPUs, or a guest: no switch on its own bus
        (("NVIDIA H200",), "refused", "fabric-manager-missing"),  # a machine of that model
        (("A100-SXM4-80GB",), "warn", "fabric-manager-missing"),  # sold on boards with and without switches
        (("4x A100-SXM4-80GB",), "ok", None),
        (("8x A100-SXM4-80GB",), "refused", "fabric-manager-missing"),
        (("NVIDIA GH200 480GB",), "ok", None),
        (("GB200",), "ok", None),
    ],
)
def test_without_a_fabric_manager(gpus: tuple[str, ...], verdict: str, rule: str | None) -> None:
    found = answer(gpus, fabricmanager="none")
    assert found.verdict == verdict
    assert rule is None or rule in rules((*found.warnings, *found.violations))


def test_a_stated_fabric_manager_decides_the_driver() -> None:
    assert answer(H200_BOARD, fabricmanager="580.95.05").stack.driver == "580.95.05"
    assert answer(H200_BOARD, driver="580", fabricmanager="580.95.05").stack.driver == "580.95.05"


def test_the_order_of_gpus_does_not_matter() -> None:
    gpus = (V100, "H100 PCIe", "L4")
    answers = [answer(order) for order in itertools.permutations(gpus)]
    assert all(each == answers[0] for each in answers)


def test_policies_are_data() -> None:
    """Check the driver branch that each policy of the catalog prefers, and that an unknown one is refused."""
    branches = {name: answer(A100, prefer=name).stack.branch for name in CATALOG.policies}
    assert branches["lts"] == 580
    assert branches["production"] == 595
    newest = max(CATALOG.branches)
    assert branches["newest"] == newest
    with pytest.raises(InvalidInput, match="production"):
        answer(A100, prefer="fastest")


def test_a_stated_library_decides_the_toolkit() -> None:
    assert str(answer(A100, cudnn="8.9.7").stack.cuda).startswith("12.")
    assert str(answer(A100, nccl="2.27.3+cuda12.9").stack.cuda).startswith("12.")
    assert str(answer(A100, cudnn="8.7.0").stack.cuda).startswith("11.")


@pytest.mark.parametrize(
    ("cuda", "driver", "exact"),
    [("12.4", "550.54.14", "12.4.0"), ("12.4", "550.163.01", "12.4.1"), ("12.4.1", "535", "12.4.1")],
)
def test_a_minor_stands_for_its_newest_release_that_is_native(cuda: str, driver: str, exact: str) -> None:
    assert answer(A100, cuda=cuda, driver=driver).stack.cuda == exact


@pytest.mark.parametrize(
    ("gpu", "driver", "module"),
    [(A100, "550", "proprietary"), (A100, "570", "open"), (V100, "570", "proprietary")],
)
def test_modules_are_open_from_560_on_where_the_gpu_allows(gpu: str, driver: str, module: str) -> None:
    assert answer(gpu, driver=driver).stack.module == module


def test_a_branch_without_a_record_stands_for_its_newest_release_with_a_day() -> None:
    found = answer(V100, "ubuntu18.04", driver="440", cuda="11.3")
    assert (found.verdict, str(found.stack.driver)) == ("warn", "440.100")
    assert "driver-known" in rules(found.warnings)
    with pytest.raises(InvalidInput, match=r"440, 450.* or a full version"):
        answer(V100, "ubuntu18.04", driver="441")


def test_a_toolkit_seen_in_the_repository_beats_a_newer_one_that_nobody_saw() -> None:
    assert answer(A100, "debian11", driver="570").stack.cuda == "12.6.3"


def test_a_group_of_releases_stands_for_its_newest_with_a_build() -> None:
    assert answer(A100, cuda="11.8", cudnn="8.9").stack.cudnn == "8.9.6.50"
    assert answer(A100, cuda="12.4", cudnn="8.9").stack.cudnn == "8.9.7.29"


def test_debian_distribution_takes_what_its_archive_holds() -> None:
    old = answer(A100, "debian12", repository="distribution")
    assert (old.stack.driver, old.stack.module) == ("535.309.01", "proprietary")
    assert old.packages["driver"].repository == "debian-security"
    open_flavour = answer(A100, "debian12", repository="distribution", module="open", driver="535.261.03")
    assert open_flavour.packages["driver"].names[0] == "nvidia-open-kernel-dkms"
    assert answer(A100, "debian13", repository="distribution").stack.driver == "550.163.01"
    assert answer("Tesla K80", "debian12", repository="distribution").stack.driver == "470.256.02"


def test_the_container_toolkit_suits_the_systems_own_docker() -> None:
    assert answer(A100, "debian12").stack.container_toolkit == "1.19.0"
    assert answer(A100, "debian13").stack.container_toolkit == "1.20.0"
    assert "docker-cdi" in rules(answer(A100, "debian12", container_toolkit="1.20.0").warnings)
    assert answer(A100, container_toolkit="1.20.0", docker="26.1.0").verdict == "ok"
    assert answer(A100, container_toolkit="1.19.0", docker="19.03").verdict == "ok"


@pytest.mark.parametrize(
    ("system", "podman", "toolkit"),
    [
        ("ubuntu24.04", None, "1.20.0"),
        ("ubuntu24.04", "none", "1.20.0"),
        ("ubuntu24.04", "auto", "1.19.0"),
        ("ubuntu24.04", "5.1.0", "1.20.0"),
        ("ubuntu26.04", "auto", "1.20.0"),
        ("debian13", "auto", "1.20.0"),
        ("debian13", "5.0.3", "1.19.0"),
        ("debian12", "auto", "1.19.0"),
        ("ubuntu20.04", "4.9", "1.19.0"),
    ],
)
def test_the_container_toolkit_suits_podman(system: str, podman: str | None, toolkit: str) -> None:
    found = answer(A100, system, podman=podman)
    assert found.verdict != "refused"
    assert found.stack.container_toolkit == toolkit
    assert ("podman" in found.packages) == (podman not in (None, "none"))


@pytest.mark.parametrize("system", ["ubuntu22.04", "ubuntu20.04"])
def test_podman_without_the_toolkit_needs_no_device_interface(system: str) -> None:
    assert answer(A100, system, podman="auto", container_toolkit="none").verdict != "refused"


def test_kernel_builds_that_nobody_tried_are_a_warning() -> None:
    between = answer(A100, "debian13", driver="550.163.01", module="open", kernel="6.12.100+deb13-amd64")
    assert between.verdict == "warn"
    assert "550.163.01-pci-resize" in rules(between.warnings)
    assert answer(A100, "debian13", driver="550.163.01", kernel="\u0663.\u0661").verdict == "warn"
    good = answer(A100, "debian13", driver="550.163.01", module="open", kernel="6.12.94+deb13-amd64")
    assert answer(A100, "debian13", driver="550.163.01", kernel="6.12.117+deb13-amd64").verdict != "refused"
    assert "550.163.01-pci-resize" in rules(good.reasons)


def test_a_kernel_that_breaks_a_driver_is_refused_from_that_kernel_on() -> None:
    asked = {"driver": "580.119.02", "module": "proprietary"}
    assert "580.119.02-linux-7.0" in rules(
        answer(A100, "ubuntu24.04", **asked, kernel="7.0.9-generic").violations
    )
    for kernel in ("6.8.0-87-generic", "6.14.0-1-generic"):
        before = answer(A100, "ubuntu24.04", **asked, kernel=kernel)
        assert "580.119.02-linux-7.0" not in rules((*before.violations, *before.warnings, *before.reasons))
    unstated = answer(A100, "ubuntu24.04", **asked)
    assert "580.119.02-linux-7.0" in rules(unstated.reasons)
    assert "580.119.02-linux-7.0" not in rules(unstated.warnings)
    other = answer(A100, "ubuntu24.04", driver="580.159.04", kernel="7.0.9-generic")
    assert "580.119.02-linux-7.0" not in rules(other.violations)


@pytest.mark.parametrize(
    ("system", "driver", "kernel", "issue"),
    [
        ("ubuntu24.04", "590.48.01", "6.19.10-061910-generic", "590.48.01-linux-6.19"),
        ("ubuntu26.04", "590.48.01", "7.0.0-31-generic", "590.48.01-linux-6.19"),
        ("rhel9", "575.57.08", "5.14.0-687.12.1.el9_8.x86_64", "575.57.08-rhel-9.8"),
    ],
)
def test_kernels_of_2026_that_break_an_ended_branch_are_refused(
    system: str, driver: str, kernel: str, issue: str
) -> None:
    refused = answer(A100, system, driver=driver, module="open", kernel=kernel)
    assert issue in rules(refused.violations)
    assert "driver" in {each.change for each in refused.nearest}


def test_a_build_of_rhel_s_kernel_counts() -> None:
    older = answer(A100, "rhel9", driver="575.57.08", module="open", kernel="5.14.0-503.26.1.el9_5.x86_64")
    assert "575.57.08-rhel-9.8" in rules(older.warnings)  # no report of it
    assert "575.57.08-rhel-9.8" not in rules(older.violations)
    other = answer(A100, "rhel9", driver="580", module="open", kernel="5.14.0-687.12.1.el9_8.x86_64")
    assert other.verdict != "refused"


def test_debian_s_number_of_a_kernel_s_build_counts() -> None:
    issue = "525.125.06-debian-6.1.0-18"
    refused = answer(A100, "debian12", driver="525.125.06", module="proprietary", kernel="6.1.0-18-amd64")
    assert issue in rules(refused.violations)
    older = answer(A100, "debian12", driver="525.125.06", module="proprietary", kernel="6.1.0-13-amd64")
    assert issue in rules(older.warnings)  # no report of it
    assert issue not in rules(older.violations)


def test_a_symbol_that_the_kernel_keeps_for_the_gpl_concerns_the_proprietary_module_alone() -> None:
    for kernel, fails in (("6.7.3-1-generic", True), ("6.7.2-1-generic", False), ("6.6.15-1", True)):
        found = answer(A100, "ubuntu22.04", driver="535.154.05", module="proprietary", kernel=kernel)
        assert ("535.154.05-linux-6.7" in rules(found.violations)) is fails
        opened = answer(A100, "ubuntu22.04", driver="535.154.05", module="open", kernel=kernel)
        assert "535.154.05-linux-6.7" not in rules(opened.violations) | rules(opened.warnings)


@pytest.mark.parametrize(
    ("system", "driver", "kernel", "issue"),
    [
        ("ubuntu24.04", "560.28.03", "6.12.1-1-amd64", "560.35.03-linux-6.12"),
        ("ubuntu22.04", "530.30.02", "6.4.0-1-generic", "530.41.03-linux-6.4"),
        ("rhel9", "575.51.03", "5.14.0-687.12.1.el9_8.x86_64", "575.57.08-rhel-9.8"),
    ],
)
def test_a_driver_whose_branch_fails_later_on_the_kernel_is_a_warning(
    system: str, driver: str, kernel: str, issue: str
) -> None:
    found = answer(A100, system, driver=driver, module="open", kernel=kernel)
    [text] = [each.text for each in found.warnings if each.rule == issue]
    assert "a later release of its branch" in text
    assert issue not in rules(found.violations)
    older = answer(A100, system, driver=driver, module="open", kernel="5.10.0-1-generic")
    assert issue not in rules(older.warnings)


def test_a_failure_on_a_kernel_says_nothing_of_newer_releases_and_other_branches() -> None:
    for driver in ("580.159.04", "570.211.01"):
        found = answer(A100, "ubuntu24.04", driver=driver, module="proprietary", kernel="6.15.0-1-generic")
        assert not {each for each in rules(found.warnings) if "linux-6.15" in each}


def test_a_withdrawn_driver_is_refused_and_never_chosen(tmp_path: Path) -> None:
    newest = str(answer(A100, "ubuntu24.04").stack.driver)
    issue = {
        "id": f"withdrawn-{newest}",
        "kind": "withdrawn",
        "drivers": [newest],
        "condition": "gone from the vendor's repositories on 2026-12-01",
        "effect": "GPUs stay at their lowest clocks",
        "remedy": "an older release of the branch",
        "source": ["own"],
    }
    text = {
        "known_issues": [issue],
        "sources": {"own": {"title": "the vendor's page", "dated": "2026-12-01"}},
    }
    (tmp_path / "drivers.json").write_text(json.dumps(text))
    catalog = load([tmp_path])
    stated = resolve(Request(gpus=(A100,), os="ubuntu24.04", driver=newest), catalog)
    assert stated.verdict == "refused"
    assert [each.text for each in stated.violations if each.rule == issue["id"]] == [
        f"driver {newest} was withdrawn (gone from the vendor's repositories on 2026-12-01): "
        "GPUs stay at their lowest clocks; an older release of the branch"
    ]
    free = resolve(Request(gpus=(A100,), os="ubuntu24.04"), catalog)
    assert free.verdict != "refused"
    assert str(free.stack.driver) != newest


@pytest.mark.parametrize("system", CATALOG.systems)
def test_feeding_a_chosen_stack_back_gives_the_same_stack(system: str) -> None:
    seen: dict[str, str] = {}
    for gpu in CATALOG.gpus:
        if seen.setdefault(f"{gpu.architecture} {gpu.form_factor} {gpu.segment}", gpu.id) != gpu.id:
            continue
        first = resolve(Request(gpus=(gpu.id,), os=system), CATALOG)
        if first.verdict == "refused":
            assert all(finding.source for finding in first.violations)
            continue
        stated = {name: getattr(first.stack, name) for name in FED_BACK}
        second = resolve(Request(gpus=(gpu.id,), os=system, arch=first.stack.arch, **stated), CATALOG)
        assert (second.verdict, second.stack) == (first.verdict, first.stack)


def test_precompiled_modules_are_the_distributions() -> None:
    found = answer("A100 PCIe 80GB", os="ubuntu24.04", driver="580", module_build="precompiled")
    assert (found.stack.repository, found.stack.module_build) == ("distribution", "precompiled")
    assert found.packages["driver"].module == "linux-modules-nvidia-580-server-open-generic"
    assert not any("nvidia-dkms" in name for name in found.packages["driver"].names)


def test_precompiled_modules_are_named_after_the_kernels_flavour() -> None:
    found = answer("A100 PCIe 80GB", os="ubuntu24.04", kernel="6.8.0-1031-aws", module_build="precompiled")
    assert (found.packages["driver"].module or "").endswith("-aws")


@pytest.mark.parametrize("stated", [{"os": "debian12"}, {"os": "ubuntu24.04", "repository": "nvidia"}])
def test_where_nobody_compiles_modules_they_are_compiled_on_the_machine(stated: dict[str, str]) -> None:
    found = answer("A100 PCIe 80GB", module_build="precompiled", **stated)
    assert "module-precompiled" in rules(found.violations)
    assert "module_build" in {each.change for each in found.nearest}


def test_nccl_for_a_newer_minor_of_the_driver_s_major_is_a_warning() -> None:
    seen = answer(A100, driver="580", nccl="2.30.7-1+cuda13.3")
    (warning,) = (each for each in seen.warnings if each.rule == "nccl-driver")
    assert "cuLinkAddData error 209" in warning.text
    assert "cuda-compat-13-3" in warning.text
    newer = answer(A100, driver="580", nccl="2.30.4+cuda13.2")
    assert "nccl-driver" in rules(newer.warnings)
    assert "nccl-driver" not in rules(answer(A100, driver="610", nccl="2.30.7-1+cuda13.3").warnings)
    assert {seen.verdict, newer.verdict} == {"warn"}


def test_nccl_for_the_major_before_works_beside_a_newer_toolkit_on_a_driver_that_knows_both() -> None:
    found = answer(A100, driver="580", cuda="13.0", nccl="2.27.3+cuda12.9")
    assert found.violations == ()
    (warning,) = (each for each in found.warnings if each.rule == "nccl-cuda-major")
    assert "programs that bring CUDA 12 with them" in warning.text
    assert found.packages["nccl"].version == "2.27.3-*+cuda12.9"
    older = answer(A100, driver="570", cuda="13.0", nccl="2.27.3+cuda12.9")
    assert "nccl-cuda-major" in rules(older.violations)
    two_before = answer(A100, driver="580", cuda="13.0", nccl="2.21.5+cuda11.0")
    assert "nccl-cuda-major" in rules(two_before.violations)


def test_a_driver_that_no_list_has_is_unknown_not_impossible() -> None:
    found = answer(A100, "rhel9", driver="595.91.97")
    assert found.verdict == "warn"
    (warning,) = (each for each in found.warnings if each.rule == "driver-known")
    assert "595.91.97 is unknown" in warning.text
    assert "595.91.07" in warning.text


@pytest.mark.parametrize(
    ("gpu", "os", "driver", "repository", "package"),
    [
        ("Tesla K80", "ubuntu24.04", "470.256.02", "ubuntu", "nvidia-dkms-470-server"),
        ("Tesla K80", "ubuntu22.04", "470.256.02", "ubuntu", "nvidia-dkms-470-server"),
        ("Tesla K80", "debian12", "470.256.02", "debian", "nvidia-tesla-470-kernel-dkms"),
        ("GRID K1", "ubuntu20.04", "340.108", "ubuntu", "nvidia-340"),
        ("Tesla P40", "ubuntu24.04", "580.178.04", "nvidia", "cuda-drivers"),
    ],
)
def test_old_gpus_take_the_last_branch_from_where_it_still_is(
    gpu: str, os: str, driver: str, repository: str, package: str
) -> None:
    found = answer(gpu, os)
    assert found.stack.driver == driver
    assert found.packages["driver"].repository == repository
    assert package in found.packages["driver"].names


@pytest.mark.parametrize(
    ("os", "driver", "package"),
    [
        ("ubuntu22.04", "390", "nvidia-dkms-390"),
        ("ubuntu22.04", "418", "nvidia-dkms-418-server"),
        ("ubuntu20.04", "450", "cuda-drivers-450"),
        ("debian11", "418.226.00", "nvidia-tesla-418-kernel-dkms"),
        ("debian11", "390", "nvidia-legacy-390xx-kernel-dkms"),
    ],
)
def test_legacy_branches_by_name(os: str, driver: str, package: str) -> None:
    found = answer("Tesla K80", os, driver=driver)
    assert found.violations == ()
    assert package in found.packages["driver"].names
    assert found.stack.dcgm == ("4" if driver == "450" else "none")


def test_an_old_gpu_is_refused_where_no_repository_has_its_last_branch() -> None:
    assert rules(answer("Tesla K80", "debian13").violations) == {"driver-on-os"}
    assert rules(answer("GRID K2", "rhel9").violations) == {"gpu-driver"}


def test_a_build_of_nccl_that_a_systems_repository_lacks_is_not_chosen() -> None:
    on = {
        system: answer(V100, system, driver="535", nccl="2.19.3").stack
        for system in ("ubuntu20.04", "ubuntu22.04")
    }
    assert {system: stack.nccl for system, stack in on.items()} == {
        "ubuntu20.04": "2.19.3+cuda12.2",
        "ubuntu22.04": "2.19.3+cuda12.2",
    }
    older = {system: answer(V100, system, driver="525", nccl="2.19.3").stack.nccl for system in on}
    assert older == {"ubuntu20.04": "2.19.3+cuda12.0", "ubuntu22.04": "2.19.3"}


@pytest.mark.parametrize(
    ("driver", "cuda", "verdict"),
    [
        ("375.26", "9.0", "refused"),
        ("384.81", "9.0", "native"),  # its branch has no record: the release notes of CUDA say it
        ("367.48", "8.0", "native"),
        ("367.48", "8.0.61", "warned"),  # that of 8.0 runs it, and the notes name 375.26
        ("367.35", "8.0.61", "refused"),
        ("390.25", "9.1", "warned"),  # the notes name 390.46, and its own runfile has 387.26
        ("384.81", "9.1", "refused"),
        ("418.87.00", "10.2", "refused"),
    ],
)
def test_a_cuda_release_before_11_has_its_own_lowest_driver(driver: str, cuda: str, verdict: str) -> None:
    found = answer("GeForce GTX 1080", "ubuntu18.04", driver=driver, cuda=cuda)
    by_rule = {
        "refused": {"cuda-driver", "cuda-driver-unknown"} & rules(found.violations),
        "warned": {"cuda-driver", "cuda-driver-unknown"} & rules(found.warnings),
    }
    assert {kind: names for kind, names in by_rule.items() if names} == (
        {} if verdict == "native" else {verdict: {"cuda-driver"}}
    )


def test_before_cuda_11_a_compat_package_may_help_data_centre_gpus_unless_it_is_excluded() -> None:
    """Check CUDA itself and that of a wheel; before CUDA 10 there is no package."""
    on = {"driver": "418.87.00"}
    assert "cuda-driver" in rules(answer(V100, "ubuntu18.04", cuda="10.2", **on).warnings)
    assert "framework-driver" in rules(answer(V100, "ubuntu18.04", framework="torch==1.7.1", **on).warnings)
    [text] = [
        each.text
        for each in answer(V100, "ubuntu18.04", cuda="10.2", compat="none", **on).violations
        if each.rule == "cuda-driver"
    ]
    assert "needs driver 440.33 or newer, or a compat package" in text
    wheel = answer(V100, "ubuntu18.04", framework="torch==1.7.1", compat="none", **on)
    assert "framework-driver" in rules(wheel.violations)
    older = answer(V100, "ubuntu18.04", driver="375.26", cuda="9.0")
    assert "cuda-driver" in rules(older.violations)

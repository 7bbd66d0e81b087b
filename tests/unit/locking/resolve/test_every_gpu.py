"""GPUs of the catalog: each has a stack on every system with a driver for it, and a named rule elsewhere."""

from __future__ import annotations

import pytest

from gpuprov.catalog import load
from gpuprov.catalog.records import GpuModel
from gpuprov.locking.resolve import Request, resolve
from gpuprov.locking.resolve.checks.mends import documented
from tests.unit.locking.resolve.requests import answer, rules

CATALOG = load()
CURRENT = ("ubuntu22.04", "ubuntu24.04", "debian12", "rhel8", "rhel9", "rhel10", "amzn2023", "azl3")


def kinds() -> list[GpuModel]:
    """Return one GPU for each combination of values that rules distinguish."""
    kinds = {
        (gpu.compute_capability, gpu.segment, gpu.superchip, gpu.max_driver_branch): gpu
        for gpu in CATALOG.gpus
    }
    return list(kinds.values())


def test_the_catalog_has_every_device_that_lists_name() -> None:
    devices = {device for gpu in CATALOG.gpus for device in gpu.pci_device_ids}
    fermi = {device for gpu in CATALOG.gpus if gpu.architecture == "Fermi" for device in gpu.pci_device_ids}
    assert len(devices - fermi) == 587 + 164 + len(("3041", "307F"))  # on Vera Rubin trays, in no list
    assert len({device for gpu in CATALOG.gpus for device in gpu.first_listed} - fermi) == 587
    assert len(fermi) == 117


def test_every_device_id_resolves_or_is_refused_by_a_documented_rule() -> None:
    fermi = {device for gpu in CATALOG.gpus if gpu.architecture == "Fermi" for device in gpu.pci_device_ids}
    for device in sorted({device for gpu in CATALOG.gpus for device in gpu.pci_device_ids}):
        found = resolve(Request(gpus=(f"10de:{device}",), os="ubuntu24.04"), CATALOG)
        ends_before_all = found.gpus[0] in ("GRID K1", "GRID K2", "GRID K340") or device in fermi
        assert (found.verdict == "refused") == ends_before_all, device
        assert rules(found.violations) == ({"gpu-driver"} if ends_before_all else set())


@pytest.mark.parametrize("gpu", kinds(), ids=lambda gpu: gpu.id)
def test_every_kind_on_every_system(gpu: GpuModel) -> None:
    arch = "aarch64" if gpu.superchip else "x86_64"
    for system in CATALOG.systems.values():
        found = resolve(Request(gpus=(gpu.id,), os=system.id), CATALOG)
        assert all(documented(finding.rule) for finding in found.violations)
        if system.id in CURRENT and arch in system.arch and gpu.max_driver_branch in (None, 580):
            assert found.verdict != "refused", system.id


@pytest.mark.parametrize(
    ("gpu", "os", "driver", "module"),
    [
        ("GTX 1080", "ubuntu22.04", 580, "proprietary"),
        ("RTX 3060 Laptop GPU", "ubuntu24.04", 595, "open"),
        ("RTX PRO 4500 Blackwell", "rhel9", 595, "open"),
        ("GeForce GTX 680", "debian12", 470, "proprietary"),
        ("Tesla M60", "debian12", 580, "proprietary"),
        ("TITAN V", "rhel9", 580, "proprietary"),
    ],
)
def test_what_a_person_has_at_home_or_in_an_old_rack(gpu: str, os: str, driver: int, module: str) -> None:
    stack = answer(gpu, os).stack
    assert (stack.branch, stack.module) == (driver, module)


def test_a_dgx_spark_takes_open_modules_and_the_packages_of_arm_servers() -> None:
    found = answer("DGX Spark", "ubuntu24.04")
    assert (found.stack.arch, found.stack.module, found.stack.fabricmanager) == ("aarch64", "open", "none")
    assert found.verdict != "refused"
    assert rules(answer("GB10", "ubuntu24.04", module="proprietary").violations) == {"module-flavour"}
    assert rules(answer("GB10", "ubuntu24.04", arch="x86_64").violations) == {"superchip-arch"}


def test_only_boards_of_servers_take_a_forward_compatibility_package() -> None:
    for gpu in ("RTX 3060 Laptop GPU", "GeForce RTX 4070", "CMP 50HX", "RTX A5000 Laptop GPU"):
        refused = answer(gpu, driver="570", cuda="13.0")
        assert rules(refused.violations) == {"cuda-driver"}
    assert answer("H800 PCIe", driver="570", cuda="13.0").stack.compat == "13.0"
    assert "forward-compat-gpu" in rules(answer("RTX A5000", driver="570", cuda="13.0").warnings)


def test_a_device_that_one_list_lacks_is_never_refused() -> None:
    late = answer("10de:2f06", "ubuntu24.04", driver="580")  # an RTX 5060, first listed by 595.91.07
    assert late.violations == ()
    assert "gpu-driver-unproven" in rules(late.warnings)
    by_name = answer("GeForce RTX 5060", "ubuntu24.04", driver="580")
    assert by_name.verdict == "ok"
    assert "gpu-devices" in rules(by_name.reasons)
    assert rules(answer("RTX 5090", "ubuntu24.04", driver="550").violations) == {
        "gpu-driver"
    }  # the branch is older than CUDA 12.8


def test_branches_that_learned_of_a_gpu_late_or_never_are_unproven() -> None:
    assert "gpu-driver-unproven" in rules(answer("RTX PRO 5000 Blackwell", driver="575.51.03").warnings)
    assert "gpu-driver-unproven" in rules(answer("RTX PRO 2000 Blackwell", driver="575.64.05").warnings)
    assert "gpu-driver-unproven" not in rules(answer("RTX PRO 5000 Blackwell", driver="575.64.05").warnings)


@pytest.mark.parametrize(
    ("gpu", "before", "first"),
    [
        ("L40S", "535.54.03", "535.104.05"),
        ("H200 SXM", "550.54.14", "550.90.07"),
        ("H100 NVL", "535.98", "535.104.05"),
        ("L20", "535.54.03", "535.154.05"),
        ("RTX PRO 4500 Blackwell Server Edition", "580.95.05", "580.142"),
        ("B300", "580.65.06", "580.82.07"),
    ],
)
def test_a_board_s_first_driver_inside_a_branch_is_warned_of(gpu: str, before: str, first: str) -> None:
    assert "gpu-driver-unproven" in rules(answer(gpu, driver=before).warnings)
    assert "gpu-driver-unproven" not in rules(answer(gpu, driver=first).warnings)
    if gpu == "L40S":
        (text,) = [
            each.text for each in answer(gpu, driver=before).warnings if each.rule == "gpu-driver-unproven"
        ]
        assert text == (
            "L40S is first listed by 535.104.05; 535.98 does not list it, and 535.54.03 is not newer"
        )


def test_a_driver_before_all_lists_that_were_read_is_no_finding() -> None:
    assert "gpu-driver-unproven" not in rules(answer("A100 SXM4 80GB", driver="450.80.02").warnings)


def test_a_guessed_gpu_is_said_to_be_one() -> None:
    guessed = answer("10de:2b8d", "ubuntu24.04")
    assert guessed.verdict == "warn"
    assert "gpu-guessed" in rules(guessed.warnings)
    assert guessed.stack.module == "open"


def test_what_only_pci_ids_names_is_unproven_on_every_driver() -> None:
    assert "gpu-driver-unproven" in rules(answer("Tesla M10").warnings)


@pytest.mark.parametrize(("gpu", "said"), [("2x RTX 4090", True), ("2x RTX 3090", True), ("RTX 4090", False)])
def test_several_consumer_boards_are_said_to_have_no_peer_to_peer(gpu: str, said: bool) -> None:
    assert ("gpu-peer" in rules(answer(gpu).reasons)) == said
    assert "gpu-peer" not in rules(answer("2x L40S").reasons)


def test_a_board_of_eight_b200_refuses_what_its_vendor_does_not_support() -> None:
    assert rules(answer("8x B200", driver="570.124.06").violations) == {"gpu-driver"}
    assert answer("8x B200", driver="570.133.20").violations == ()
    assert answer("8x B200", driver="570.124.06").nearest
    assert "gpu-driver-advised" in rules(answer("1x B200", driver="570.124.06").warnings)


def test_the_lowest_branch_of_old_boards_is_that_of_the_lists() -> None:
    lowest = {name: CATALOG.gpu(name).min_driver_branch for name in OLD}  # type: ignore[union-attr]
    assert lowest == OLD


OLD = {
    "Tesla K80": 352,
    "Tesla P40": 375,
    "Tesla P100 SXM2": 375,
    "Tesla V100 SXM2 16GB": 384,
    "Tesla V100 SXM2 32GB": 390,
    "Tesla V100 SXM3 32GB": 410,
    "GeForce RTX 4090": 520,
}


def test_a_stack_carries_the_doubts_of_what_it_rests_on() -> None:
    def doubted(found: object) -> list[str]:
        return [reason.text for reason in found.reasons if reason.rule == "doubt"]  # type: ignore[attr-defined]

    assert any("device 2909" in text for text in doubted(answer("B200", driver="580")))
    assert not any("device 2909" in text for text in doubted(answer("B200", driver="595.91.07")))
    assert any(
        text.startswith("driver branch 580: NVIDIA's table says")
        for text in doubted(answer("L4", driver="580"))
    )
    assert any("418" in text for text in doubted(answer("Quadro K2100M", "debian12")))
    assert doubted(answer("L4", "rhel9", driver="595")) == []


def test_a_gpu_that_may_take_a_forward_compatibility_package_gets_it_with_a_warning() -> None:
    found = answer("RTX A6000", driver="570", cuda="13.0")
    assert "forward-compat-gpu" in rules(found.warnings)
    assert (found.stack.compat, "compat" in found.packages) == ("13.0", True)

"""Names in, records out: exactly, or with the candidates."""

from __future__ import annotations

import pytest

from gpuprov.catalog import load
from gpuprov.catalog.identity import counted, driver_text, find_arch, find_gpu, find_system, library_text
from gpuprov.errors import InvalidInput

CATALOG = load()


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("NVIDIA H200", "H200 SXM"),
        ("H200", "H200 SXM"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("L4", "L4"),
        ("l40s", "L40S"),
        ("NVIDIA L40", "L40"),
        ("Tesla V100-SXM2-16GB", "Tesla V100 SXM2 16GB"),
        ("H100-SXM5-80GB", "H100 SXM5 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM5 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("T4", "Tesla T4"),
        ("rtx4090", "GeForce RTX 4090"),
        ("HGX H100", "H100 SXM5 80GB"),
        ("10de:2330", "H100 SXM5 80GB"),
        ("10DE:27B8", "L4"),
        ("2335", "H200 SXM"),
        ("0x233010DE", "H100 SXM5 80GB"),
        ("25B6/10DE:157E", "A2"),
        ("GeForce RTX 3080", "GeForce RTX 3080"),
    ],
)
def test_gpu(name: str, gpu: str) -> None:
    assert find_gpu(CATALOG, name).id == gpu


def test_every_record_is_found_by_its_own_names_or_says_who_shares_them() -> None:
    for gpu in CATALOG.gpus:
        assert find_gpu(CATALOG, gpu.id) is gpu
        for name in (gpu.nvidia_smi_name, *gpu.pci_device_ids):
            sharing = [
                other for other in CATALOG.gpus if name in (other.nvidia_smi_name, *other.pci_device_ids)
            ]
            if sharing == [gpu]:
                assert find_gpu(CATALOG, name) is gpu
            else:
                with pytest.raises(InvalidInput, match=rf"ambiguous.*{gpu.id}"):
                    find_gpu(CATALOG, name)


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("V100", ["Tesla V100 SXM2 16GB", "Tesla V100 SXM3 32GB"]),
        ("H100", ["H100 PCIe", "H100 SXM5 80GB", "H100 NVL"]),
        ("GH200", ["GH200 96GB", "GH200 144GB"]),
        ("25b6", ["A16", "A2"]),
    ],
)
def test_ambiguous_names_list_the_candidates(name: str, candidates: list[str]) -> None:
    with pytest.raises(InvalidInput, match="ambiguous") as caught:
        find_gpu(CATALOG, name)
    assert all(candidate in str(caught.value) for candidate in candidates)
    assert "H200 SXM" not in str(caught.value)


@pytest.mark.parametrize("name", ["H300", "FFFF", "", "L", "NVIDIA", "RTX 9999", "H100 PCIe 80GB 8-GPU"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        find_gpu(CATALOG, name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8x NVIDIA H200", (8, "NVIDIA H200")),
        ("4 X L4", (4, "L4")),
        ("8xH200", (8, "H200")),
        ("0x2335", (None, "0x2335")),
        ("L40S", (None, "L40S")),
    ],
)
def test_counts(text: str, expected: tuple[int | None, str]) -> None:
    assert counted(text) == expected


@pytest.mark.parametrize(
    ("name", "system"),
    [
        ("ubuntu22.04", "ubuntu22.04"),
        ("Ubuntu 22.04.3 LTS", "ubuntu22.04"),
        ("ubuntu-24.04", "ubuntu24.04"),
        ("ubuntu2404", "ubuntu24.04"),
        ("noble", "ubuntu24.04"),
        ("debian 12.5", "debian12"),
        ("bookworm", "debian12"),
        ("Debian GNU/Linux 13", "debian13"),
        ("rhel 9.4", "rhel9"),
        ("Red Hat Enterprise Linux 8.10", "rhel8"),
        ("rocky9.4", "rhel9"),
        ("almalinux8", "rhel8"),
        ("Oracle Linux 9", "rhel9"),
        ("centos-stream9", "rhel9"),
        ("centos7", "rhel7"),
        ("al2023", "amzn2023"),
        ("amzn2023", "amzn2023"),
        ("Amazon Linux 2023", "amzn2023"),
        ("sles15", "sles15"),
        ("SLES 15 SP6", "sles15"),
        ("opensuse", "opensuse15"),
        ("opensuse-leap-15.6", "opensuse15"),
        ("fedora", "fedora44"),
        ("fedora42", "fedora42"),
        ("kylin", "kylin11"),
        ("KylinOS V10", "kylin10"),
        ("azl3", "azl3"),
        ("Azure Linux 3.0", "azl3"),
    ],
)
def test_system(name: str, system: str) -> None:
    found = find_system(CATALOG, name)
    assert found is not None
    assert found.id == system


@pytest.mark.parametrize("name", ["ubuntu23.10", "fedora41", "debian14", "windows11", "alpine3.19", "amzn2"])
def test_systems_that_nobody_serves_are_understood(name: str) -> None:
    assert find_system(CATALOG, name) is None


@pytest.mark.parametrize("name", ["ubunut22.04", "", "ubuntu", "templeos", "9.4"])
def test_unknown_systems_list_what_is_near(name: str) -> None:
    with pytest.raises(InvalidInput, match="expected one of"):
        find_system(CATALOG, name)


def test_architectures() -> None:
    assert {find_arch(name) for name in ("x86_64", "amd64", "X86-64")} == {"x86_64"}
    assert {find_arch(name) for name in ("aarch64", "arm64", "sbsa", "arm64-sbsa")} == {"aarch64"}
    assert find_arch("ppc64le") == "ppc64le"
    with pytest.raises(InvalidInput):
        find_arch("z80")


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        ("580", "580"),
        ("R570", "570"),
        ("3:580.95.05-1.el9", "580.95.05"),
        ("570.86.15-0ubuntu1", "570.86.15"),
    ],
)
def test_driver_versions(text: str, driver: str) -> None:
    assert driver_text(text) == driver


@pytest.mark.parametrize("text", ["", "latest", "5 80", "580.", "-1", "9" * 30])
def test_what_is_no_driver_version(text: str) -> None:
    with pytest.raises(InvalidInput):
        driver_text(text)


def test_library_versions() -> None:
    assert library_text("nccl", "2.27.3-1+cuda12.9") == "2.27.3"
    assert library_text("container_toolkit", "v1.17.8-1") == "1.17.8"

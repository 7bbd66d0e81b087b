"""Package names by branch, system and repository."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from gpuprov.catalog import load
from tests.unit.locking.resolve.requests import A100, H200_BOARD, V100, answer

DEBIAN_OPEN = ["nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-persistenced"]
DEBIAN_PROPRIETARY = ["nvidia-driver-cuda", "nvidia-kernel-dkms", "nvidia-persistenced"]
DNF_OPEN = ["nvidia-driver-cuda", "kmod-nvidia-open-dkms", "nvidia-persistenced"]
DNF_PROPRIETARY = ["nvidia-driver-cuda", "kmod-nvidia-latest-dkms", "nvidia-persistenced"]
PIN_580 = "nvidia-driver-pinning-580.95.05"
PIN_595 = "nvidia-driver-pinning-595.91.07"


@pytest.mark.parametrize(
    ("os", "driver", "module", "names", "pin", "stream"),
    [
        ("ubuntu22.04", "570.211.01", "open", ["nvidia-open-570"], [], None),
        ("ubuntu22.04", "535.309.01", "proprietary", ["cuda-drivers-535"], [], None),
        ("ubuntu24.04", "580.95.05", "open", ["nvidia-open", "nvidia-persistenced"], [PIN_580], None),
        ("ubuntu24.04", "595.91.07", "proprietary", ["cuda-drivers", "nvidia-persistenced"], [PIN_595], None),
        ("debian12", "580.95.05", "open", DEBIAN_OPEN, [PIN_580], None),
        ("debian13", "595.91.07", "proprietary", DEBIAN_PROPRIETARY, [PIN_595], None),
        ("rhel8", "570.211.01", "open", DNF_OPEN, [], "nvidia-driver:570-open"),
        ("rocky9.4", "580.95.05", "proprietary", DNF_PROPRIETARY, [], "nvidia-driver:580-dkms"),
        ("amzn2023", "595.91.07", "open", DNF_OPEN, [], "nvidia-driver:595-open"),
        ("rhel10", "595.91.07", "open", DNF_OPEN, ["*nvidia*595.91.07*"], None),
    ],
)
def test_driver(
    os: str, driver: str, module: str, names: list[str], pin: list[str], stream: str | None
) -> None:
    """Check names, pins, stream and version of the driver's packages."""
    packages = answer(A100, os, driver=driver, module=module).packages["driver"]
    assert list(packages.names) == names
    assert (list(packages.pin), packages.stream, packages.version) == (pin, stream, driver)
    assert packages.repository == "nvidia"


@pytest.mark.parametrize(
    ("os", "driver", "name"),
    [
        ("ubuntu22.04", "570.211.01", "nvidia-fabricmanager-570"),
        ("ubuntu22.04", "580.95.05", "nvidia-fabricmanager"),
        ("rhel9", "570.211.01", "nvidia-fabric-manager"),
        ("rhel9", "580.95.05", "nvidia-fabricmanager"),
    ],
)
def test_fabric_manager(os: str, driver: str, name: str) -> None:
    """Check name and version of the fabric manager's package for a driver."""
    packages = answer(H200_BOARD, os, driver=driver).packages["fabricmanager"]
    assert packages.names == (name,)
    assert packages.version == driver


def test_debians_archive_roots() -> None:
    """Check the driver's packages in Debian's own archive."""
    packages = answer(A100, "debian12", repository="distribution").packages["driver"]
    assert {"nvidia-kernel-dkms", "nvidia-smi", "libcuda1", "libnvidia-ml1", "firmware-nvidia-gsp"} <= set(
        packages.names
    )
    assert packages.unversioned == ("nvidia-modprobe", "nvidia-persistenced")
    tesla = answer("Tesla K80", "debian12", driver="470.256.02").packages["driver"]
    assert tesla.names[0] == "nvidia-tesla-470-kernel-dkms"


def test_libraries() -> None:
    """Check the packages of CUDA, cuDNN and NCCL for stated versions."""
    packages = answer(A100, cuda="12.8.1", cudnn="9.10.2.21", nccl="2.26.2+cuda12.8").packages
    assert packages["cuda"].names == ("cuda-toolkit-12-8",)
    assert packages["cuda"].version == "12.8.1"
    assert packages["cudnn"].names[0] == "libcudnn9-cuda-12"
    assert fnmatchcase("9.10.2.21-1", str(packages["cudnn"].version))
    assert fnmatchcase("2.26.2-1+cuda12.8", str(packages["nccl"].version))
    old = answer(A100, cuda="11.8", cudnn="8.9.6").packages["cudnn"]
    assert old.names == ("libcudnn8", "libcudnn8-dev")
    assert fnmatchcase("8.9.6.50-1+cuda11.8", str(old.version))


def test_dcgm_takes_the_driver_s_major_and_cuda12_for_gpus_that_13_dropped() -> None:
    assert answer(A100).packages["dcgm"].names[1:] == ("datacenter-gpu-manager-4-cuda13",)
    assert set(answer(V100).packages["dcgm"].names[1:]) == {
        "datacenter-gpu-manager-4-cuda12",
        "datacenter-gpu-manager-4-cuda13",
    }


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("nvidia-kernel-dkms", True),
        ("libnvidia-ml1", True),
        ("libcuda1", True),
        ("nvidia-persistenced", True),
        ("firmware-nvidia-gsp", True),
        ("nvidia-container-toolkit", False),
        ("libnvidia-container1", False),
        ("nvidia-cuda-toolkit", False),
        ("linux-image-amd64", False),
    ],
)
def test_what_belongs_to_the_driver(name: str, held: bool) -> None:
    patterns = load().hold_patterns("driver", "apt")
    excluded = any(fnmatchcase(name, pattern[1:]) for pattern in patterns if pattern.startswith("!"))
    matched = any(fnmatchcase(name, pattern) for pattern in patterns if not pattern.startswith("!"))
    assert (matched and not excluded) is held


def test_a_compat_package_where_it_is_needed() -> None:
    assert answer(A100, driver="570", cuda="13.0").packages["compat"].names == ("cuda-compat-13-0",)
    assert "compat" not in answer(A100, driver="580", cuda="13.0").packages

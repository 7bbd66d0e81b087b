"""Combinations that a vendor publishes as a set, which are never refused."""

from __future__ import annotations

import pytest

from gpuprov.catalog import load
from tests.unit.locking.resolve.requests import A100, H100_BOARD, H200_BOARD, V100, answer, rules

CATALOG = load()


def _bundles() -> list[tuple[str, str]]:
    """Return each released CUDA toolkit with the driver that NVIDIA bundles with it."""
    return [
        (str(toolkit.version), str(toolkit.driver_bundled_linux_x86_64))
        for toolkit in CATALOG.released_toolkits
        if toolkit.driver_bundled_linux_x86_64
    ]


@pytest.mark.parametrize(("cuda", "driver"), _bundles())
@pytest.mark.parametrize("gpu", [A100, "Tesla T4"])
def test_driver_and_toolkit_of_one_runfile(cuda: str, driver: str, gpu: str) -> None:
    assert answer(gpu, "rhel8", driver=driver, cuda=cuda).verdict != "refused"


@pytest.mark.parametrize(
    "wheel", [w for w in CATALOG.tables["frameworks.pytorch_wheels"] if w.cuda], ids=lambda w: str(w.version)
)
def test_pytorch_wheels_on_their_own_floor_and_native_branch(wheel: object) -> None:
    for driver in (wheel.min_driver_minor_compat, wheel.native_driver_branch):  # type: ignore[attr-defined]
        stated = {name: getattr(wheel, name) for name in ("cuda", "cudnn", "nccl")}
        texts = {name: str(value) for name, value in stated.items() if value}
        found = answer(A100, driver=str(driver), framework=f"torch=={wheel.version}", **texts)  # type: ignore[attr-defined]
        assert found.violations == ()


@pytest.mark.parametrize(
    "row", CATALOG.tables["frameworks.tensorflow_tested"], ids=lambda row: str(row.version)
)
@pytest.mark.parametrize("driver", ["450.80.02", "535", "580"])
def test_tensorflow_tested_builds(row: object, driver: str) -> None:
    """Check that no combination that TensorFlow has tested is refused."""
    if driver == "450.80.02" and str(row.min_driver_minor_compat).startswith("525"):  # type: ignore[attr-defined]
        driver = "525.60.13"
    found = answer(
        V100,
        "ubuntu20.04",
        driver=driver,
        cuda=str(row.cuda),  # type: ignore[attr-defined]
        cudnn=str(row.cudnn),  # type: ignore[attr-defined]
        framework=f"tensorflow=={row.version}",  # type: ignore[attr-defined]
    )
    assert found.violations == ()


@pytest.mark.parametrize(
    ("cudnn", "cuda", "driver", "gpu"),
    [
        ("8.0.2", "11.0", "450.80.02", V100),
        ("8.0.4", "11.0.3", "450.51.06", V100),
        ("8.2.2", "11.4", "470.57.02", "Tesla K80"),
        ("8.9.6", "12.2", "525.60.13", "H100 PCIe"),
        ("8.9.6", "11.8", "450.80.02", V100),
        ("9.0.0", "12.3", "525.60.13", "L4"),
        ("9.5.1", "12.6", "525.60.13", "Tesla P100 SXM2"),
        ("9.10.2", "12.9", "570.26", "B200"),
        ("9.10.2", "11.8", "450.80.02", V100),
        ("9.17.0", "13.1", "580.65.06", "Tesla T4"),
        ("9.17.0", "12.0", "525.60.13", A100),
    ],
)
def test_rows_of_the_cudnn_matrix(cudnn: str, cuda: str, driver: str, gpu: str) -> None:
    assert answer(gpu, "rhel8", cudnn=cudnn, cuda=cuda, driver=driver).violations == ()


@pytest.mark.parametrize(
    ("driver", "cuda"), [("595.84", "13.2.1"), ("610.43.02", "13.3.0"), ("580.159.04", "13.0.2")]
)
@pytest.mark.parametrize(
    "os", ["ubuntu22.04", "ubuntu24.04", "debian12", "debian13", "rhel8", "rocky9", "sles15"]
)
def test_what_google_installs(driver: str, cuda: str, os: str) -> None:
    """Check that no combination that Google installs is refused."""
    assert answer("L4", os, driver=driver, cuda=cuda).verdict != "refused"


@pytest.mark.parametrize("driver", ["580.105.08", "580.126.16", "580.126.20", "580.159.04", "580.173.02"])
@pytest.mark.parametrize("os", ["ubuntu22.04", "ubuntu24.04", "almalinux8.10", "azl3"])
def test_what_azure_ships(driver: str, os: str) -> None:
    """Check that no combination in Azure's images is refused."""
    for board in (H100_BOARD, H200_BOARD):
        found = answer(board, os, driver=driver, cuda="13.0", module="open", fabricmanager=driver)
        assert found.verdict == "ok"
    old = answer(("8x Tesla V100 SXM2 32GB",), os, driver=driver, cuda="12.9", module="proprietary")
    assert old.verdict == "ok"


@pytest.mark.parametrize("driver", ["610.57.04", "595.91.07", "580.173.02", "535.309.01", "615.71.09"])
@pytest.mark.parametrize("toolkit", ["1.17.8", "1.18.2", "1.19.1", "1.20.0"])
def test_drivers_and_container_toolkits_of_the_gpu_operator(driver: str, toolkit: str) -> None:
    assert answer(A100, "ubuntu24.04", driver=driver, container_toolkit=toolkit).violations == ()


@pytest.mark.parametrize("row", CATALOG.forward_compat.values(), ids=lambda row: str(row.cuda))
def test_forward_compatibility_as_the_matrix_prints_it(row: object) -> None:
    for branch in row.base_branches:  # type: ignore[attr-defined]
        found = answer(A100, driver=str(branch), cuda=str(row.cuda))  # type: ignore[attr-defined]
        assert found.verdict == "warn"
        native = found.stack.compat == "none"
        assert rules(found.warnings) & {"cuda-minor-compat" if native else "cuda-forward-compat"}


def test_nccl_builds_beside_the_toolkit_they_were_built_with() -> None:
    for release in CATALOG.nccl:
        for build in release.cuda_builds_seen:
            toolkits = [t for t in CATALOG.released_toolkits if t.version.within(build)]
            if toolkits:
                stated = {"driver": str(toolkits[-1].driver_branch), "cuda": str(toolkits[-1].version)}
                assert answer(A100, nccl=f"{release.version}-1+cuda{build}", **stated).violations == ()


@pytest.mark.parametrize(
    ("os", "stated"),
    [
        ("debian12", {"driver": "535.309.01", "cuda": "11.8.0", "cudnn": "8.5.0.96"}),
        ("debian12", {"driver": "535.261.03", "cuda": "11.8", "module": "open"}),
        ("debian12", {"driver": "535.216.03"}),
        (
            "debian13",
            {"driver": "550.163.01", "cuda": "12.4.1", "cudnn": "9.0.0.312", "kernel": "6.12.94+deb13-amd64"},
        ),
        ("debian13", {"driver": "535.274.02"}),
    ],
)
def test_what_debian_ships(os: str, stated: dict[str, str]) -> None:
    """Check that no combination in Debian's archive is refused."""
    found = answer(A100, os, **stated)
    assert found.violations == ()
    assert found.stack.repository == "distribution"


def test_a_recorded_machine_with_four_of_eight_gpus_and_a_needless_compat_package() -> None:
    found = answer(
        ("NVIDIA H200",) * 4,
        "Ubuntu 24.04.3",
        driver="580.159.04",
        cuda="13.0.2",
        cudnn="9.15.0",
        nccl="2.28.3-1+cuda13.0",
        module="open",
        fabricmanager="none",
        compat="13.0",
    )
    assert found.verdict == "warn"
    assert "forward-compat-needless" in rules(found.warnings)


@pytest.mark.parametrize(
    "stated",
    [
        {"driver": "535.183.06", "cuda": "12.8"},  # a toolkit newer than the driver within one major
        {"driver": "470.256.02", "cuda": "11.8"},  # an end-of-life branch, requested by name
        {"driver": "580.95.05", "cuda": "13.2.1"},
    ],
)
def test_shipped_on_purpose_is_a_warning(stated: dict[str, str]) -> None:
    assert answer(A100, **stated).verdict == "warn"


@pytest.mark.parametrize(
    ("cuda", "driver", "late"), [("10.2", "418.87.00", True), ("10.1", "418.87.00", False)]
)
def test_before_cuda_11_a_minor_release_needs_its_own_driver(cuda: str, driver: str, late: bool) -> None:
    found = answer(V100, "ubuntu18.04", driver=driver, cuda=cuda)
    assert found.violations == ()
    assert ("cuda-driver" in rules(found.warnings)) == late


def test_a_package_release_beside_the_same_version_is_the_same_version() -> None:
    found = answer(H200_BOARD, driver="580.95.05-0ubuntu1", fabricmanager="580.95.05-1")
    assert found.verdict == "ok"
    assert found.stack.fabricmanager == "580.95.05"

"""Combinations that are documented not to work: refused by the rule that states this, with a remedy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.locking.resolve.requests import A100, H100_BOARD, V100, answer, rules

RTX4090 = "GeForce RTX 4090"

# rule, GPUs, system, stated values: this rule is violated and no other
REFUSED: list[tuple[str, str | tuple[str, ...], str, dict[str, Any]]] = [
    ("cuda-driver", A100, "ubuntu22.04", {"driver": "575.57.08", "cuda": "13.0"}),
    ("cuda-driver", A100, "ubuntu22.04", {"driver": "550", "cuda": "13.0"}),
    ("cuda-driver", A100, "ubuntu22.04", {"driver": "570", "cuda": "13.0", "compat": "none"}),
    ("cuda-driver", RTX4090, "ubuntu22.04", {"driver": "570", "cuda": "13.0"}),
    ("cuda-driver", A100, "ubuntu22.04", {"driver": "465", "cuda": "12.2"}),
    ("cuda-driver", A100, "ubuntu22.04", {"driver": "450.51.06", "cuda": "12.4"}),
    ("cuda-driver", A100, "ubuntu22.04", {"cuda": "14.0"}),
    ("framework-gpu", "Tesla K40m", "ubuntu18.04", {"framework": "torch==1.5.0", "cuda": "none"}),
    ("cuda-published", A100, "ubuntu22.04", {"cuda": "12.7"}),
    ("gpu-cuda", V100, "ubuntu22.04", {"cuda": "13.0"}),
    ("gpu-cuda", (V100, "H100 PCIe"), "ubuntu22.04", {"cuda": "13.0"}),
    ("gpu-driver", V100, "ubuntu22.04", {"driver": "590"}),
    ("gpu-driver", "Tesla P100 SXM2", "ubuntu22.04", {"driver": "595.91.07"}),
    ("gpu-driver", "Tesla K80", "ubuntu22.04", {"driver": "510"}),
    ("gpu-driver", "B200", "ubuntu22.04", {"driver": "550.163.01"}),
    ("gpu-driver", "L4", "ubuntu22.04", {"driver": "470"}),
    ("gpu-driver", "NVIDIA H200", "ubuntu22.04", {"driver": "535.309.01"}),
    ("gpu-driver", "RTX PRO 6000 Blackwell Server", "ubuntu22.04", {"driver": "575.51.03"}),
    ("gpu-driver", (V100, "H100 PCIe"), "ubuntu22.04", {"driver": "595"}),
    ("module-flavour", "B200", "ubuntu22.04", {"module": "proprietary"}),
    ("module-flavour", V100, "ubuntu22.04", {"module": "open"}),
    ("module-flavour", "GH200 96GB", "ubuntu22.04", {"module": "proprietary"}),
    ("module-flavour", (V100, "B200"), "ubuntu22.04", {}),
    ("module-flavour", ("Tesla P40", "GeForce RTX 5090"), "ubuntu22.04", {}),
    ("module-flavour", (V100, "H100 PCIe"), "ubuntu22.04", {"module": "open"}),
    ("module-shipped", A100, "ubuntu22.04", {"driver": "615", "module": "proprietary"}),
    ("module-shipped", A100, "ubuntu22.04", {"driver": "510", "module": "open"}),
    ("cudnn-build", A100, "ubuntu22.04", {"cuda": "13.0", "cudnn": "9.10.2"}),
    ("cudnn-build", A100, "ubuntu22.04", {"cuda": "13.0", "cudnn": "8.9.7"}),
    ("cudnn-build", A100, "ubuntu22.04", {"cuda": "11.8", "cudnn": "9.12.0"}),
    ("cudnn-build", A100, "ubuntu22.04", {"cuda": "12.4", "cudnn": "8.7.0.84"}),
    ("cudnn-driver", V100, "ubuntu22.04", {"cuda": "11.0.3", "driver": "450.51.06", "cudnn": "8.9.6"}),
    ("cudnn-gpu", V100, "ubuntu22.04", {"cudnn": "9.11.0"}),
    ("cudnn-gpu", "Tesla K80", "ubuntu20.04", {"cudnn": "8.9.6"}),
    ("nccl-cuda-major", A100, "ubuntu22.04", {"cuda": "12.9", "nccl": "2.28.9+cuda13.0"}),
    ("nccl-build", A100, "ubuntu22.04", {"cuda": "13.0", "nccl": "2.26.2"}),
    ("nccl-build", A100, "ubuntu22.04", {"cuda": "11.8", "nccl": "2.23.4"}),
    ("nccl-build", A100, "ubuntu22.04", {"cuda": "13.0", "nccl": "2.30.4+cuda13.0"}),
    ("nccl-driver", A100, "ubuntu22.04", {"driver": "570", "cuda": "none", "nccl": "2.28.9+cuda13.0"}),
    (
        "fabric-manager-version",
        H100_BOARD,
        "ubuntu22.04",
        {"driver": "580.95.05", "fabricmanager": "580.82.07"},
    ),
    ("fabric-manager-missing", H100_BOARD, "ubuntu22.04", {"fabricmanager": "none"}),
    ("fabric-manager-missing", "B200", "ubuntu22.04", {"fabricmanager": "none"}),
    (
        "fabric-manager-needless",
        "H200 NVL",
        "ubuntu22.04",
        {"driver": "580.95.05", "fabricmanager": "580.95.05"},
    ),
    ("fabric-manager-packages", ("8x A100 SXM4 80GB",), "debian12", {"repository": "distribution"}),
    ("cuda-on-os", A100, "ubuntu20.04", {"cuda": "13.0"}),
    ("cuda-on-os", A100, "ubuntu26.04", {"cuda": "12.9"}),
    ("cuda-on-os", A100, "debian13", {"cuda": "12.8"}),
    ("cuda-on-os", A100, "debian11", {"cuda": "13.0"}),
    ("cuda-on-os", A100, "centos7", {"cuda": "12.6"}),
    ("driver-on-os", A100, "debian13", {"repository": "nvidia", "driver": "570"}),
    ("driver-on-os", A100, "debian13", {"repository": "nvidia", "driver": "575"}),
    ("os-served", A100, "ubuntu23.10", {}),
    ("arch-served", A100, "debian10", {"arch": "arm64"}),
    ("superchip-arch", "GH200 96GB", "ubuntu22.04", {"arch": "x86_64"}),
    ("framework-driver", A100, "ubuntu22.04", {"driver": "550", "framework": "torch==2.11.0"}),
    ("framework-driver", "GeForce RTX 3090", "ubuntu22.04", {"driver": "570", "framework": "torch==2.12.1"}),
    ("framework-driver", A100, "ubuntu22.04", {"driver": "465", "framework": "tensorflow==2.15"}),
    ("framework-gpu", V100, "ubuntu22.04", {"framework": "torch==2.11.0"}),
    ("framework-gpu", "B200", "ubuntu22.04", {"framework": "torch==2.6.0"}),
    ("framework-build", "L4", "ubuntu22.04", {"framework": "torch==2.12.1+cu128"}),
    ("forward-compat-branch", A100, "ubuntu22.04", {"driver": "590", "compat": "13.2"}),
    ("forward-compat-branch", A100, "ubuntu22.04", {"driver": "595", "compat": "13.0"}),
    (
        "550.163.01-pci-resize",
        A100,
        "debian13",
        {"driver": "550.163.01", "module": "open", "kernel": "6.12.107+deb13-amd64"},
    ),
    (
        "550.163.01-pci-resize",
        A100,
        "debian13",
        {"driver": "550", "module": "open", "kernel": "6.12.117+deb13"},
    ),
    ("driver-in-archive", A100, "debian12", {"repository": "distribution", "driver": "580"}),
    ("driver-in-archive", A100, "debian12", {"driver": "535.309.01", "module": "open"}),
    ("driver-in-archive", A100, "rhel9", {"repository": "distribution"}),
    ("container-toolkit-cgroup2", A100, "debian12", {"container_toolkit": "1.7.0"}),
    ("docker-gpus", A100, "rhel8", {"docker": "18.09"}),
    ("podman-gpus", A100, "ubuntu22.04", {"podman": "auto"}),
    ("podman-gpus", A100, "debian12", {"podman": "4.0.3"}),
    ("podman-cdi", A100, "ubuntu24.04", {"podman": "auto", "container_toolkit": "1.19.1"}),
    ("podman-cdi", A100, "debian12", {"podman": "4.3.1", "container_toolkit": "1.20.0"}),
    ("podman-refresh", A100, "debian13", {"podman": "auto", "container_toolkit": "1.17.0"}),
    ("podman-on-os", A100, "ubuntu20.04", {"podman": "auto"}),
]


@pytest.mark.parametrize(("rule", "gpu", "os", "stated"), REFUSED)
def test_refused_by_its_rule_with_a_way_out(
    rule: str, gpu: str | tuple[str, ...], os: str, stated: dict[str, Any]
) -> None:
    found = answer(gpu, os, **stated)
    assert found.verdict == "refused"
    assert rules(found.violations) == {rule}
    assert all(finding.text and finding.source for finding in found.violations)
    assert found.nearest
    assert all(alternative.verdict != "refused" for alternative in found.nearest)
    assert found.packages == {}


def test_a_series_of_the_toolkit_is_not_older_than_its_first_release() -> None:
    assert answer(A100, "debian12", podman="auto", container_toolkit="1.18").verdict != "refused"


def test_podman_that_is_too_old_comes_with_what_would_work() -> None:
    found = answer(A100, "ubuntu24.04", podman="auto", container_toolkit="1.20.0")
    assert [each.text for each in found.nearest] == [
        "container_toolkit 1.19.0 instead of 1.20.0",
        "podman left out instead of auto",
        "os ubuntu26.04 instead of ubuntu24.04",
    ]


def test_every_violated_rule_is_named() -> None:
    found = answer(
        V100,
        "ubuntu20.04",
        driver="570.124.06",
        cuda="13.0",
        compat="none",
        cudnn="9.10.2",
        nccl="2.26.2+cuda12.8",
        module="open",
        fabricmanager="570.86.15",
        framework="torch==2.11.0",
    )
    assert rules(found.violations) == {
        "gpu-cuda",
        "cuda-driver",
        "cuda-on-os",
        "module-flavour",
        "cudnn-build",
        "nccl-cuda-major",
        "fabric-manager-needless",
        "fabric-manager-version",
        "framework-gpu",
        "framework-driver",
    }


def test_two_gpus_that_no_branch_serves() -> None:
    found = answer(("Tesla K80", "H100 PCIe"))
    assert "gpus-together" in rules(found.violations)
    assert {alternative.change for alternative in found.nearest} == {"gpus"}


def test_the_way_out_of_a_mixed_host_leaves_out_one_model() -> None:
    found = answer(("Tesla K80", "2x H100 PCIe", "L4"))
    assert [alternative.value for alternative in found.nearest] == ["1x L4 + 2x H100 PCIe"]


@pytest.mark.parametrize(
    ("stated", "change", "value"),
    [
        ({"framework": "torch==2.11.0"}, "framework", "torch==2.11.0+cu126"),
        ({"cuda": "13.0"}, "cuda", "12.9.2"),
        ({"driver": "590", "cuda": "12.4"}, "driver", "580.178.04"),
    ],
)
def test_the_way_out_names_what_to_change(stated: dict[str, str], change: str, value: str) -> None:
    found = answer(V100, **stated)
    assert (change, value) in {(alternative.change, alternative.value) for alternative in found.nearest}


def test_ignorance_never_refuses() -> None:
    """Check that unknown versions give warnings and no refusal."""
    unknown = answer(
        A100,
        driver="580.999.01",
        cuda="13.0.9",
        cudnn="9.99.1",
        nccl="2.99.1",
        container_toolkit="1.99.0",
        framework="torch==2.99.0",
        kernel="9.9.9-future",
    )
    assert unknown.violations == ()
    assert {"driver-known", "cuda-known", "cudnn-known", "nccl-known", "framework-known"} <= rules(
        unknown.warnings
    )
    ancient = answer(V100, "rhel8", driver="418.226.00", cuda="10.1", cudnn="7.6")
    assert ancient.violations == ()

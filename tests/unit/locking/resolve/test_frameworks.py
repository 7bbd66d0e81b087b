"""Frameworks: code for the GPU, CUDA of the wheel or of the host, architectures of the wheels."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.locking.resolve.requests import A100, V100, answer, rules

UBUNTU = "ubuntu22.04"


@pytest.mark.parametrize(
    ("gpu", "driver", "framework"),
    [
        ("Tesla K80", "470.256.02", "jax==0.4.30"),
        ("Tesla M10", "570.211.01", "jax[cuda12]==0.6.0"),
        (V100, "580.95.05", "jax[cuda13]==0.8.0"),
        (V100, "570.211.01", "torch==2.7.1+cu128"),
        ("Tesla P40", "570.211.01", "torch==2.10.0+cu128"),
        ("Tesla M10", "450.80.02", "tensorflow==2.3.1"),
    ],
)
def test_a_gpu_below_the_code_of_a_wheel_is_refused(gpu: str, driver: str, framework: str) -> None:
    assert "framework-gpu" in rules(answer(gpu, UBUNTU, driver=driver, framework=framework).violations)


@pytest.mark.parametrize(
    ("gpu", "driver", "framework"),
    [
        ("B200", "580.95.05", "jax==0.4.30"),  # it compiles with any newer CUDA 12
        ("B200", "580.95.05", "jax[cuda13]==0.8.0"),
        ("Tesla M60", "570.211.01", "jax[cuda12]==0.6.0"),
        (V100, "580.95.05", "jax[cuda12]==0.8.0"),
        (V100, "570.211.01", "torch==2.8.0+cu128"),
        (V100, "570.211.01", "torch==2.7.1+cu126"),
        ("Tesla P40", "450.80.02", "tensorflow==2.3.1"),
        ("Tesla M10", "450.80.02", "tensorflow==2.4.0"),
    ],
)
def test_a_gpu_that_a_wheel_has_code_for_is_accepted(gpu: str, driver: str, framework: str) -> None:
    found = answer(gpu, UBUNTU, driver=driver, framework=framework)
    assert not {"framework-gpu", "framework-known"} & (rules(found.violations) | rules(found.warnings))


@pytest.mark.parametrize(
    ("driver", "framework", "level"),
    [
        ("550.163.01", "jax[cuda13]==0.8.0", "violations"),
        ("450.142.00", "jax==0.4.9", "warnings"),
        ("580.95.05", "jax[cuda13]==0.8.0", "reasons"),
    ],
)
def test_the_driver_runs_the_cuda_of_jax(driver: str, framework: str, level: str) -> None:
    assert "framework-driver" in rules(
        getattr(answer(A100, UBUNTU, driver=driver, framework=framework), level)
    )


@pytest.mark.parametrize("framework", ["jax[cuda13]==0.6.0", "jax[cuda11]==0.4.30", "jax==0.2.20"])
def test_a_build_of_jax_in_no_table_is_left_unjudged(framework: str) -> None:
    found = answer(A100, UBUNTU, driver="580.95.05", framework=framework)
    assert "framework-known" in rules(found.warnings)


@pytest.mark.parametrize(
    ("framework", "stated", "warned"),
    [
        ("tensorflow==2.13", {"cuda": "12.4"}, True),
        ("tensorflow==2.13", {"cuda": "11.2"}, False),
        ("tensorflow==2.3", {"cuda": "10.2"}, True),
        ("tensorflow==1.15.0", {"cuda": "10.0", "cudnn": "7.5.1"}, True),
        ("tensorflow==1.15.0", {"cuda": "10.0", "cudnn": "7.6.5"}, False),
        ("tensorflow==1.14", {"cuda": "10.0", "cudnn": "7.5.1"}, False),
        ("tensorflow==2.15", {"cuda": "12.8", "cudnn": "8.9.7"}, False),
        ("tensorflow==2.15", {"cuda": "12.8", "cudnn": "9.1.0"}, True),
        ("tensorflow==2.15", {"cuda": "12.2", "cudnn": "8.8.1"}, True),
        ("tensorflow[and-cuda]==2.15", {"cuda": "13.0", "cudnn": "9.13.0"}, False),
        ("jax==0.4.30", {"cuda": "12.0"}, True),
        ("jax==0.4.30+cuda12.cudnn91", {"cuda": "12.0"}, True),
        ("jax[cuda12_local]==0.6.0", {"cuda": "13.0"}, True),
        ("jax[cuda12]==0.6.0", {"cuda": "13.0"}, False),
        ("jax[cuda13-local]==0.8.0", {"cuda": "13.0", "cudnn": "9.11.0"}, True),
        ("jax[cuda13-local]==0.8.0", {"cuda": "13.0", "cudnn": "9.12.0"}, False),
        ("jax==0.4.30", {"cuda": "12.8"}, False),
        ("jax==0.4.25+cuda11.cudnn86", {"cuda": "11.8", "cudnn": "8.5.0"}, True),
        ("torch==2.6.0", {"cuda": "11.8", "cudnn": "8.5.0"}, False),
        ("tensorflow==2.13", {}, False),
    ],
)
def test_the_stated_toolkit_has_what_a_wheel_loads(
    framework: str, stated: dict[str, Any], warned: bool
) -> None:
    found = answer(A100, UBUNTU, driver="580.95.05", framework=framework, **stated)
    assert ("framework-toolkit" in rules(found.warnings)) is warned


@pytest.mark.parametrize(
    ("gpu", "framework", "warned"),
    [
        ("GB200", "torch==2.9.1", True),
        ("GB200", "torch==2.9.1+cu128", False),
        ("GB200", "torch==2.11.0", False),
        ("B200", "torch==2.9.1", False),
    ],
)
def test_a_default_wheel_without_cuda_is_a_warning(gpu: str, framework: str, warned: bool) -> None:
    found = answer(gpu, "ubuntu24.04", driver="580.95.05", framework=framework)
    assert ("framework-arch" in rules(found.warnings)) is warned

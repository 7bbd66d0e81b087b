"""Checks of CUDA toolkits: default, compiler of each, environment of logins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuprov.roles.cuda_toolkit import CUDA_HOME

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node


@pytest.mark.check("cuda.default", "update-alternatives --display cuda")
def test_default_toolkit(host: Node, expected: str) -> None:
    """Check that /usr/local/cuda resolves to the locked toolkit."""
    assert host.libraries.default_toolkit == expected


@pytest.mark.check("cuda.nvcc", "ls -d /usr/local/cuda*")
def test_every_toolkit_has_its_compiler(host: Node, expected: dict[str, str]) -> None:
    """Check that the nvcc of each locked toolkit runs and prints the toolkit's release."""
    assert {name: host.libraries.nvcc(f"{CUDA_HOME}-{name}") for name in expected} == expected


@pytest.mark.check("cuda.environment", "grep -rnE 'CUDA_HOME|PATH=' /etc/environment /etc/profile.d")
def test_logins_know_the_toolkit(host: Node, expected: dict[str, str]) -> None:
    """Check CUDA_HOME of logins and services, and the nvcc that a login finds."""
    home = host.tuning.variable("CUDA_HOME", CUDA_HOME)
    assert {"CUDA_HOME": home, "nvcc": host.libraries.compiler_of_logins} == expected

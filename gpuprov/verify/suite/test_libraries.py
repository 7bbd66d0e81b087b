"""What stands on the driver: package sources, fabric manager, CUDA toolkits, cuDNN, NCCL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuprov.expectations.libraries import CUDA_HOME, FABRIC_UNIT
from gpuprov.verify.readings import unit_state

if TYPE_CHECKING:
    from gpuprov.verify.modules import Node
    from gpuprov.verify.nodes import NodeUnderTest

SOURCES = "apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages'"
FABRIC = "nvidia-smi --query-gpu=fabric.state --format=csv,noheader"


@pytest.mark.check(
    "repositories.sources", "grep -rs -E 'URIs|^deb' /etc/apt/sources.list /etc/apt/sources.list.d"
)
def test_apt_reads_the_locked_repositories(host: Node, expected: list[str]) -> None:
    lines = (line.split() for line in host.run(SOURCES).stdout.splitlines())
    used = {" ".join([uri.rstrip("/"), *(suite or ["/"])]) for uri, *suite in lines}
    assert [each for each in expected if each in used] == expected


@pytest.mark.check("fabric_manager.packages")
def test_packages_of_fabric_manager(host: Node, expected: dict[str, str]) -> None:
    assert {name: host.apt.versions.get(name) for name in expected} == expected


@pytest.mark.check("cuda.packages")
def test_packages_of_toolkits(host: Node, expected: dict[str, str]) -> None:
    assert {name: host.apt.versions.get(name) for name in expected} == expected


@pytest.mark.check("cudnn.packages")
def test_packages_of_cudnn(host: Node, expected: dict[str, str]) -> None:
    assert {name: host.apt.versions.get(name) for name in expected} == expected


@pytest.mark.check("nccl.packages")
def test_packages_of_nccl(host: Node, expected: dict[str, str]) -> None:
    assert {name: host.apt.versions.get(name) for name in expected} == expected


@pytest.mark.check("fabric_manager.unit", f"journalctl -u {FABRIC_UNIT} -n 10 --no-pager")
def test_fabric_manager_starts_at_every_boot(host: Node, node: NodeUnderTest, expected: str) -> None:
    state, loaded = unit_state(host, FABRIC_UNIT), host.nvidia_driver.loaded
    own = loaded is not None and loaded.version == node.wanted["fabric_manager.unit"].subject
    assert (state if own else state.partition(",")[0]) == expected


@pytest.mark.check("fabric_manager.fabric", FABRIC, f"journalctl -u {FABRIC_UNIT} -n 10 --no-pager")
def test_every_gpu_has_joined_the_fabric(host: Node, expected: str) -> None:
    assert set(host.run(FABRIC).stdout.splitlines()) == {expected}


@pytest.mark.check("cuda.default", "update-alternatives --display cuda")
def test_default_toolkit(host: Node, expected: str) -> None:
    assert host.libraries.default_toolkit == expected


@pytest.mark.check("cuda.nvcc", "ls -d /usr/local/cuda*")
def test_every_toolkit_has_its_compiler(host: Node, expected: dict[str, str]) -> None:
    assert {name: host.libraries.nvcc(f"{CUDA_HOME}-{name}") for name in expected} == expected


@pytest.mark.check("cuda.environment", "cat /etc/profile.d/gpuprov-cuda.sh")
def test_logins_know_the_toolkit(host: Node, expected: dict[str, str]) -> None:
    said = host.run("bash -lc 'printf %s \"$CUDA_HOME\"'").stdout
    assert {"CUDA_HOME": said} == expected
    assert host.libraries.compiler_of_logins == f"{CUDA_HOME}/bin/nvcc"


@pytest.mark.check("cudnn.header", "ls /usr/include/*/cudnn*")
def test_cudnn_header_has_the_version(host: Node, expected: str) -> None:
    assert host.libraries.cudnn_header == expected


@pytest.mark.check("cudnn.library", "ldconfig -p | grep libcudnn")
def test_cudnn_library_has_the_version(host: Node, expected: list[str]) -> None:
    assert host.libraries.versions("libcudnn") == expected


@pytest.mark.check("nccl.library", "ldconfig -p | grep libnccl")
def test_nccl_library_has_the_version(host: Node, expected: list[str]) -> None:
    assert host.libraries.versions("libnccl") == expected


@pytest.mark.check("nccl.configuration", "cat /etc/nccl.conf")
def test_nccl_is_told_what_the_lock_says(host: Node, expected: dict[str, str]) -> None:
    found = host.libraries.nccl_configuration
    assert {name: found.get(name) for name in expected} == expected

"""What the lock says shall not be there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gpuprov.verify.modules import Node
    from gpuprov.verify.nodes import NodeUnderTest


def installed(host: Node, node: NodeUnderTest, check: str) -> list[str]:
    """Installed packages whose names are what the check is about."""
    pattern = str(node.wanted[check].subject)
    return sorted(name for name in host.apt.versions if re.fullmatch(pattern, name))


@pytest.mark.check("cuda.absent")
def test_no_toolkit(host: Node, node: NodeUnderTest, expected: list[str]) -> None:
    assert installed(host, node, "cuda.absent") == expected


@pytest.mark.check("cudnn.absent")
def test_no_cudnn(host: Node, node: NodeUnderTest, expected: list[str]) -> None:
    assert installed(host, node, "cudnn.absent") == expected


@pytest.mark.check("nccl.absent")
def test_no_nccl(host: Node, node: NodeUnderTest, expected: list[str]) -> None:
    assert installed(host, node, "nccl.absent") == expected


@pytest.mark.check("docker.absent")
def test_no_docker(host: Node, node: NodeUnderTest, expected: list[str]) -> None:
    assert installed(host, node, "docker.absent") == expected


@pytest.mark.check("containerd.absent")
def test_no_containerd(host: Node, node: NodeUnderTest, expected: list[str]) -> None:
    assert installed(host, node, "containerd.absent") == expected


@pytest.mark.check("container_toolkit.absent")
def test_no_container_toolkit(host: Node, node: NodeUnderTest, expected: list[str]) -> None:
    assert installed(host, node, "container_toolkit.absent") == expected


@pytest.mark.check("dcgm.absent")
def test_no_dcgm(host: Node, node: NodeUnderTest, expected: list[str]) -> None:
    assert installed(host, node, "dcgm.absent") == expected


@pytest.mark.check("node_exporter.absent")
def test_no_exporter(host: Node, node: NodeUnderTest, expected: list[str]) -> None:
    assert installed(host, node, "node_exporter.absent") == expected


@pytest.mark.check("profiling_tools.absent")
def test_no_profilers(host: Node, node: NodeUnderTest, expected: list[str]) -> None:
    assert installed(host, node, "profiling_tools.absent") == expected

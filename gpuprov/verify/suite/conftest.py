"""What every test of a node may ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpuprov.model.lock import LockedGroup
from gpuprov.verify.nodes import NodeUnderTest

if TYPE_CHECKING:
    from gpuprov.verify.modules import Node


@pytest.fixture(scope="session")
def node(request: pytest.FixtureRequest) -> NodeUnderTest:
    """The node under test; the plugin runs a test once for each."""
    param: NodeUnderTest = request.param
    return param


@pytest.fixture(scope="session")
def host(node: NodeUnderTest) -> Node:
    """The node as testinfra knows it."""
    return node.host


@pytest.fixture(scope="session")
def group(node: NodeUnderTest) -> LockedGroup:
    """The node's group of the lock."""
    return node.group


@pytest.fixture
def expected(node: NodeUnderTest, request: pytest.FixtureRequest) -> Any:
    """What the lock expects of the check that the test names."""
    check = request.node.get_closest_marker("check").args[0]
    return node.wanted[check].expected


@pytest.fixture(scope="session")
def kernels(host: Node, group: LockedGroup) -> list[str]:
    """Releases of the kernels that the module must fit: the one named, or the running and the next one."""
    named = group.setting("kernel")
    return host.nvidia_driver.kernels if named in (None, "running") else [named]

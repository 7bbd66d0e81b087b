"""Fixtures for tests of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpuprov.model.lock import LockedGroup
from gpuprov.verify.nodes import NodeUnderTest

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node


@pytest.fixture(scope="session")
def node(request: pytest.FixtureRequest) -> NodeUnderTest:
    """Return the node under test; the plugin runs each test once for each node whose check is wanted."""
    param: NodeUnderTest = request.param
    return param


@pytest.fixture(scope="session")
def host(node: NodeUnderTest) -> Node:
    """Return the node's testinfra host, with gpuprov's modules as attributes."""
    return node.host


@pytest.fixture(scope="session")
def group(node: NodeUnderTest) -> LockedGroup:
    """Return the node's group of the lock."""
    return node.group


@pytest.fixture
def expected(node: NodeUnderTest, request: pytest.FixtureRequest) -> Any:
    """Return the lock's expected value for the check that marks the test."""
    check = request.node.get_closest_marker("check").args[0]
    return node.wanted[check].expected


@pytest.fixture(scope="session")
def kernels(node: NodeUnderTest) -> list[str]:
    """Return the kernels that the module must match."""
    return node.kernels

"""Checks of cuDNN: version in its header and in its library."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gpuprov.verify.observers import Node


@pytest.mark.check("cudnn.header", "ls /usr/include/*/cudnn*")
def test_cudnn_header_has_the_version(host: Node, expected: str) -> None:
    """Check that the version in cuDNN's header is the locked one."""
    assert host.libraries.cudnn_header == expected


@pytest.mark.check("cudnn.library", "ldconfig -p | grep libcudnn")
def test_cudnn_library_has_the_version(host: Node, expected: list[str]) -> None:
    """Check that cuDNN's library files have the locked version and no other."""
    assert host.libraries.versions("libcudnn") == expected

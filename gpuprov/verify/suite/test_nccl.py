"""NCCL by the word of its library, and its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gpuprov.verify.modules import Node


@pytest.mark.check("nccl.library", "ldconfig -p | grep libnccl")
def test_nccl_library_has_the_version(host: Node, expected: list[str]) -> None:
    assert host.libraries.versions("libnccl") == expected


@pytest.mark.check("nccl.configuration", "cat /etc/nccl.conf")
def test_nccl_is_told_what_the_lock_says(host: Node, expected: dict[str, str]) -> None:
    found = host.libraries.nccl_configuration
    assert {name: found.get(name) for name in expected} == expected

"""Packages: those that the lock names are at their versions, those that it rules out are not there."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from gpuprov.roles.components import ABSENT_CHECKS, PACKAGE_CHECKS

if TYPE_CHECKING:
    from gpuprov.verify.modules import Node
    from gpuprov.verify.nodes import NodeUnderTest


def _locked_ones(check: str) -> Callable[..., None]:
    @pytest.mark.check(check)
    def test(host: Node, expected: dict[str, str]) -> None:
        assert {name: host.apt.versions.get(name) for name in expected} == expected

    return test


def _none_there(check: str) -> Callable[..., None]:
    @pytest.mark.check(check)
    def test(host: Node, node: NodeUnderTest, expected: list[str]) -> None:
        pattern = str(node.wanted[check].subject)
        assert sorted(name for name in host.apt.versions if re.fullmatch(pattern, name)) == expected

    return test


for _check in PACKAGE_CHECKS:
    globals()[f"test_locked_{_check}"] = _locked_ones(_check)
for _check in ABSENT_CHECKS:
    globals()[f"test_no_{_check}"] = _none_there(_check)

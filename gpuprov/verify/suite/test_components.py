"""Checks of packages: locked ones at their versions, absent ones, and components' files without a package."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from gpuprov.model.forms import of_family
from gpuprov.roles.components import ABSENT_CHECKS, PACKAGE_CHECKS, UNPACKAGED_CHECKS

if TYPE_CHECKING:
    from gpuprov.verify.nodes import NodeUnderTest
    from gpuprov.verify.observers import Node


def _locked_ones(check: str) -> Callable[..., None]:
    """Return a test that every package of the expectation is installed at its locked version."""

    @pytest.mark.check(check)
    def test(host: Node, expected: dict[str, str]) -> None:
        assert {name: host.packages.versions.get(name) for name in expected} == expected

    return test


def _none_there(check: str) -> Callable[..., None]:
    """Return a test that no installed package matches the pattern of the expectation's subject."""

    @pytest.mark.check(check)
    def test(host: Node, node: NodeUnderTest, expected: list[str]) -> None:
        is_one = of_family(str(node.wanted[check].subject))
        assert sorted(filter(is_one, host.packages.versions)) == expected

    return test


def _none_without_a_package(check: str) -> Callable[..., None]:
    """Return a test that no library or program of a component belongs to no package."""

    @pytest.mark.check(check, "ldconfig -p | grep -E 'libcuda|libnvidia-ml|libcudnn|libnccl'")
    def test(host: Node, expected: list[str]) -> None:
        marks = {"driver.unpackaged": ("nvidia-",), "cuda.unpackaged": ("cuda-",)}.get(check, ())
        found = host.libraries.unpackaged(*UNPACKAGED_CHECKS[check], *marks)
        others = [*host.libraries.preloaded, *host.libraries.programs] if check == "driver.unpackaged" else []
        assert sorted({*found, *others}) == expected

    return test


for _check in PACKAGE_CHECKS:
    globals()[f"test_locked_{_check}"] = _locked_ones(_check)
for _check in ABSENT_CHECKS:
    globals()[f"test_no_{_check}"] = _none_there(_check)
for _check in UNPACKAGED_CHECKS:
    globals()[f"test_only_packages_{_check}"] = _none_without_a_package(_check)

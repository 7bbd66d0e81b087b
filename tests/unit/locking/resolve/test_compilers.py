"""The system's compiler and C library against nvcc, and against the kernel's compiler."""

from __future__ import annotations

import pytest

from gpuprov.catalog import load, version
from gpuprov.catalog.rules import compilers
from gpuprov.locking.resolve import Answer
from tests.unit.locking.resolve.requests import A100, answer, rules

OWN = {"cuda-host-gcc", "cuda-host-glibc", "kernel-compiler"}


def found(os: str, **stated: str) -> set[str]:
    return rules(answer(A100, os, driver="580.95.05", **stated).warnings) & OWN


def text(answered: Answer, rule: str) -> str:
    [one] = [each.text for each in answered.warnings if each.rule == rule]
    return one


@pytest.mark.parametrize(
    ("os", "cuda", "warned"),
    [
        ("ubuntu24.04", "12.2", {"cuda-host-gcc"}),
        ("ubuntu24.04", "12.4", set()),
        ("ubuntu22.04", "11.4.4", {"cuda-host-gcc"}),  # gcc 11.1 is its newest, and Ubuntu has 11.2
        ("ubuntu22.04", "11.7", set()),
        ("ubuntu20.04", "11.0", set()),
        ("debian12", "11.8", {"cuda-host-gcc"}),
        ("sles16", "12.8", {"cuda-host-gcc"}),
        ("sles16", "13.3", set()),
        ("kylin11", "11.8", {"cuda-host-gcc"}),
        ("kylin11", "13.3", set()),
        ("debian13", "12.9", {"cuda-host-glibc"}),
        ("debian13", "13.0", set()),
        ("ubuntu26.04", "13.0", {"cuda-host-glibc"}),
        ("ubuntu26.04", "13.3", set()),  # its limits were not read
        ("rhel10", "13.0", set()),  # gcc 14 is one of 13.0
    ],
)
def test_a_toolkit_that_the_systems_own_compiler_is_too_new_for_is_warned_of(
    os: str, cuda: str, warned: set[str]
) -> None:
    assert found(os, cuda=cuda) == warned


def test_the_warning_names_the_next_toolkit_that_compiles_there() -> None:
    message = text(answer(A100, "ubuntu24.04", driver="580.95.05", cuda="12.2"), "cuda-host-gcc")
    assert "gcc 12 at most" in message
    assert "gcc 13.2" in message
    assert message.endswith("or CUDA 12.4")


def test_no_newer_toolkit_is_named_if_none_is_known_to_compile() -> None:
    message = text(answer(A100, "ubuntu26.04", driver="580.95.05", cuda="13.0"), "cuda-host-glibc")
    assert "or CUDA" not in message


def test_without_a_toolkit_nothing_is_said_of_nvcc() -> None:
    assert found("debian13", cuda="none") == set()


@pytest.mark.parametrize(
    ("kernel", "build", "warned"),
    [
        ("6.8.0-45-generic", "dkms", {"kernel-compiler"}),
        ("5.15.0-25-generic", "dkms", set()),
        ("6.8.0-45-generic", "precompiled", set()),
    ],
)
def test_a_kernel_of_another_compiler_is_warned_of(kernel: str, build: str, warned: set[str]) -> None:
    assert found("ubuntu22.04", kernel=kernel, module_build=build, cuda="none") == warned
    assert found("ubuntu24.04", kernel=kernel, module_build=build, cuda="none") == set()


def test_limits_of_one_toolkit_are_stated_once() -> None:
    catalog = load()
    rows = catalog.tables["cuda.host_limits"]
    for toolkit in (*catalog.toolkits, *rows):
        release = getattr(toolkit, "version", None) or toolkit.first
        covering = [row for row in rows if row.first <= release and compilers._until(release, row.last)]
        assert len(covering) <= 1, release
    assert compilers.host_limit(catalog, version("11.4.1")).gcc == version("11.1")  # type: ignore[union-attr]

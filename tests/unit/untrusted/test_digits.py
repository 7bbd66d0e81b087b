"""Digits that int() refuses: `²` is a digit to Python, and no number has more than 4,300 digits."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import pytest

from gpuprov.catalog import version
from gpuprov.catalog.rules.issues import kernel_version
from gpuprov.cli.launch import _devices
from gpuprov.doctor.concerns.host import count_cpus
from gpuprov.doctor.judge import diagnose
from gpuprov.errors import InvalidInput, NodeFailed
from gpuprov.locking.resolve import Request, resolve
from gpuprov.nccl.shells import Remote
from gpuprov.topology.matrix import nvlinks
from tests import ROOT
from tests.unit.doctor.machines import as_examined, bare_metal

ODD = ("²", "9" * 5000)
BYTES = {"plugins/module_utils/gpuprov_locks.py", "gpuprov/verify/shell.py"}
"""Modules that ask bytes, whose digits are those of ASCII."""


def test_no_text_is_asked_for_digits() -> None:
    """Check that `isdecimal` is used, which is true only of what int() reads."""
    found = {
        str(path.relative_to(ROOT))
        for folder in ("gpuprov", "plugins", "roles")
        for path in (ROOT / folder).rglob("*.py")
        if "gpuprov/lab" not in str(path)
        for each in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(each, ast.Attribute) and each.attr in ("isdigit", "isnumeric")
    }
    assert found - BYTES == set()


@pytest.mark.parametrize("text", ODD)
def test_what_is_no_number_is_not_one(text: str) -> None:
    assert nvlinks(f"NV{text}") is None
    assert count_cpus(f"{text},0-3,{text}-9") == 4


@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize(
    ("rule", "place"),
    [
        ("cuda.hidden", ("environment", "/etc/environment", "CUDA_VISIBLE_DEVICES")),
        ("driver.permissions", ("modules", "params")),
        ("host.cpus", ("host_state", "cpus", "present")),
        ("speed.pcie_path", ("pci", 0, 6)),
    ],
)
def test_rules_judge_in_spite_of_it(rule: str, place: tuple[Any, ...], text: str) -> None:
    machine: Any = bare_metal()
    part = machine
    for step in place[:-1]:
        part = part.setdefault(step, {}) if isinstance(part, dict) else part[step]
    part[place[-1]] = f"DeviceFileMode: {text}" if place[-1] == "params" else text
    unknown = [why for name, why in diagnose(as_examined(machine)).unknown if name == rule]
    assert [why for why in unknown if "ValueError" in why] == []


@pytest.mark.parametrize("text", ODD)
def test_an_exit_code_of_a_node_is_a_number(text: str) -> None:
    answer = SimpleNamespace(stdout=f"gpuprov-exit {text}".encode())
    session: Any = SimpleNamespace(run=lambda *_: answer)
    with pytest.raises(NodeFailed, match="no whole answer"):
        Remote(session, "node").run(["x"], {}, 1)


def test_a_kernel_of_many_numbers_has_the_version_of_the_first() -> None:
    assert kernel_version(".".join("1" * 30) + "-1.1.1.1.1.1.1.el9") == version("1.1.1.1.1.1.1")


@pytest.mark.parametrize("name", ["driver", "cuda", "nccl", "docker", "framework"])
def test_a_version_of_many_numbers_is_refused(name: str) -> None:
    stated = {
        "gpus": ["8x H200"],
        "os": "debian12",
        name: "torch==" * (name == "framework") + ".".join("1" * 30),
    }
    with pytest.raises(InvalidInput):
        resolve(Request.from_mapping(stated))


def test_a_device_is_a_number() -> None:
    with pytest.raises(InvalidInput, match="GPU numbers"):
        _devices("0,²")

"""Names from a node, which are checked against their patterns when its answer is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpuprov.errors import NodeFailed
from gpuprov.probe.facts import SCHEMA, Facts, Missing
from tests.unit.doctor.machines import bare_metal

HOSTILE = "{{ lookup('pipe','id') }}"
Answer = dict[str, Any]


def answer() -> Answer:
    """Return the answer of a node."""
    return {"schema": SCHEMA, "host": "gpu1", "collectors": bare_metal()}


def _unit(collected: Answer) -> None:
    """Put hostile text into the id of a unit."""
    collected["units"]["text"] = collected["units"]["text"].replace("Id=", f"Id={HOSTILE}", 1)


def _package(collected: Answer) -> None:
    """Put hostile text into the name of a package."""
    collected["packages"]["text"] = (
        f"{HOSTILE}\tamd64\t1.0\tx\tinstall ok installed\n" + collected["packages"]["text"]
    )


def _version(collected: Answer) -> None:
    """Put hostile text into the version of a package."""
    collected["packages"]["text"] = (
        f"x\tamd64\t{HOSTILE}\tx\tinstall ok installed\n" + collected["packages"]["text"]
    )


def _option(collected: Answer) -> None:
    """Name a package like an option of apt."""
    collected["packages"]["text"] = (
        "-oX=y\tamd64\t1.0\tx\tinstall ok installed\n" + collected["packages"]["text"]
    )


def _vermagic(collected: Answer) -> None:
    """Put hostile text into the kernel for which a module was built."""
    kernel = collected["system"]["kernel"]
    lines = f"filename: /lib/modules/nvidia.ko\nversion: 1\nvermagic: {kernel} SMP {HOSTILE}\n"
    collected["disk_modules"] = {kernel: lines}


def _compiler(collected: Answer) -> None:
    """Put hostile text into the compiler of a kernel."""
    collected["kernels"] = {
        **collected["kernels"],
        "compilers": {collected["system"]["kernel"]: f"gcc {HOSTILE}"},
    }


HELD: dict[str, tuple[str, Callable[[Answer], Any]]] = {
    "kernel": ("kernel", lambda collected: collected["system"].update(kernel=f"6.1.0-{HOSTILE}")),
    "path": ("kernel", lambda collected: collected["system"].update(kernel="../../x")),
    "arch": ("arch", lambda collected: collected["system"].update(machine="x86_64/../..")),
    "compiler": ("kernels", _compiler),
    "vermagic": ("disk_modules", _vermagic),
    "unit": ("units", _unit),
    "package": ("packages", _package),
    "version": ("packages", _version),
    "option": ("packages", _option),
    "device": ("pci", lambda collected: collected["pci"][0].__setitem__(0, HOSTILE)),
    "driver": ("pci", lambda collected: collected["pci"][0].__setitem__(7, HOSTILE)),
    "interface": ("nics", lambda collected: collected["nics"][0].update(name=HOSTILE)),
}


@pytest.mark.parametrize("what", HELD)
def test_a_name_that_none_can_have_is_not_known(what: str) -> None:
    name, change = HELD[what]
    result = answer()
    getattr(Facts.from_answer(result), name)
    change(result["collectors"])
    with pytest.raises(Missing) as missing:
        getattr(Facts.from_answer(result), name)
    assert str(missing.value).isprintable()


def test_a_node_has_a_host_name() -> None:
    with pytest.raises(NodeFailed, match="as a host name"):
        Facts.from_answer({**answer(), "host": f"gpu1 {HOSTILE}"})


def test_a_folder_that_is_no_kernel_is_left_out() -> None:
    result = answer()
    result["collectors"]["kernels"]["modules"] = [
        *result["collectors"]["kernels"]["modules"],
        HOSTILE,
        "backup",
    ]
    kernels = Facts.from_answer(result).kernels
    assert kernels.installed
    assert all(name[0].isdigit() for name in kernels.installed)

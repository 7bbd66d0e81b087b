"""A named builder and compilers that are absent: what a lock says, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from gpuprov.errors import InvalidInput
from gpuprov.locking.build import build_lock
from gpuprov.locking.builder import with_builder
from gpuprov.model.fleet import parse_fleet
from gpuprov.model.stack import StackPolicy
from tests.unit.locking.fleets import Write
from tests.unit.verify.nodes_on_paper import locked_group

FLEET = "groups: {{a: {{profile: p, hosts: h, os: debian12, stack: {{driver: '535'{}}}}}}}\n"


def test_a_fleet_without_them_is_written_as_ever() -> None:
    """The lock has a digest of the fleet: new keys must not change those that do not have them."""
    [silent] = parse_fleet(FLEET.format(""), "x").groups.values()
    assert not {"builder", "compiler"} & set(silent.model_dump(mode="json")["stack"])
    [stated] = parse_fleet(FLEET.format(", builder: h, compiler: absent"), "x").groups.values()
    assert stated.model_dump(mode="json")["stack"]["compiler"] == "absent"
    assert StackPolicy().model_dump() == StackPolicy.model_validate(StackPolicy().model_dump()).model_dump()


def test_the_lock_has_them(one_group: Write) -> None:
    fleet = one_group(driver="580.95.05", module_build="once", builder="train-2", compiler="absent")
    driver = build_lock(fleet).groups["train"].components.driver
    assert (driver.builder, driver.compiler) == ("train-2", "absent")
    assert [driver.may_compile(name) for name in ("train-1", "train-2")] == [False, True]


@pytest.mark.parametrize(
    ("build", "stated", "said"),
    [
        (None, {"builder": "a1"}, "a: stack.builder is for modules that are compiled once"),
        (None, {"compiler": "absent"}, "a: stack.compiler is for modules that are compiled once"),
        ("once", {"compiler": "absent"}, "a: no node has a compiler"),
        ("once", {"builder": "b1"}, "a: stack.builder is b1"),
    ],
)
def test_what_cannot_compile_is_refused(build: str | None, stated: dict[str, Any], said: str) -> None:
    components = locked_group("node").components
    driver = components.driver.model_copy(update={"build": build})
    components = components.model_copy(update={"driver": driver})
    with pytest.raises(InvalidInput, match=said):
        with_builder("a", ["a1", "a2"], StackPolicy(**stated), components)
    assert with_builder("a", ["a1"], StackPolicy(), components) is components

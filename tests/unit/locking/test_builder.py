"""Named builders and absent compilers: contents of a lock, and refusals."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from gpuprov.errors import InvalidInput
from gpuprov.locking.build import build_lock
from gpuprov.locking.builder import check_builders, with_builder
from gpuprov.model.fleet import parse_fleet
from gpuprov.model.lock import LockedGroup, read_lock, write_lock
from gpuprov.model.selection import for_worker
from gpuprov.model.stack import IMAGE, StackPolicy
from tests.unit.locking.fleets import Write
from tests.unit.verify.nodes_on_paper import locked_group

FLEET = "groups: {{a: {{profile: p, hosts: h, os: debian12, stack: {{driver: '535'{}}}}}}}\n"


def test_a_fleet_without_them_is_written_as_ever() -> None:
    """Omit unset new keys from a serialized fleet: the lock has a digest of it, which must not change."""
    [silent] = parse_fleet(FLEET.format(""), "x").groups.values()
    assert not {"builder", "compiler"} & set(silent.model_dump(mode="json")["stack"])
    [stated] = parse_fleet(FLEET.format(", builder: h, compiler: absent"), "x").groups.values()
    assert stated.model_dump(mode="json")["stack"]["compiler"] == "absent"
    assert StackPolicy().model_dump() == StackPolicy.model_validate(StackPolicy().model_dump()).model_dump()


def test_the_lock_has_them_and_says_what_they_mean(one_group: Write) -> None:
    fleet = one_group(driver="580.95.05", builder="train-2", compiler="absent")
    driver = build_lock(fleet).groups["train"].components.driver
    assert (driver.build, driver.builder, driver.compiler) == ("once", "train-2", "absent")
    assert driver.builder_reason == "stated: root on train-2 decides what runs in every kernel of the group"
    assert [driver.may_compile(name) for name in ("train-1", "train-2")] == [False, True]


def test_a_worker_learns_which_of_its_nodes_may_compile_and_no_other_builder(
    one_group: Write, tmp_path: Path
) -> None:
    lock = build_lock(one_group(driver="580.95.05", builder="train-2", compiler="absent"))
    for names, builders in ((["train-1"], (IMAGE,)), (["train-1", "train-2"], ("train-2",))):
        write_lock(for_worker(lock, names), tmp_path / "lock.yml")
        driver = read_lock(tmp_path / "lock.yml").groups["train"].components.driver
        assert (driver.builders, driver.builder_reason) == (builders, None)
        assert not driver.may_compile("train-1")


@pytest.mark.parametrize(
    ("stated", "builders", "said"),
    [
        (["train-1", "train-2"], ("train-1", "train-2"), "only root on all of train-[1-2] can change"),
        (["train-1"], ("train-1",), "root on train-1 decides"),
        ("image", ("image",), "whoever makes the image decides"),
    ],
)
def test_builders_that_must_agree_and_images(
    one_group: Write, stated: Any, builders: tuple[str, ...], said: str
) -> None:
    fleet = one_group(driver="580.95.05", module_build="once", builder=stated)
    lock = build_lock(fleet)
    driver = lock.groups["train"].components.driver
    assert driver.builders == builders
    assert said in str(driver.builder_reason)
    assert build_lock(fleet, previous=lock) == lock


def test_a_lock_of_before_trusts_no_builder() -> None:
    """Trust no builder if a lock has `build: once` without builders: any node could have compiled first."""
    driver = locked_group("node").components.driver.model_copy(update={"build": "once"})
    assert driver.builders == ()
    assert driver.shared


@pytest.mark.parametrize(
    ("build", "stated", "said"),
    [
        (None, {"module_build": "once"}, r"stack\.module_build is once, and stack\.builder names no builder"),
        (
            None,
            {"builder": "a1", "module_build": "dkms"},
            "a: stack.builder is for modules that are compiled",
        ),
        (None, {"compiler": "absent"}, "a: no node has a compiler"),
        ("once", {"builder": "b1"}, "a: stack.builder is b1"),
        ("once", {"builder": ["a1", "a1"]}, "a: stack.builder is a1, a1; expected different hosts"),
        ("once", {"builder": ["a1", "image"]}, "a: stack.builder is a1, image; expected different hosts"),
        ("once", {"builder": ["a1", "b1"]}, "a: stack.builder is b1; expected one of"),
    ],
)
def test_what_cannot_compile_is_refused(build: str | None, stated: dict[str, Any], said: str) -> None:
    """Check that an impossible builder is refused: none named, an unknown one, modules that are not compiled,
    no compiler.
    """
    components = locked_group("node").components
    driver = components.driver.model_copy(update={"build": build})
    components = components.model_copy(update={"driver": driver})
    with pytest.raises(InvalidInput, match=said):
        with_builder("a", ["a1", "a2"], StackPolicy(**stated), components)
    assert with_builder("a", ["a1"], StackPolicy(), components) is components


def test_a_builder_is_looked_up_among_all_hosts() -> None:
    components = locked_group("node").components
    driver = components.driver.model_copy(update={"build": "once"})
    components = components.model_copy(update={"driver": driver})
    hosts = dict.fromkeys(f"h{n}" for n in range(100_000))
    begun = time.process_time()
    for _ in range(2000):
        with_builder("a", hosts, StackPolicy(builder=("h99999",)), components)
    assert time.process_time() - begun < 2


def test_a_builder_of_another_group_has_the_same_driver_and_system() -> None:
    here, there = locked_group("node"), locked_group("build1")

    def trusting(group: LockedGroup) -> LockedGroup:
        """Return the group with build1 as its builder."""
        driver = group.components.driver.model_copy(update={"build": "once", "builder": "build1"})
        components = group.components.model_copy(update={"driver": driver})
        return group.model_copy(update={"components": components})

    check_builders({"train": trusting(here), "build": trusting(there)})
    for other in (trusting(there).model_copy(update={"arch": "aarch64"}), there):
        with pytest.raises(InvalidInput, match=r"train: stack\.builder is build1, of the group build with"):
            check_builders({"train": trusting(here), "build": other})

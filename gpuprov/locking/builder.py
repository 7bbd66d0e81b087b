"""Selection and checks of the node that compiles a group's driver module, and the trust that this implies."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from gpuprov.errors import InvalidInput
from gpuprov.model.lock import Components, Driver, LockedGroup
from gpuprov.model.nodeset import fold
from gpuprov.model.stack import IMAGE, StackPolicy


def module_build(stated: StackPolicy) -> Literal["once"] | None:
    """Return `once` if a builder is stated and no other `module_build`: it compiles a group's module for all
    nodes. Else None: each compiles its own.

    No node compiles for others by default: root on that node would decide what runs in every kernel.
    """
    return "once" if stated.module_build in (None, "once") and stated.builder else None


def with_builder(
    group: str, hosts: Collection[str], stated: StackPolicy, components: Components
) -> Components:
    """Add the stated builder and compiler to a group's components; return them unchanged if neither is
    stated.

    Args:
        hosts: all hosts of the fleet.

    Raises:
        InvalidInput: modules are compiled once without a builder, a builder is stated and no module is
            compiled once, a compiler is stated without a builder, a builder is named twice or next to
            `IMAGE`, or a builder is not a host of the fleet.
    """
    builders = stated.builder or ()
    if not builders and stated.module_build == "once":
        raise InvalidInput(
            f"{group}: stack.module_build is once, and stack.builder names no builder",
            expected="a host whose root may decide what runs in every kernel of the group, two whose builds"
            f" must be the same, or {IMAGE}",
            do=f"stack: {{builder: {next(iter(hosts), 'NODE')}}}, or module_build: dkms",
        )
    if not (builders or stated.compiler):
        return components
    if not builders:
        raise InvalidInput(
            f"{group}: no node has a compiler", do="state a builder with a compiler: stack: {builder: …}"
        )
    if not components.driver.shared:
        key = "builder" if builders else "compiler"
        raise InvalidInput(
            f"{group}: stack.{key} is for modules that are compiled once", do="state module_build: once"
        )
    if len(set(builders)) < len(builders) or (IMAGE in builders and len(builders) > 1):
        raise InvalidInput(
            f"{group}: stack.builder is {', '.join(builders)}", expected=f"different hosts, or only {IMAGE}"
        )
    if unknown := [name for name in builders if name != IMAGE and name not in hosts]:
        raise InvalidInput(
            f"{group}: stack.builder is {fold(unknown)}", expected=f"one of {fold(hosts)}, or {IMAGE}"
        )
    said = {
        "builder": builders[0] if len(builders) == 1 else list(builders),
        "builder_reason": consequence(builders),
        "compiler": stated.compiler,
    }
    return components.model_copy(update={"driver": components.driver.model_copy(update=said)})


def consequence(builders: Collection[str]) -> str:
    """Return the consequence of trusting the builders as text, for the lock and for a plan."""
    if IMAGE in builders:
        return "stated: whoever makes the image decides what runs in every kernel of the group"
    if len(builders) == 1:
        return f"stated: root on {fold(builders)} decides what runs in every kernel of the group"
    return f"stated: only root on all of {fold(builders)} can change what runs in every kernel of the group"


def check_builders(groups: Mapping[str, LockedGroup]) -> None:
    """Check that a builder of another group can make the same module.

    Raises:
        InvalidInput: its system, architecture, driver or builder differ.
    """
    group_of = {host: name for name, group in groups.items() for host in group.hosts}
    for name, group in groups.items():
        for builder in group.components.driver.builders:
            there = group_of.get(builder, name)
            if _module(groups[there]) != _module(group):
                raise InvalidInput(
                    f"{name}: stack.builder is {builder}, of the group {there} with another stack or builder",
                    expected=" ".join(_module(group)),
                    do=f"a builder in {name}, or the same stack in both groups",
                )


def _module(group: LockedGroup) -> tuple[str, ...]:
    """Return what two groups must share to share a module: system, architecture, package, flavour and
    builders.
    """
    driver: Driver = group.components.driver
    package = f"{driver.module_package}={driver.closure.get(driver.module_package)}"
    return group.os, group.arch, package, driver.module, *driver.builders

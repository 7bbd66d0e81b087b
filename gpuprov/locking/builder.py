"""Which node of a group compiles the driver's module, and whether the others could."""

from __future__ import annotations

from collections.abc import Collection

from gpuprov.errors import InvalidInput
from gpuprov.model.lock import Components
from gpuprov.model.nodeset import fold
from gpuprov.model.stack import StackPolicy


def with_builder(
    group: str, hosts: Collection[str], stated: StackPolicy, components: Components
) -> Components:
    """The group's components with what is stated of its builder and of compilers.

    Raises:
        InvalidInput: nothing is compiled once, nobody would do it, or a host of another group.
    """
    if not (stated.builder or stated.compiler):
        return components
    if not components.driver.shared:
        key = "builder" if stated.builder else "compiler"
        raise InvalidInput(
            f"{group}: stack.{key} is for modules that are compiled once", do="state module_build: once"
        )
    if not stated.builder:
        raise InvalidInput(
            f"{group}: no node has a compiler", do="name one that compiles: stack: {builder: …}"
        )
    if stated.builder not in hosts:
        raise InvalidInput(f"{group}: stack.builder is {stated.builder}", expected=f"one of {fold(hosts)}")
    said = {"builder": stated.builder, "compiler": stated.compiler}
    return components.model_copy(update={"driver": components.driver.model_copy(update=said)})

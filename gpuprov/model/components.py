"""The table of components: the only list of the software that a lock can contain."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ComponentKind:
    """One row of the table.

    Attributes:
        name: the field of the lock's `components`, of the fleet's `stack` and of the resolver's stack.
        stated: whether a fleet states it and `gpuprov lock --upgrade` can name it; others follow the driver
            or the toolkit.
        with_driver: whether it changes with the driver, in one transaction.
        rule: prefix of the names of the resolver's rules that decide its version.
        by_repository: whether only the repository knows its full version.
        requested: whether a request to the resolver can state its version, in addition to the driver's.
        unrelated: whether its packages are independent of each other, without a common version.
    """

    name: str
    stated: bool = True
    with_driver: bool = False
    rule: str | None = None
    by_repository: bool = False
    requested: bool = False
    unrelated: bool = False


def _follows(name: str, rule: str | None = None, **more: bool) -> ComponentKind:
    """Return a row for a component that changes with the driver."""
    return ComponentKind(name, stated=False, with_driver=True, rule=rule, **more)


COMPONENTS = (
    ComponentKind("driver", with_driver=True, rule="driver"),
    _follows("fabricmanager", "fabric-manager", requested=True),
    _follows("nscq"),
    _follows("nvsdm"),
    _follows("nvlsm", by_repository=True),
    _follows("imex"),
    ComponentKind("doca_ofed", rule="doca", by_repository=True),
    ComponentKind("gds", rule="gds", by_repository=True),
    ComponentKind("cuda", rule="cuda", requested=True),
    ComponentKind("compat", stated=False, rule="forward-compat", by_repository=True, requested=True),
    ComponentKind("cudnn", rule="cudnn", requested=True),
    ComponentKind("nccl", rule="nccl", requested=True),
    ComponentKind("docker", by_repository=True, requested=True),
    ComponentKind("containerd", by_repository=True),
    ComponentKind("podman", by_repository=True, requested=True),
    ComponentKind("container_toolkit", rule="container-toolkit", by_repository=True, requested=True),
    ComponentKind("dcgm", by_repository=True),
    ComponentKind("profiling_tools", by_repository=True, unrelated=True),
    ComponentKind("node_exporter", by_repository=True),
)
COMPONENT = {each.name: each for each in COMPONENTS}
MOVE_WITH_DRIVER = tuple(each.name for each in COMPONENTS if each.with_driver)
MOVABLE = tuple(each.name for each in COMPONENTS if each.stated)
"""Components that `gpuprov lock --upgrade` can name."""

"""The new module, built before anything is drained: tried on canaries, or made for all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from gpuprov.apply.modules.build import Build
from gpuprov.apply.modules.handing import fetched
from gpuprov.apply.modules.once import builders, needed
from gpuprov.apply.modules.signing import store_of
from gpuprov.apply.modules.store import Store
from gpuprov.ssh.transport import targets
from gpuprov.upgrade.context import UpgradeContext


class Ahead:
    """Which nodes build what."""

    def __init__(
        self,
        context: UpgradeContext,
        names: Iterable[str],
        canaries: Collection[str],
        store: Store | None = None,
    ) -> None:
        """
        Args:
            canaries: those that try to build where every node compiles; where one does it for all, the named
                builder does, or one of these if it can.

        Raises:
            Refused: a build in the store was changed.
        """
        self._context, self._store = context, store or store_of(context.lock)
        new = {name: context.groups[name][1] for name in names}
        self._tried = {
            name: [new[name].setting("kernel") or "running"]
            for name in canaries
            if name in new and not new[name].components.driver.shared
        }
        shared = [name for name in new if new[name].components.driver.shared]
        needs = needed(context, sorted(shared, key=lambda name: name not in canaries)) if shared else {}
        wanting: dict[Build, list[str]] = {}
        for name, need in needs.items():
            for build in need.builds:
                wanting.setdefault(build, []).append(name)
        self._builders = {
            build: able[0]
            for build, nodes in wanting.items()
            if (able := builders(new, nodes)) and self._store.find(build) is None
        }

    def kernels(self, name: str) -> list[str]:
        """Those that a node is to build the module for."""
        mine = [build.kernel for build, builder in self._builders.items() if builder == name]
        return mine or self._tried.get(name, [])

    def hands_out(self, name: str) -> bool:
        """Whether what a node builds is for others."""
        return name in self._builders.values()

    def take(self, built: Mapping[str, list[dict[str, Any]]]) -> None:
        """Put what nodes have built into the store.

        Args:
            built: node → what it packed, each with its kernel; nothing where the driver does not move.

        Raises:
            NodeFailed, Unreachable: it cannot be had, or is not what was asked for.
        """
        for build, name in self._builders.items():
            for about in built.get(name, []):
                if about["kernel"] == build.kernel:
                    [way] = targets(self._context.old, [name])
                    packed = fetched(way, build, self._context.options.become_password, about)
                    self._store.keep(build, packed, name)
                    self._context.narrate(f"the {build} is in the store, by {name}")

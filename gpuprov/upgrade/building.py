"""Builds of the new kernel module before any node is drained: tried on canaries, or by builders for all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from gpuprov.apply.kernel_modules.build import Build
from gpuprov.apply.kernel_modules.fetching import fetch
from gpuprov.apply.kernel_modules.once import needed
from gpuprov.apply.kernel_modules.signing import store_of
from gpuprov.apply.kernel_modules.store import Store
from gpuprov.errors import NodeFailed, Refused
from gpuprov.model.nodeset import fold
from gpuprov.ssh.transport import targets
from gpuprov.upgrade.context import UpgradeContext


class Ahead:
    """The builds of an upgrade and the nodes that run them."""

    def __init__(
        self,
        context: UpgradeContext,
        names: Iterable[str],
        canaries: Collection[str],
        store: Store | None = None,
    ) -> None:
        """Find the builds to make.

        Args:
            canaries: nodes that try the build if every node compiles for itself. Another build is made if it
                is not in the store, and all of its builders are in `names` and need it.

        Raises:
            Refused: a build in the store was changed, or nodes that cannot compile for themselves would have
                no module.
        """
        self._context, self._store = context, store or store_of(context.lock, context.id)
        self._groups = {name: context.groups[name][1] for name in names}
        trusting = [name for name, group in self._groups.items() if group.components.driver.builders]
        self._tried = {
            name: [self._groups[name].setting("kernel") or "running"]
            for name in canaries
            if name in self._groups and not self._groups[name].components.driver.shared
        }
        needs = needed(context, trusting) if trusting else {}
        missing = dict.fromkeys(build for need in needs.values() for build in need.builds)
        self._builders: dict[Build, list[str]] = {
            build: [name for name in build.builders if build in needs[name].builds]
            for build in missing
            if set(build.builders) <= needs.keys() and self._store.find(build) is None
        }
        self._builders = {each: names for each, names in self._builders.items() if names == [*each.builders]}
        self._refuse_stranded({name: need.builds for name, need in needs.items()})

    def _refuse_stranded(self, needs: Mapping[str, Collection[Build]]) -> None:
        """Refuse to drain nodes that would get no module for any of their kernels.

        Raises:
            Refused: there are such nodes; the message names them and the builders that they depend on.
        """
        stranded = [
            name
            for name, builds in needs.items()
            if not self._may_compile(name)
            and not any(build in self._builders or self._store.find(build) for build in builds)
        ]
        if stranded:
            builders = sorted({by for name in stranded for build in needs[name] for by in build.builders})
            raise Refused(
                f"{fold(stranded)}: no new module for the kernels there; only {fold(builders)} compiles it",
                do=f"upgrade {fold(builders)} as well, with the same kernel",
            )

    def _may_compile(self, name: str) -> bool:
        """Return whether a node can use a module that it compiles for itself."""
        group = self._groups[name]
        return group.secure_boot is None and group.components.driver.may_compile(name)

    def kernels(self, name: str) -> list[str]:
        """Return the kernels that a node builds the module for, `running` for the running one; maybe none."""
        mine = [build.kernel for build, builders in self._builders.items() if name in builders]
        return mine or self._tried.get(name, [])

    def shares(self, name: str) -> bool:
        """Return whether a node builds for other nodes."""
        return any(name in builders for builders in self._builders.values())

    def take(self, built: Mapping[str, list[dict[str, Any]]]) -> None:
        """Put the builders' archives into the store.

        Args:
            built: node → its archives, each with its kernel; none if the driver does not change.

        Raises:
            NodeFailed, Unreachable: an archive cannot be fetched, is not the expected one, or the builders'
                archives differ.
        """
        for build, builders in self._builders.items():
            packed = {
                name: about
                for name in builders
                for about in built.get(name, [])
                if about["kernel"] == build.kernel
            }
            if not packed:
                continue
            if len(packed) < len(builders):
                raise NodeFailed(f"only {fold(packed)} built the {build}", expected=f"{fold(builders)}")
            made = {name: self._fetched(build, name, about) for name, about in packed.items()}
            self._store.keep(build, made)
            self._context.narrate(f"the {build} is in the store, by {fold(builders)}")

    def _fetched(self, build: Build, name: str, about: Mapping[str, Any]) -> bytes:
        """Fetch an archive that a node has packed; return its content; raises as `fetch`."""
        [way] = targets(self._context.old, [name])
        return fetch(way, build, name, self._context.options.dispatch.password, about)

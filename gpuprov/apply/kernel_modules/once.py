"""Compile once: the builder that the lock trusts compiles the module, and other nodes install the result."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpuprov.apply.context import RunContext
from gpuprov.apply.kernel_modules.build import Build, build_of
from gpuprov.apply.kernel_modules.fetching import fetch
from gpuprov.apply.kernel_modules.signing import store_of
from gpuprov.apply.kernel_modules.store import Kept, Store
from gpuprov.apply.playbook import NodeOutcome, run_playbook
from gpuprov.errors import GpuprovError, NodeFailed, Refused, Unreachable
from gpuprov.model.lock import LockedGroup
from gpuprov.model.nodeset import fold, fold_alike
from gpuprov.probe.collect import collect
from gpuprov.probe.facts import Facts
from gpuprov.probe.payload import Parameters
from gpuprov.ssh.contained import contained
from gpuprov.ssh.transport import fan_out, targets

LEADING = ("preflight", "repositories", "nvidia_driver")
"""Roles that a builder runs up to and including the compilation of its module."""
Nodes = Mapping[str, dict[str, Any]]
"""Node → variables of this node only, including `gpuprov_roles`."""


@dataclass(frozen=True)
class Need:
    """Modules that a node needs.

    Attributes:
        builds: one build for each kernel that counts.
        bare: whether the node has no driver module at all.
        there: the builds whose version is on the node's disk, compiled by any builder.
    """

    builds: tuple[Build, ...]
    bare: bool = False
    there: frozenset[Build] = frozenset()


class Once:
    """Roles of a run's nodes, and the compiled modules that they need."""

    def __init__(
        self,
        run: RunContext,
        nodes: Nodes,
        store: Store | None = None,
        called: Mapping[str, str] | None = None,
    ) -> None:
        """Ask the nodes that get the driver, in groups that compile once, for their kernels.

        Args:
            store: a store in place of the controller's.
            called: node → its name as a builder, if different.

        Raises:
            Refused: modules have to be signed, and the lock names no builder for them.
        """
        self._run, self._store = run, store or store_of(run.lock, run.id)
        self._hosts, self._called = run.lock.hosts(), called or {}
        shared = [
            name
            for name, stated in nodes.items()
            if self._hosts[name].components.driver.shared and "nvidia_driver" in stated["gpuprov_roles"]
        ]
        trusting = [name for name in shared if self._hosts[name].components.driver.builders]
        self._say_trust(shared, trusting)
        self._needs = dict(needed(run, trusting)) if trusting else {}
        self._found: dict[Build, Kept | None] = {}
        self._left, self._done = dict(nodes), dict[str, NodeOutcome]()

    def apply(self) -> dict[str, NodeOutcome]:
        """Run every node's roles, in one run of the playbook, or in two if a module is missing.

        Builds that their builders have compiled before are fetched first. In the first run of the playbook
        the builders of a missing module compile it, and bare nodes run everything else.

        Returns:
            node → its outcome; a node that fails in the first run is not part of the second.

        Raises:
            Refused: a build in the store was changed.
            GpuprovError: Ansible itself could not run, or a module cannot be signed.
        """
        chosen = {} if self._run.options.check else self._missing()
        made = [each for each, nodes in chosen.items() if all(each in self._needs[n].there for n in nodes)]
        self._take(made)
        there = {each for each in made if self._store.find(each)}
        chosen = {build: nodes for build, nodes in chosen.items() if nodes and build not in there}
        self._announce(chosen)
        self._turn(self._going(chosen), "")
        self._take(chosen)
        if self._left:
            rest = {name: {**stated, **self._offers(name)} for name, stated in self._left.items()}
            self._left = {}
            self._turn(rest, "again")
        return self._done

    def _say_trust(self, shared: list[str], trusting: list[str]) -> None:
        """Report nodes that compile for themselves because the lock names no builder.

        Raises:
            Refused: modules of such nodes have to be signed.
        """
        untrusting = [name for name in shared if name not in trusting]
        do = "state stack: {builder: NODE} in fleet.yml, and gpuprov lock"
        if signed := [name for name in untrusting if self._hosts[name].secure_boot]:
            raise Refused(
                f"{fold(signed)}: the lock names no builder, and only a trusted builder's modules are signed",
                do=do,
            )
        if untrusting:
            self._run.narrate(f"{fold(untrusting)}: the lock names no builder, so each node compiles; {do}")

    def _turn(self, going: dict[str, dict[str, Any]], part: str) -> None:
        """Run the playbook on nodes, if any; remove failing nodes from `_left`, the nodes of the last run."""
        if not going:
            return
        for name, outcome in run_playbook("site", going, self._run, part=part).items():
            self._done.setdefault(name, NodeOutcome()).add(outcome)
            if not outcome.ok:
                self._left.pop(name, None)

    def _going(self, chosen: Mapping[Build, list[str]]) -> dict[str, dict[str, Any]]:
        """Return the variables of the nodes that run now, and keep those of the later run in `_left`.

        Nodes of a missing build wait for the later run, except its builders. Bare nodes run all but the
        module now. If the store signs, builders run again to install the signed module.
        """
        going: dict[str, dict[str, Any]] = {}
        compiling = {node for nodes in chosen.values() for node in nodes}
        for name, stated in list(self._left.items()):
            again = {**stated, "gpuprov_roles": ["nvidia_driver"]}
            need = self._needs.get(name, Need(()))
            if name in compiling and self._store.signs:
                going[name], self._left[name] = stated, again
            elif name in compiling or not chosen.keys() & set(need.builds):
                going[name] = {**stated, **self._offers(name)}
                del self._left[name]
            elif need.bare:
                going[name], self._left[name] = {**stated, "nvidia_driver_module_later": True}, again
        return going

    def _announce(self, chosen: Mapping[Build, list[str]]) -> None:
        """Report for each build the nodes that compile it, and for how many nodes."""
        for build, nodes in chosen.items():
            count = len(self._wanting(build))
            what_for = f"once for {count} nodes" if count > 1 else "for the nodes that have its kernel"
            verb = "compiles" if len(nodes) == 1 else "each compile"
            self._run.narrate(f"{fold(nodes)} {verb} the {build}, {what_for}")

    def _offers(self, node: str) -> dict[str, Any]:
        """Return a node's variables with the builds in the store that are for it, possibly empty.

        A builder keeps the modules that it compiled and signed itself, unless the site's signature is
        required.

        Raises:
            Refused: a build was changed.
        """
        need = self._needs.get(node, Need(()))
        own = need.there if not self._store.signs else frozenset()
        builds = [each for each in need.builds if not (each in own and self._name(node) in each.builders)]
        self._found |= {each: self._store.find(each) for each in builds if not self._found.get(each)}
        offers = [kept.offer() for build in builds if (kept := self._found[build])]
        return {"nvidia_driver_builds": offers} if offers else {}

    def _name(self, node: str) -> str:
        """Return a node's name as a builder."""
        return self._called.get(node, node)

    def _wanting(self, build: Build) -> list[str]:
        """Return the nodes that need a build."""
        return [name for name, need in self._needs.items() if build in need.builds]

    def _missing(self) -> dict[Build, list[str]]:
        """Return the builds that the store lacks → their builders among the nodes of this run, maybe none;
        raises as `Store.leftover`.

        Report folders of the store with builds without a stated builder.
        """
        missing = {}
        for build in dict.fromkeys(build for need in self._needs.values() for build in need.builds):
            if self._store.find(build) is None:
                wanting = self._wanting(build)
                missing[build] = [name for name in wanting if self._name(name) in build.builders]
                if old := self._store.leftover(build):
                    self._run.narrate(
                        f"{old} has builds without a stated builder, which are not used:"
                        f" rm -r {shlex.quote(str(old))}"
                    )
        return missing

    def _take(self, builds: Iterable[Build]) -> None:
        """Fetch builds from their builders into the store, and report the result.

        If that fails, every node that may compile compiles the module.

        Raises:
            GpuprovError: they have to be signed, and cannot be.
        """
        for build in builds:
            kept = contained(fold(build.builders), partial(self._kept, build))
            by = fold(build.builders)
            if isinstance(kept, Kept):
                megabytes = kept.archive.stat().st_size / 1e6
                self._run.narrate(f"the {build} is in the store ({megabytes:.0f} MB, by {by})")
            elif self._store.signs and not isinstance(kept, (NodeFailed, Unreachable)):
                raise kept
            else:
                self._run.narrate(f"the {build} by {by} is not in the store: {kept}")

    def _kept(self, build: Build) -> Kept:
        """Fetch a build from all its builders and put it into the store.

        Raises:
            NodeFailed: a builder could not compile it or does not have it, or the builders' modules differ.
            Unreachable: a builder cannot be reached.
            GpuprovError: it cannot be signed.
        """
        nodes = {self._name(name): name for name in self._hosts}
        if absent := [builder for builder in build.builders if builder not in nodes]:
            raise NodeFailed(
                f"{fold(absent)} is not a host of the lock", do="bring its modules: docs/guides/modules.md"
            )
        made = {}
        for builder in build.builders:
            node = nodes[builder]
            if not self._has(build, node):
                raise NodeFailed(f"{builder} has not compiled it for that kernel and compiler")
            made[builder] = self._fetched(build, builder, node)
        return self._store.keep(build, made)

    def _has(self, build: Build, node: str) -> bool:
        """Return whether a builder compiled it in this run, or has it on its disk from an earlier run.

        A node that is not in this run's plan is asked, see `needed`.
        """
        if node not in self._needs:
            self._needs |= needed(self._run, [node])
        need, outcome = self._needs.get(node, Need(())), self._done.get(node)
        return build in need.builds and _compiled(outcome) if outcome else build in need.there

    def _fetched(self, build: Build, builder: str, node: str) -> bytes:
        """Fetch the archive of a build from a node, whose name as a builder is `builder`, as `fetch` does."""
        [way] = targets(self._run.lock, [node])
        return fetch(way, build, builder, self._run.options.dispatch.password)


def needed(run: RunContext, names: Iterable[str]) -> dict[str, Need]:
    """Return the need of each node; nodes that do not answer are reported and omitted.

    If workers reach the nodes, return {}: every node then compiles for itself.

    Raises:
        Refused: workers reach the nodes, and a node depends on the store of this controller.
    """
    names = list(names)
    if run.options.dispatch.crew is not None:
        _refuse_dependent(run.lock.hosts(), names)
        return {}  # workers do not have this controller's store: every node compiles for itself
    asked = Parameters(collectors=("system", "kernels", "modules", "disk_modules"))
    password, hosts = run.options.dispatch.password, run.lock.hosts()
    answers = fan_out(
        targets(run.lock, names),
        lambda session: need_of(hosts[session.target.name], collect(session, asked, password=password)),
        dispatch=run.options.dispatch,
    )
    found = {way.name: answer for way, answer in answers}
    failed = ((name, str(answer)) for name, answer in found.items() if isinstance(answer, GpuprovError))
    for nodes, said in fold_alike(failed):
        run.narrate(f"{nodes}: {said}")
    return {name: answer for name in names if not isinstance(answer := found[name], GpuprovError)}


def _refuse_dependent(hosts: Mapping[str, LockedGroup], names: list[str]) -> None:
    """Refuse nodes that depend on the store of this controller.

    Raises:
        Refused: a node's modules have to be signed, or the lock does not allow a node to compile.
    """
    signed = [name for name in names if hosts[name].secure_boot]
    bare = [name for name in names if not hosts[name].components.driver.may_compile(name)]
    if signed or bare:
        why = "are signed on this controller" if signed else "are compiled for nodes without a compiler"
        raise Refused(
            f"{fold(signed or bare)}: modules {why}, and workers do not have its store", do="--workers none"
        )


def need_of(group: LockedGroup, facts: Facts) -> Need:
    """Return the builds for a node's kernels, whether it has no driver at all, and the builds that it has.

    Raises:
        NodeFailed: the name of a kernel or of a compiler is invalid.
    """
    named = group.setting("kernel") or "running"
    kernels = facts.kernels.counting if named == "running" else (named,)
    builds = {kernel: build_of(group, kernel, facts.kernels.compilers.get(kernel, "")) for kernel in kernels}
    on_disk = facts.disk_modules
    version = group.components.driver.version
    there = frozenset(
        build
        for kernel, build in builds.items()
        if any(module.version == version for module in on_disk.get(kernel, {}).values())
    )
    return Need(tuple(builds.values()), facts.loaded_driver is None and not any(on_disk.values()), there)


def _compiled(outcome: NodeOutcome) -> bool:
    """Return whether a builder was reachable and ran preflight, repositories and nvidia_driver without a
    failure, even if a later role failed.
    """
    there = outcome.unreachable is None and outcome.refused is None
    return there and not any(event.get("role") in (*LEADING, "") for event in outcome.failed)

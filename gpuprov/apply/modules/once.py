"""Compile once: one node of those that need the same module builds it, the others get what it made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from gpuprov.apply.context import RunContext
from gpuprov.apply.modules.build import Build, build_of
from gpuprov.apply.modules.handing import fetched
from gpuprov.apply.modules.signing import store_of
from gpuprov.apply.modules.store import Kept, Store
from gpuprov.apply.playbook import NodeOutcome, run_playbook
from gpuprov.errors import GpuprovError, Refused
from gpuprov.model.lock import LockedGroup
from gpuprov.model.nodeset import fold
from gpuprov.probe.collect import collect
from gpuprov.probe.facts import Facts
from gpuprov.probe.payload import Parameters
from gpuprov.ssh import elsewhere
from gpuprov.ssh.contained import contained
from gpuprov.ssh.transport import fan_out, targets

LEADING = ("preflight", "repositories", "nvidia_driver")
"""The roles that bring a node to a module of its own."""
BUILDERS = 2
"""Nodes that try to compile the same before every node does so for itself."""
Nodes = Mapping[str, dict[str, Any]]
"""Node → variables of that node alone, `gpuprov_roles` among them."""


class Once:
    """What a run's nodes need of compiled modules, and where that comes from."""

    def __init__(self, run: RunContext, nodes: Nodes, store: Store | None = None) -> None:
        """Ask the nodes that are to get the driver, in groups that compile once, for their kernels.

        Args:
            store: another one than the controller's.
        """
        self._run, self._nodes, self._store = run, nodes, store or store_of(run.lock)
        self._hosts = run.lock.hosts()
        shared = [
            name
            for name, stated in nodes.items()
            if self._hosts[name].components.driver.shared and "nvidia_driver" in stated["gpuprov_roles"]
        ]
        self._needs = needed(run, shared) if shared else {}
        self._found: dict[Build, Kept | None] = {}

    def compile(self) -> dict[str, NodeOutcome]:
        """Have one node build what several need and the store lacks, and keep it.

        Returns:
            What was done to the nodes that compiled.

        Raises:
            Refused: a build in the store was changed.
            GpuprovError: Ansible itself could not run.
        """
        done: dict[str, NodeOutcome] = {}
        for turn in range(BUILDERS):
            chosen = dict(self._builders(done))
            if not chosen:
                break
            for build, node in chosen.items():
                count = len(self._wanting(build))
                what_for = f"once for {count} nodes" if count > 1 else "to be signed here"
                self._run.narrate(f"{node} compiles the {build}, {what_for}")
            builders = {name: self._only_driver(name) for name in dict.fromkeys(chosen.values())}
            done |= run_playbook("site", builders, self._run, part=f"compile-{turn + 1}")
            self._take({build: node for build, node in chosen.items() if done[node].ok})
        return done

    def keep(self, sound: Iterable[str]) -> None:
        """Take in what nodes compiled for themselves, so that the next ones need not."""
        if self._run.options.check:
            return
        there = set(sound)
        missing = {
            build: nodes[0]
            for build in self._builds()
            if (nodes := [name for name in self._wanting(build) if name in there])
            and self._store.find(build) is None
        }
        self._take(missing)

    def offers(self, node: str) -> dict[str, Any]:
        """Variables of a node: the builds in the store that are for it.

        Raises:
            Refused: one was changed.
        """
        builds = self._needs.get(node, ())
        self._found |= {build: self._store.find(build) for build in builds if build not in self._found}
        offers = [kept.offer() for build in builds if (kept := self._found[build])]
        return {"nvidia_driver_builds": offers} if offers else {}

    def _builds(self) -> list[Build]:
        return list(dict.fromkeys(build for builds in self._needs.values() for build in builds))

    def _wanting(self, build: Build) -> list[str]:
        return [name for name, builds in self._needs.items() if build in builds]

    def _builders(self, tried: Mapping[str, NodeOutcome]) -> Iterator[tuple[Build, str]]:
        """Missing builds that go from one node to others, each with a node that has not tried yet.

        One that is signed here goes back to the node that compiled it, too.
        """
        for build in self._builds():
            wanting = self._wanting(build)
            left = [name for name in builders(self._hosts, wanting) if name not in tried]
            shared = len(wanting) > 1 or self._store.signs
            if shared and left and self._store.find(build) is None:
                yield build, left[0]

    def _only_driver(self, name: str) -> dict[str, Any]:
        stated = self._nodes[name]
        return {**stated, "gpuprov_roles": [role for role in stated["gpuprov_roles"] if role in LEADING]}

    def _take(self, built: Mapping[Build, str]) -> None:
        """Fetch builds from the nodes that made them. One that cannot be had is compiled by every node.

        Raises:
            GpuprovError: nodes are to have it signed, which none of them can do for itself.
        """
        for build, name in built.items():
            kept = contained(name, partial(self._fetched, build, name))
            if isinstance(kept, GpuprovError):
                if self._store.signs:
                    raise kept
                self._run.narrate(f"the {build} of {name} is not kept: {kept}")
            else:
                megabytes = kept.archive.stat().st_size / 1e6
                self._run.narrate(f"the {build} is in the store ({megabytes:.0f} MB, by {name})")

    def _fetched(self, build: Build, name: str) -> Kept:
        [way] = targets(self._run.lock, [name])
        return self._store.keep(build, fetched(way, build, self._run.options.become_password), name)


def needed(run: RunContext, names: Iterable[str]) -> dict[str, list[Build]]:
    """Node → the builds that it needs, one a kernel that counts; those that do not answer are left out.

    Raises:
        Refused: workers are engaged, and a node cannot do without the store of this controller.
    """
    names = list(names)
    if elsewhere.is_engaged():
        _refuse_dependent(run.lock.hosts(), names)
        return {}  # the store is here, and workers are elsewhere: there every node compiles for itself
    asked = Parameters(collectors=("system", "kernels"))
    password, hosts = run.options.become_password, run.lock.hosts()
    answers = fan_out(
        targets(run.lock, names),
        lambda session: builds_of(hosts[session.target.name], collect(session, asked, password=password)),
        forks=run.options.forks,
    )
    found = {way.name: answer for way, answer in answers}
    told: dict[str, list[str]] = defaultdict(list)
    for name, answer in found.items():
        if isinstance(answer, GpuprovError):
            told[str(answer)].append(name)
    for said, nodes in told.items():
        run.narrate(f"{fold(nodes)}: {said}")
    return {name: answer for name in names if not isinstance(answer := found[name], GpuprovError)}


def builders(hosts: Mapping[str, LockedGroup], names: Iterable[str]) -> list[str]:
    """Those of the nodes that may compile for others, the named builder first."""
    drivers = {name: hosts[name].components.driver for name in names}
    able = [name for name, driver in drivers.items() if driver.may_compile(name)]
    return sorted(able, key=lambda name: name != drivers[name].builder)


def _refuse_dependent(hosts: Mapping[str, LockedGroup], names: list[str]) -> None:
    signed = [name for name in names if hosts[name].secure_boot]
    bare = [name for name in names if not hosts[name].components.driver.may_compile(name)]
    if signed or bare:
        why = "are signed on this controller" if signed else "are compiled for nodes without a compiler"
        raise Refused(
            f"{fold(signed or bare)}: modules {why}, and workers do not have its store", do="--workers none"
        )


def builds_of(group: LockedGroup, facts: Facts) -> list[Build]:
    """The builds that a node of a group needs."""
    named = group.setting("kernel") or "running"
    kernels = facts.kernels.counting if named == "running" else (named,)
    return [build_of(group, kernel, facts.kernels.compilers.get(kernel, "")) for kernel in kernels]

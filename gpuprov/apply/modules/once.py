"""Compile once: one node of those that need the same module builds it, the others get what it made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
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
from gpuprov.model.nodeset import fold, fold_alike
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


@dataclass(frozen=True)
class Need:
    """What a node needs: builds, one a kernel that counts. `bare` is a node without any driver's module."""

    builds: tuple[Build, ...]
    bare: bool = False


class Once:
    """The roles of a run's nodes, and what those need of compiled modules."""

    def __init__(self, run: RunContext, nodes: Nodes, store: Store | None = None) -> None:
        """Ask the nodes that are to get the driver, in groups that compile once, for their kernels.

        Args:
            store: another one than the controller's.
        """
        self._run, self._store = run, store or store_of(run.lock)
        self._hosts = run.lock.hosts()
        shared = [
            name
            for name, stated in nodes.items()
            if self._hosts[name].components.driver.shared and "nvidia_driver" in stated["gpuprov_roles"]
        ]
        self._needs = needed(run, shared) if shared else {}
        self._found: dict[Build, Kept | None] = {}
        self._left, self._done = dict(nodes), dict[str, NodeOutcome]()
        self._prepared: set[str] = set()

    def apply(self) -> dict[str, NodeOutcome]:
        """Run every node's roles, in one turn of the playbook, or in two where a module is missing.

        In the first turn one node of those that need the same module compiles it, and bare ones do
        everything else. A builder that fails costs a turn more.

        Raises:
            Refused: a build in the store was changed.
            GpuprovError: Ansible itself could not run, or a module cannot be signed.
        """
        turn = 0
        while self._left:
            chosen = dict(self._builders()) if turn < BUILDERS and not self._run.options.check else {}
            self._announce(chosen)
            going = self._going(chosen)
            outcomes = run_playbook("site", going, self._run, part=f"again-{turn}" if turn else "")
            for name, outcome in outcomes.items():
                self._done.setdefault(name, NodeOutcome()).add(outcome)
                if not outcome.ok:
                    self._left.pop(name, None)
            self._take({build: node for build, node in chosen.items() if _compiled(outcomes[node])})
            turn += 1
        self._keep()
        return self._done

    def _going(self, chosen: Mapping[Build, str]) -> dict[str, dict[str, Any]]:
        """What runs on which nodes now; what they still have to do is left."""
        going: dict[str, dict[str, Any]] = {}
        for name, stated in list(self._left.items()):
            again = {**stated, "gpuprov_roles": ["nvidia_driver"]}
            need = self._needs.get(name, Need(()))
            if name in chosen.values() and self._store.signs:
                going[name], self._left[name] = stated, again
            elif name in chosen.values() or not chosen.keys() & set(need.builds):
                going[name] = {**stated, **self._offers(name)}
                del self._left[name]
            elif need.bare and name not in self._prepared:
                going[name], self._left[name] = {**stated, "nvidia_driver_module_later": True}, again
                self._prepared.add(name)
        return going

    def _announce(self, chosen: Mapping[Build, str]) -> None:
        for build, node in chosen.items():
            count = len(self._wanting(build))
            what_for = f"once for {count} nodes" if count > 1 else "to be signed here"
            self._run.narrate(f"{node} compiles the {build}, {what_for}")

    def _keep(self) -> None:
        """Take in what nodes compiled for themselves, so that the next ones need not."""
        if self._run.options.check:
            return
        there = {name for name, outcome in self._done.items() if outcome.ok}
        missing = {
            build: nodes[0]
            for build in self._builds()
            if (nodes := [name for name in self._wanting(build) if name in there])
            and self._store.find(build) is None
        }
        self._take(missing)

    def _offers(self, node: str) -> dict[str, Any]:
        """Variables of a node: the builds in the store that are for it.

        Raises:
            Refused: one was changed.
        """
        builds = self._needs[node].builds if node in self._needs else ()
        found = ((build, self._store.find(build)) for build in builds if not self._found.get(build))
        self._found |= dict(found)
        offers = [kept.offer() for build in builds if (kept := self._found[build])]
        return {"nvidia_driver_builds": offers} if offers else {}

    def _builds(self) -> list[Build]:
        return list(dict.fromkeys(build for need in self._needs.values() for build in need.builds))

    def _wanting(self, build: Build) -> list[str]:
        return [name for name, need in self._needs.items() if build in need.builds]

    def _builders(self) -> Iterator[tuple[Build, str]]:
        """Missing builds that go from one node to others, each with a node that has not tried yet.

        One that is signed here goes back to the node that compiled it, too.
        """
        for build in self._builds():
            wanting = self._wanting(build)
            left = [name for name in builders(self._hosts, wanting) if name in self._left]
            shared = len(wanting) > 1 or self._store.signs
            if shared and left and self._store.find(build) is None:
                yield build, left[0]

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


def needed(run: RunContext, names: Iterable[str]) -> dict[str, Need]:
    """What each node needs; those that do not answer are left out.

    Raises:
        Refused: workers are engaged, and a node cannot do without the store of this controller.
    """
    names = list(names)
    if elsewhere.is_engaged():
        _refuse_dependent(run.lock.hosts(), names)
        return {}  # the store is here, and workers are elsewhere: there every node compiles for itself
    asked = Parameters(collectors=("system", "kernels", "modules", "disk_modules"))
    password, hosts = run.options.become_password, run.lock.hosts()
    answers = fan_out(
        targets(run.lock, names),
        lambda session: need_of(hosts[session.target.name], collect(session, asked, password=password)),
        forks=run.options.forks,
    )
    found = {way.name: answer for way, answer in answers}
    failed = ((name, str(answer)) for name, answer in found.items() if isinstance(answer, GpuprovError))
    for nodes, said in fold_alike(failed):
        run.narrate(f"{nodes}: {said}")
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


def need_of(group: LockedGroup, facts: Facts) -> Need:
    """What a node of a group needs."""
    named = group.setting("kernel") or "running"
    kernels = facts.kernels.counting if named == "running" else (named,)
    builds = (build_of(group, kernel, facts.kernels.compilers.get(kernel, "")) for kernel in kernels)
    return Need(tuple(builds), facts.loaded_driver is None and not any(facts.disk_modules.values()))


def _compiled(outcome: NodeOutcome) -> bool:
    """Whether a builder came as far as its module, whatever went wrong after that."""
    there = outcome.unreachable is None and outcome.refused is None
    return there and not any(event.get("role") in (*LEADING, "") for event in outcome.failed)

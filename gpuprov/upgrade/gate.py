"""The gate: checks that every node may move, before any node moves. One request per node."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpuprov.apply.jobs import gpu_users, preflight_values
from gpuprov.apply.lease import read_lease
from gpuprov.apply.lease_manager import is_abandoned
from gpuprov.catalog.platforms import headers_package, platform
from gpuprov.drift.judge import judge
from gpuprov.drift.probe_request import drift_parameters
from gpuprov.drift.survey import LIMITS
from gpuprov.drift.text import difference
from gpuprov.errors import GpuprovError
from gpuprov.finding import Finding, limited, worst_level
from gpuprov.model.lock import LockedGroup
from gpuprov.model.nodeset import fold
from gpuprov.model.secure_boot import LockedSecureBoot
from gpuprov.probe.collect import ask
from gpuprov.probe.facts import Facts
from gpuprov.probe.payload import PROBE, Payload
from gpuprov.probe.payload import pack as program
from gpuprov.roles import expectations
from gpuprov.roles.manager import Manager, manager
from gpuprov.ssh.contained import contained
from gpuprov.ssh.transport import PerNode, fan_out, targets
from gpuprov.untrusted.numbers import finite
from gpuprov.upgrade.context import UpgradeContext
from gpuprov.upgrade.fetching import closure

MODULES = (*PROBE[:-1], "gpuprov.upgrade.node.gate", PROBE[-1])
COLLECTORS = ("gate", "gpu_use", "kernels", "modules", "packages", "secure_boot", "state")
"""Collectors of the gate, in addition to those of drift."""
AGAIN_S = 2.0
REPAIRS: dict[Manager, str] = {"apt": "dpkg --configure -a", "dnf": "dnf remove --duplicates"}
"""Package manager → the command that completes an interrupted transaction."""


@dataclass(frozen=True)
class NodeGate:
    """The gate's result for one node.

    Args:
        moves: package → (installed version or None, new version).
        awake_s: seconds since the node booted.
    """

    name: str
    findings: tuple[Finding, ...]
    moves: Mapping[str, tuple[str | None, str]]
    awake_s: float = math.inf

    @property
    def shut(self) -> tuple[Finding, ...]:
        """The findings that do not allow this node to move."""
        return tuple(finding for finding in self.findings if finding.level == "bad")

    def wakes(self, settle_s: float) -> bool:
        """Return whether the node has drift, but booted so recently that units may not have run yet."""
        return self.awake_s < settle_s and any(finding.rule == "drift" for finding in self.shut)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: verdict, findings, and package → the versions before and after."""
        return {
            "name": self.name,
            "verdict": worst_level(self.findings),
            "findings": [finding.as_dict() for finding in self.findings],
            "moves": {name: {"from": was, "to": will} for name, (was, will) in self.moves.items()},
        }


def ask_gate(
    context: UpgradeContext, names: Collection[str], accepted: Collection[str] = ()
) -> list[NodeGate]:
    """Ask and judge every node; return the results in the order of `names`.

    A node that has just booted is asked again, every `AGAIN_S`, until its units have run, or its time to
    settle is over. A node that cannot be asked has that as its finding.

    Args:
        accepted: checks of drift that the user accepts.
    """
    made: dict[tuple[int, int], Payload] = {}
    payloads: dict[str, Payload] = {}
    for name in names:
        old, new = context.groups[name]
        if (id(old), id(new)) not in made:
            made[id(old), id(new)] = _payload(old, new, context.options.dispatch.password)
        payloads[name] = made[id(old), id(new)]

    work = PerNode(ask, payloads)
    found: dict[str, NodeGate] = {}
    asked, deadline, result = list(names), time.monotonic() + context.rollout.settle_s, False
    while asked:
        waking: list[str] = []
        for target, answer in fan_out(
            targets(context.old, asked), work, answer=Facts, dispatch=context.options.dispatch, limits=LIMITS
        ):
            found[target.name] = judge_node(context, target.name, answer, accepted)
            if found[target.name].wakes(context.rollout.settle_s):
                waking.append(target.name)
        asked = waking if time.monotonic() < deadline else []
        if asked and not result:
            context.narrate(f"waiting for {fold(asked)} to settle after booting")
        result = True
        time.sleep(AGAIN_S if asked else 0)
    return [found[name] for name in names]


def _payload(old: LockedGroup, new: LockedGroup, password: str | None) -> Payload:
    """Return the request for the probe and the gate, the same for all nodes of an old and a new group."""
    asked = asdict(drift_parameters(old))
    asked["collectors"] = sorted({*asked["collectors"], *COLLECTORS})
    moving = sorted({*closure(old), *closure(new)})
    asked["packages"] = sorted({*asked["packages"], *moving})
    asked["gate_packages"] = [
        *moving,
        *(_headers(new, kernel) for kernel in _named_kernel(new)),
    ]
    return program(MODULES, asked, password=password)


def judge_node(
    context: UpgradeContext, name: str, answer: Facts | GpuprovError, accepted: Collection[str]
) -> NodeGate:
    """Return the gate's result for one node from its answer; an error is a bad finding."""
    if not isinstance(answer, Facts):
        return NodeGate(name, tuple(limited([Finding("bad", "reach", str(answer))])), {})
    judged = contained(name, lambda: _judge_facts(context, name, answer, accepted))
    if isinstance(judged, GpuprovError):
        return NodeGate(name, tuple(limited([Finding("bad", "facts", str(judged))])), {})
    return judged


def _judge_facts(context: UpgradeContext, name: str, facts: Facts, accepted: Collection[str]) -> NodeGate:
    """Return the findings and the moves of a node by its facts; without root's rights only that finding.

    Raises:
        GpuprovError: a fact is missing or not as expected.
    """
    if not facts.is_root:
        result = "no root rights on the node: sudo asks for a password (-K)"
        return NodeGate(name, (Finding("bad", "reach", result),), {})
    old, new = context.groups[name]
    moves = _moves(facts, new)
    findings = [
        *_drift(facts, old, accepted),
        *_packages(facts, old, new, moves),
        *_room(facts),
        *_kernel(facts, new),
        *_use(facts, drained=context.rollout.hooks.drain is not None),
        *_others(facts, context.id),
    ]
    return NodeGate(name, tuple(limited(findings)), moves, awake_s=finite(facts.raw("gate")["awake_s"]))


def _moves(facts: Facts, new: LockedGroup) -> dict[str, tuple[str | None, str]]:
    """Return package → (installed version or None, new version), for packages that the new lock changes."""
    wanted = closure(new).items()
    return {
        name: (facts.packages.version(name), version)
        for name, version in wanted
        if facts.packages.version(name) != version
    }


def _drift(facts: Facts, old: LockedGroup, accepted: Collection[str]) -> Iterator[Finding]:
    """Yield drift from the old lock as bad, since a node with drift could not return to that lock; accepted
    checks are only warnings.
    """
    for each in judge("", facts, expectations(old)).drift:
        if each.check in accepted:
            yield Finding("warn", "drift", f"{difference(each)}; accepted")
        else:
            yield Finding("bad", "drift", difference(each))


def _packages(
    facts: Facts, old: LockedGroup, new: LockedGroup, moves: Mapping[str, tuple[str | None, str]]
) -> Iterator[Finding]:
    """Yield problems of packages.

    These are: versions that an upgrade or rollback needs and cannot get, half-installed packages, and a
    package manager at work. With other repositories in the new lock, new versions are only a warning.
    """
    result = facts.raw("gate")
    offered = {(name, version) for name, version in result["offered"]}
    kept, arch = set(result["kept"]), result["architecture"]

    def missing(versions: Iterable[tuple[str, str | None]]) -> str:
        """Return as text the first three package versions that no repository offers and the pool does not
        have, and the number of the others.
        """
        lacking = [
            f"{name} {version}"
            for name, version in versions
            if version and (name, version) not in offered and not _files(name, version, arch) & kept
        ]
        return ", ".join(lacking[:3]) + (f" and {len(lacking) - 3} more" if len(lacking) > 3 else "")

    if new.repositories == old.repositories:
        if lacking := missing((name, version) for name, (_, version) in moves.items()):
            yield Finding("bad", "packages", f"no repository of the node has {lacking}; lock again")
    elif moves:
        yield Finding(
            "warn",
            "packages",
            "the new lock has other repositories: packages are checked when they are fetched",
        )
    if lacking := missing((name, was) for name, (was, _) in moves.items()):
        yield Finding(
            "bad",
            "way-back",
            f"{lacking} is in no repository and not on the node: a rollback cannot install it",
        )
    if broken := facts.packages.broken:
        names = ", ".join(package.name for package in broken[:3])
        mend = REPAIRS[manager(old)]
        yield Finding("bad", "packages", f"{names} half installed: run `{mend}` on the node")
    if busy := facts.state.package_manager_busy:
        yield Finding("bad", "packages", f"{busy} holds the package manager's lock")


def _files(name: str, version: str, arch: str) -> set[str]:
    """Return the names of files that contain a version of a package, for the architecture and for all."""
    plain = version.rpartition(":")[2]
    rpms = {f"{name}-{plain}.{each}.rpm" for each in (arch, "noarch")}
    version = version.replace(":", "%3a")
    return rpms | {f"{name}_{version}_{each}.deb" for each in (arch, "all")}


def _headers(group: LockedGroup, kernel: str) -> str:
    """Return the name of the package with a kernel's headers."""
    return headers_package(platform(group.os), kernel)


def _room(facts: Facts) -> Iterator[Finding]:
    """Yield folders with less free space than the roles need; those with unknown space are skipped."""
    for folder, wanted in preflight_values("defaults")["preflight_free_mb"].items():
        free = facts.state.free_mib.get(folder)
        if free is not None and free < wanted:
            yield Finding("bad", "room", f"{folder} has {free} MB free, {wanted} are needed")


def _kernel(facts: Facts, new: LockedGroup) -> Iterator[Finding]:
    """Yield problems of a driver whose module is compiled.

    These are: kernels that the lock names, or else relevant ones, without headers, installed or in a
    repository; and under Secure Boot a signature that the node may not trust.
    """
    if not new.components.driver.compiled:
        return
    offered = {name for name, _ in facts.raw("gate")["offered"]}
    for kernel in sorted(_named_kernel(new) or facts.kernels.counting):
        if kernel not in facts.kernels.headers and _headers(new, kernel) not in offered:
            yield Finding("bad", "headers", f"no headers of kernel {kernel}, to build the module against")
    if facts.state.secure_boot:
        yield from _trust(facts, new.secure_boot if new.components.driver.shared else None)


def _trust(facts: Facts, stated: LockedSecureBoot | None) -> Iterator[Finding]:
    """Yield, for Secure Boot, that the node may not trust the signature of the new module.

    Args:
        stated: the certificate by which all modules are signed; None if the node signs its own.
    """
    if stated is None:
        if facts.loaded_driver is None:
            yield Finding(
                "bad",
                "secure-boot",
                "Secure Boot is on, and no loaded module shows that modules built on this node are trusted",
            )
    elif stated.fingerprint not in facts.secure_boot.enrolled:
        said = f"the certificate of {stated.signer} ({stated.serial}) is not enrolled"
        yield Finding("bad", "secure-boot", f"{said}: `gpuprov bootstrap` prepares it")


def _named_kernel(group: LockedGroup) -> list[str]:
    """Return the kernel that the group states; [] if it is the running one."""
    kernel = group.setting("kernel") or "running"
    return [] if kernel == "running" else [kernel]


def _use(facts: Facts, *, drained: bool) -> Iterator[Finding]:
    """Yield programs that use the GPUs, only as a warning if the node is drained first.

    NVIDIA's own daemons do not count.
    """
    if users := gpu_users(facts):
        said = f"the GPUs are in use by {', '.join(users)}"
        yield (
            Finding("warn", "idle", f"{said}; the node is drained first")
            if drained
            else Finding("bad", "idle", said)
        )


def _others(facts: Facts, run: str) -> Iterator[Finding]:
    """Yield the lease of another run as a problem, unless that run has ended; raises as `read_lease`."""
    lease = read_lease(facts.raw("gate")["lease"])
    if lease and lease.run != run and not is_abandoned(lease):
        yield Finding("bad", "lease", f"{lease}; {lease.advice}")

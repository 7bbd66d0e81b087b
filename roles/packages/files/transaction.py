"""Brings sets of packages to their versions in one transaction of apt, and remembers what belongs to which.

Runs on the node, with plugins/module_utils beside it. Argument: one JSON object, an
`Order`. Answers

    {"sets": ["cudnn", "nccl"], "transaction": ["libnccl2=2.28.9-1+cuda13.0", "libnccl1-"],
     "residue": ["nvidia-driver-pinning-570"], "remembers": ["nccl"], "led": true, "refreshed": true,
     "changed": true, "failure": null}
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

import gpuprov_apt as apt
import gpuprov_containers as containers
import gpuprov_node as node
from gpuprov_replace import make_folders, replace

RECORDS = Path("/var/lib/gpuprov/packages")


class Order(NamedTuple):
    """What is asked for.

    `what` names it for people. `sets` are packages with their versions, by the name of the set that they
    belong to; `beside` has to be there in any version. `along` are further sets; those are taken along that
    are new to the node. `along_beside` is what they need beside. What matches `unwanted`, beginnings of
    name=version, is removed, whoever installed it. `idle` are daemons (docker) that must have no container
    once everything is fetched. `refreshed` says that the lists of packages were read a moment ago, `check`
    that nothing must be changed. Timeouts are seconds.
    """

    what: str
    sets: dict[str, dict[str, str]]
    beside: list[str]
    along: dict[str, dict[str, str]]
    along_beside: list[str]
    unwanted: list[str]
    idle: list[str]
    allow_downgrade: bool
    refreshed: bool
    check: bool
    lock_timeout: int
    fetch_timeout: int


class Found(NamedTuple):
    """What dpkg and our records say; `left` are packages with only their configuration left."""

    installed: dict[str, str]
    left: dict[str, str]
    records: dict[str, list[str]]


class Plan(NamedTuple):
    """What has to be done for which sets.

    `transaction` are words for apt-get install, `residue` is configuration that must not stay behind (that of
    a pinning package still pins), `remembers` the sets to be remembered.
    """

    sets: list[str]
    transaction: list[str]
    residue: list[str]
    remembers: list[str]


def main() -> None:
    """Print the document."""
    apt.quietly()
    asked, found = Order(**json.loads(sys.argv[1])), look()
    order = joined(asked, found)
    plan = planned(order, found)
    refreshed, failure = order.refreshed, None
    if not order.check:
        try:
            if plan.transaction + plan.residue:
                if not refreshed:
                    apt.read_lists(order.fetch_timeout, order.lock_timeout)
                    refreshed = True
                try:
                    fetch(order, plan)
                except apt.Failed:
                    alone = without_others(asked, order)
                    if order == alone:
                        raise
                    order, plan = alone, planned(alone, found)
                    fetch(order, plan)
                transact(order, plan)
            apt.settle()  # also what a transaction that was cut off left to be made
            remember({name: order.sets[name] for name in plan.remembers})
        except apt.Failed as error:
            failure = apt.failure(intent(order, plan), error)
    changed = bool(plan.transaction + plan.residue + plan.remembers)
    how = {"led": order != asked, "refreshed": refreshed, "changed": changed, "failure": failure}
    document = {**plan._asdict(), **how}
    sys.stdout.write("\n" + json.dumps(document) + "\n")


def intent(order: Order, plan: Plan) -> str:
    """What failed, as a sentence begins."""
    what = order.what or f"packages of {', '.join([*plan.sets, *order.beside])}"
    along = [name for name in plan.sets if name in order.along]
    if order.what and along:
        what += f", or what comes with it ({', '.join(along)}),"
    comes = any(order.sets[name] for name in plan.sets) or order.beside
    return f"{what} could not be {'installed' if comes else 'removed'}"


def look() -> Found:
    """The node as it is."""
    rows = node.packages()
    return Found(
        {row.name: row.version for row in rows if row.state not in "nc"},
        {row.name: row.version for row in rows if row.state == "c"},
        {path.name: path.read_text().split() for path in RECORDS.glob("*")},
    )


def joined(order: Order, found: Found) -> Order:
    """The order with what comes along, as long as its own sets, where it has any, need something."""
    if order.sets and not planned(order, found).transaction:
        return order
    along = {name: packages for name, packages in order.along.items() if new(name, packages, found)}
    beside = dict.fromkeys([*order.beside, *order.along_beside])
    return order._replace(sets={**order.sets, **along}, beside=list(beside))


def without_others(asked: Order, order: Order) -> Order:
    """The order without sets that cannot come along: those are left to their own roles, which say why."""
    return asked if asked.sets else order._replace(sets={})


def planned(order: Order, found: Found) -> Plan:
    """What an order means for the node as it is, without what comes along."""
    sets = [*order.sets]
    wanted = {package: version for packages in order.sets.values() for package, version in packages.items()}
    ours = {package for name in sets for package in found.records.get(name, [])}
    others = {package for name, words in found.records.items() if name not in sets for package in words}
    going = ((ours - others) | unwanted(order.unwanted, found)) - wanted.keys()
    return Plan(
        sets,
        [package for package in order.beside if package not in found.installed]
        + sorted(
            f"{package}={version}"
            for package, version in wanted.items()
            if found.installed.get(package) != version
        )
        + sorted(f"{package}-" for package in going & found.installed.keys()),
        sorted(name for name in going & found.left.keys() if apt.purged(name)),
        [name for name in sets if sorted(found.records.get(name, [])) != sorted(order.sets[name])],
    )


def new(name: str, packages: dict[str, str], found: Found) -> bool:
    """Whether the node has nothing of a set."""
    return bool(packages) and name not in found.records and not packages.keys() & found.installed.keys()


def unwanted(patterns: list[str], found: Found) -> set[str]:
    """Packages that must not be there, or whose configuration must not."""
    traces = {**found.installed, **found.left}
    return {
        name
        for name, version in traces.items()
        if any(re.match(pattern, f"{name.partition(':')[0]}={version}") for pattern in patterns)
    }


def fetch(order: Order, plan: Plan) -> None:
    """Have every package there. What goes stays within the sets.

    Raises:
        Failed: packages cannot be had, do not fit, or would remove what is of no set.
    """
    apt.fetch_packages(command(order, plan), own(order, plan), order.fetch_timeout)


def transact(order: Order, plan: Plan) -> None:
    """Install, replace and remove what was fetched, and see that it is done.

    Raises:
        Failed: apt or dpkg did, or left something undone.
    """
    idle(order)
    apt.transact(command(order, plan), plan.residue)
    left = planned(order, look())
    apt.purge(left.residue)
    if left.transaction:
        raise apt.Failed(f"apt reported success and left {', '.join(left.transaction)} to be done")


def command(order: Order, plan: Plan) -> list[str]:
    """What apt-get is told."""
    downgrades = f"--option=APT::Get::allow-downgrades={str(order.allow_downgrade).lower()}"
    return [*apt.alike(order.lock_timeout), downgrades, "install", *plan.transaction]


def idle(order: Order) -> None:
    """See once more, after a download of minutes, that no container runs which the transaction would end.

    Raises:
        Failed: one does, or the daemon does not say.
    """
    try:
        running = containers.of_docker() if "docker" in order.idle else []
    except containers.Silent as error:
        raise apt.Failed(f"{error}, and containers may have been started meanwhile") from None
    if running:
        raise apt.Failed(f"that would end {', '.join(running)}, started meanwhile")


def own(order: Order, plan: Plan) -> set[str]:
    """Names of what a transaction may remove."""
    wanted = {package for name in plan.sets for package in order.sets[name]}
    return wanted | {word[:-1] for word in plan.transaction if word.endswith("-")}


def remember(sets: dict[str, dict[str, str]]) -> None:
    """Write which packages belong to which set."""
    make_folders(str(RECORDS))
    for name, packages in sets.items():
        content = "".join(f"{package}\n" for package in sorted(packages))
        replace(str(RECORDS / name), content.encode(), 0o644)


if __name__ == "__main__":
    main()

"""Change of package sets to their versions in one transaction, with a record of each set's packages.

Runs on the node, with the modules of plugins/module_utils. Argument: a JSON object, an `Order`. Prints

    {"sets": ["cudnn", "nccl"], "transaction": ["libnccl2=2.28.9-1+cuda13.0", "libnccl1-"],
     "residue": ["nvidia-driver-pinning-570"], "remembers": ["nccl"], "settled": [],
     "led": true, "refreshed": true, "changed": true, "failure": null}
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

import gpuprov_containers as containers
import gpuprov_node as node
from gpuprov_failures import Failed
from gpuprov_manager import package_manager
from gpuprov_replace import make_folders, replace

RECORDS = Path("/var/lib/gpuprov/packages")


class Order(NamedTuple):
    """A request.

    `what` is its name in messages. `sets` are packages with their versions, by the name of their set, and
    `beside` packages needed at any version. `along` are further sets: those that are new to the node are
    installed in the same transaction, with `along_beside`, packages that they need at any version. Packages
    that match `unwanted`, regular expressions for the beginning of name=version, are removed, including those
    that gpuprov did not install. `idle` are engines (docker, podman) that must have no container after all
    downloads. `refreshed`: the package lists were read in this run. `check`: nothing is changed. Timeouts are
    seconds. `streams` are dnf's module streams that have the packages.
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
    streams: tuple[str, ...] | list[str] = ()


class Found(NamedTuple):
    """The node's packages and the role's records; `left` are removed packages that left configuration."""

    installed: dict[str, str]
    left: dict[str, str]
    records: dict[str, list[str]]


class Plan(NamedTuple):
    """The changes that are needed.

    `transaction` are `name`, `name=version`, or `name-` for a removal; `residue` removed packages whose
    configuration must go too (that of a pinning package still pins), `remembers` the sets whose record
    changes.
    """

    sets: list[str]
    transaction: list[str]
    residue: list[str]
    remembers: list[str]


def main() -> None:
    """Carry out an order unless it is a check: read lists, fetch, install and remove packages, record the
    sets; then print the plan and the result as JSON.

    The failure of a step is part of the result. If packages cannot be fetched together with other sets, the
    order's own sets are tried alone.
    """
    manager = package_manager()
    manager.set_environment()
    asked, found = Order(**json.loads(sys.argv[1])), look()
    order = joined(asked, found)
    plan = planned(order, found)
    refreshed, failure = order.refreshed, None
    if not order.check:
        try:
            if plan.transaction + plan.residue:
                require_names(order)
                try:
                    fetch(order, plan)
                except Failed:
                    alone = without_others(asked, order)
                    if order == alone:
                        raise
                    order, plan = alone, planned(alone, found)
                    fetch(order, plan)
                refreshed = True
                transact(order, plan)
            manager.make_requested_initramfs()  # also after a transaction that was killed
            remember({name: order.sets[name] for name in plan.remembers})
        except Failed as error:
            failure = manager.failure(intent(order, plan), error)
    changed = bool(plan.transaction + plan.residue + plan.remembers)
    how = {"led": order != asked, "refreshed": refreshed, "changed": changed, "failure": failure}
    document = {**plan._asdict(), "settled": settled(asked, found), **how}
    sys.stdout.write("\n" + json.dumps(document) + "\n")


def require_names(order: Order) -> None:
    """Check the names of packages that are to be installed: apt would remove `NAME-`, as if gpuprov's.

    Raises:
        Failed: one is no name of a package.
    """
    node.require_names([*order.beside, *(name for packages in order.sets.values() for name in packages)])


def intent(order: Order, plan: Plan) -> str:
    """Return the beginning of a message about a failure: the packages, and that they were not changed."""
    what = order.what or f"packages of {', '.join([*plan.sets, *order.beside])}"
    along = [name for name in plan.sets if name in order.along]
    if order.what and along:
        what += f", or a set in its transaction ({', '.join(along)}),"
    comes = any(order.sets[name] for name in plan.sets) or order.beside
    return f"{what} could not be {'installed' if comes else 'removed'}"


def look() -> Found:
    """Read the node's packages and the role's records."""
    rows = node.packages()
    return Found(
        {row.name: row.version for row in rows if row.state not in "nc"},
        {row.name: row.version for row in rows if row.state == "c"},
        {path.name: path.read_text().split() for path in RECORDS.glob("*")},
    )


def joined(order: Order, found: Found) -> Order:
    """Return the order with the further sets; without them if its own sets need no transaction."""
    if order.sets and not planned(order, found).transaction:
        return order
    along = {name: packages for name, packages in order.along.items() if new(name, packages, found)}
    return with_sets(order, along)


def with_sets(order: Order, along: dict[str, dict[str, str]]) -> Order:
    """Return the order with these further sets, and the packages that the further sets need."""
    beside = dict.fromkeys([*order.beside, *order.along_beside])
    return order._replace(sets={**order.sets, **along}, beside=list(beside))


def settled(order: Order, found: Found) -> list[str]:
    """Return the further sets if the node has all of them, with the packages that they need; else none."""
    plan = planned(with_sets(order, order.along), found)
    return [] if plan.transaction + plan.residue + plan.remembers else sorted(order.along)


def without_others(asked: Order, order: Order) -> Order:
    """Return the order without further sets; their own roles install them, and report why they cannot."""
    return asked if asked.sets else order._replace(sets={})


def planned(order: Order, found: Found) -> Plan:
    """Return the changes that an order's sets need on the node as it is: words to install and to remove,
    residue to purge, and sets to record. A package that another set needs stays.
    """
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
        sorted(name for name in going & found.left.keys() if package_manager().is_to_be_purged(name)),
        [name for name in sets if sorted(found.records.get(name, [])) != sorted(order.sets[name])],
    )


def new(name: str, packages: dict[str, str], found: Found) -> bool:
    """Return whether the node has no record and no package of a set."""
    return bool(packages) and name not in found.records and not packages.keys() & found.installed.keys()


def unwanted(patterns: list[str], found: Found) -> set[str]:
    """Return the packages, installed or removed with their configuration left, whose `name=version` begins as
    a pattern.
    """
    traces = {**found.installed, **found.left}
    return {
        name
        for name, version in traces.items()
        if any(re.match(pattern, f"{name.partition(':')[0]}={version}") for pattern in patterns)
    }


def fetch(order: Order, plan: Plan) -> None:
    """Read the package lists unless this run has read them, download every package, and check that only
    packages of the sets are removed.

    Raises:
        Failed: packages cannot be downloaded, conflict, or would remove packages of no set.
    """
    wait = None if order.refreshed else order.lock_timeout
    package_manager().fetch_packages(command(order, plan), own(order, plan), order.fetch_timeout, wait)


def transact(order: Order, plan: Plan) -> None:
    """Install, replace and remove the packages, and check that nothing is left to do.

    Raises:
        Failed: the package manager failed, or left something undone.
    """
    idle(order)
    manager = package_manager()
    manager.transact(command(order, plan), plan.residue, own(order, plan))
    left = planned(order, look())
    manager.purge(left.residue)
    if left.transaction:
        raise Failed(f"{manager.NAME} reported success but left undone: {', '.join(left.transaction)}")


def command(order: Order, plan: Plan) -> object:
    """Return the transaction in the form of the node's package manager."""
    options = (order.lock_timeout, order.allow_downgrade, order.streams)
    return package_manager().installation(plan.transaction, *options)


def idle(order: Order) -> None:
    """Check again, after downloads that may take minutes, that the transaction would end no container.

    Raises:
        Failed: a container runs, or an engine does not answer.
    """
    try:
        running = containers.of_docker() if "docker" in order.idle else []
        running += containers.of_podman() if "podman" in order.idle else []
    except containers.Silent as error:
        raise Failed(f"{error}, so that containers may have been started meanwhile") from None
    if running:
        raise Failed(f"that would end {', '.join(running)}, started meanwhile")


def own(order: Order, plan: Plan) -> set[str]:
    """Return the names of packages that a transaction may remove."""
    wanted = {package for name in plan.sets for package in order.sets[name]}
    return wanted | {word[:-1] for word in plan.transaction if word.endswith("-")}


def remember(sets: dict[str, dict[str, str]]) -> None:
    """Record the packages of each set, in a file for each, in place of the earlier record."""
    make_folders(str(RECORDS))
    for name, packages in sets.items():
        content = "".join(f"{package}\n" for package in sorted(packages))
        replace(str(RECORDS / name), content.encode(), 0o644)


if __name__ == "__main__":
    main()

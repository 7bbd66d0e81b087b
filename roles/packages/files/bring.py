"""Brings sets of packages to their versions in one transaction of apt, and remembers what belongs to which.

Standard library only; runs on the node from stdin. Argument: one JSON object, an `Order`. The last line that
it prints is one too; before it stands what apt printed:

    {"sets": ["cudnn", "nccl"], "transaction": ["libnccl2=2.28.9-1+cuda13.0", "libnccl1-"],
     "residue": ["nvidia-driver-pinning-570"], "remembers": ["nccl"], "refreshed": true}

Exit status 0, or that of the apt-get or dpkg that failed; then stderr says why in apt's own words.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

RECORDS = Path("/var/lib/gpuprov/packages")
TIMED_OUT = 124  # timeout(1), "EXIT STATUS"
PAUSE = 5  # seconds between two tries to read the lists


class Order(NamedTuple):
    """What is asked for.

    `sets` are packages with their versions, by the name of the set that they belong to; with `first` only
    those count that the node does not remember and has nothing of. `beside` has to be there in any version.
    What matches `unwanted`, beginnings of name=version, is removed, whoever installed it. `refreshed` says
    that the lists of packages were read a moment ago, `only_say` that nothing must be changed. Timeouts are
    seconds.
    """

    sets: dict[str, dict[str, str]]
    first: bool
    beside: list[str]
    unwanted: list[str]
    allow_downgrade: bool
    refreshed: bool
    only_say: bool
    lock_timeout: int
    fetch_timeout: int


class Found(NamedTuple):
    """What dpkg and our records say.

    `left` are packages of which only the configuration is there: that of a pinning package still pins.
    """

    installed: dict[str, str]
    left: dict[str, str]
    records: dict[str, list[str]]


class Plan(NamedTuple):
    """What has to be done for which sets.

    `residue` is purged, `transaction` are words for apt-get install, `remembers` the sets to be remembered.
    """

    sets: list[str]
    transaction: list[str]
    residue: list[str]
    remembers: list[str]


def main() -> int:
    # needrestart would ask, and restart services that run jobs. People read programs' own words of a failure.
    os.environ.update(DEBIAN_FRONTEND="noninteractive", NEEDRESTART_SUSPEND="1", LC_ALL="C.UTF-8")
    order = Order(**json.loads(sys.argv[1]))
    plan = planned(order, look())
    refreshed = order.refreshed
    status = 0
    if plan.transaction + plan.residue and not order.only_say:
        status = 0 if refreshed else refresh(order)
        refreshed = status == 0
        status = status or transact(order, plan)
    if not status and not order.only_say:
        remember({name: order.sets[name] for name in plan.remembers})
    sys.stdout.write("\n" + json.dumps({**plan._asdict(), "refreshed": refreshed}) + "\n")
    return status


def look() -> Found:
    """The node as it is."""
    form = "${db:Status-Abbrev}\t${Package}\t${Version}\n"
    listed = subprocess.run(["dpkg-query", "-W", "-f", form], capture_output=True, text=True, check=True)
    rows = [line.split("\t") for line in listed.stdout.splitlines()]
    return Found(
        {name: version for state, name, version in rows if state[1] not in "nc"},
        {name: version for state, name, version in rows if state[1] == "c"},
        {path.name: path.read_text().split() for path in RECORDS.glob("*")},
    )


def planned(order: Order, found: Found) -> Plan:
    """What an order means for the node as it is."""
    sets = [name for name, packages in order.sets.items() if not order.first or new(name, packages, found)]
    wanted = {package: version for name in sets for package, version in order.sets[name].items()}
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
        sorted(going & found.left.keys()),
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
        if any(re.match(pattern, f"{name}={version}") for pattern in patterns)
    }


def refresh(order: Order) -> int:
    """Read the lists of packages; apt does not wait for their lock by itself."""
    last = time.monotonic() + order.lock_timeout
    while True:
        done = fetched(order, ["update"])
        busy = re.search("Could not get lock|Unable to lock", done.stderr)
        if not busy or time.monotonic() > last:
            sys.stderr.write(done.stderr)
            return done.returncode
        time.sleep(PAUSE)


def fetched(order: Order, words: list[str]) -> subprocess.CompletedProcess[str]:
    """An apt-get that only fetches, which may be ended at any time.

    apt itself gives up on a mirror that is silent, not on one that drips.
    """
    patience = ["--option=Acquire::Retries=2"]
    patience += [f"--option=Acquire::{scheme}::Timeout=30" for scheme in ("http", "https")]
    command = ["timeout", str(order.fetch_timeout), "apt-get", "--quiet", *patience, *words]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode == TIMED_OUT:
        done.stderr += f"E: fetching took longer than {order.fetch_timeout} s\n"
    return done


def transact(order: Order, plan: Plan) -> int:
    """Fetch before anything is touched, then install, replace and remove, and see that it is done."""
    install = [*options(order), "install", *plan.transaction]
    done = fetched(order, ["--download-only", *install])
    sys.stderr.write(done.stderr)
    status = done.returncode
    if plan.residue:
        # Before the transaction: dpkg would take a new pinning package's file along with the old one's.
        status = status or run(["dpkg", "--purge", *plan.residue])
    status = status or run(["apt-get", "--quiet", *install])
    if not status and (undone := planned(order, look()).transaction):
        sys.stderr.write(f"E: apt reported success and left {', '.join(undone)} to be done\n")
        status = 1
    return status


def options(order: Order) -> list[str]:
    """How apt-get installs. --purge, as a removed pinning package would leave its preferences in force."""
    return [
        "--yes",
        "--no-install-recommends",
        "--purge",
        "--allow-change-held-packages",
        f"--option=APT::Get::allow-downgrades={str(order.allow_downgrade).lower()}",
        f"--option=DPkg::Lock::Timeout={order.lock_timeout}",
        "--option=Dpkg::Options::=--force-confdef",
        "--option=Dpkg::Options::=--force-confold",
    ]


def run(command: list[str]) -> int:
    """A command without anybody to ask; its exit status."""
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode


def remember(sets: dict[str, dict[str, str]]) -> None:
    """Write which packages belong to which set."""
    RECORDS.mkdir(mode=0o755, parents=True, exist_ok=True)
    for name, packages in sets.items():
        half = RECORDS.parent / f".{name}"
        half.write_text("".join(f"{package}\n" for package in sorted(packages)))
        half.chmod(0o644)
        half.replace(RECORDS / name)


if __name__ == "__main__":
    raise SystemExit(main())

"""Runs `apply` and `upgrade` of two controllers on the same nodes; every node must end on one lock.

    scripts/campaign controllers [--rounds 10] [--nodes 4] [--seed 1]

In each round one command starts, and the other one at a random moment while the first runs. Both want to
correct a package that is not held; `apply` uses the lock of the nodes' version or of the upgrade's. Drivers
come from a mirror of NVIDIA's packages with stubs that build at once; apt, DKMS, reboots and SSH are real.
Exit 1 if a node was between two locks, a run failed, or a lease was left.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

from gpuprov.errors import Exit
from tests import is_defect
from tests.campaign._upgrade_site import Site, site
from tests.lab.upgrade_fleet import JOINED, MIRRORED, Fleet

ENDS = {
    "apply": {Exit.OK, Exit.UNREACHABLE, Exit.REFUSED},
    "upgrade": {Exit.OK, Exit.REFUSED},
}
"""Allowed exit codes; apply also meets nodes that the upgrade reboots."""
ACCEPTED = ("--accept", "pins.hold", "--because", "the campaign let it go")
LASTING_S = 40.0
"""Assumed seconds of a run until one has been measured."""


@dataclass(frozen=True)
class Round:
    """Plan of a round with two controllers.

    Attributes:
        first: `apply` or `upgrade`.
        by: version of apply's lock.
        after_s: seconds until the other one starts.
        lacking: nodes with a package that is not held at the start.
    """

    first: str
    by: str
    after_s: float
    lacking: tuple[str, ...]


@dataclass(frozen=True)
class Seen:
    """Result of a round: exit codes, output and seconds by verb, node → version, and errors."""

    codes: dict[str, int]
    said: dict[str, str]
    stands: dict[str, str]
    wrong: list[str]
    seconds: dict[str, float]


def main() -> int:
    """Run rounds of two controllers that change the same nodes, and print them; return 1 if one is wrong."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=10)
    arguments.add_argument("--nodes", type=int, default=4)
    arguments.add_argument("--seed", type=int, default=1)
    chosen = arguments.parse_args()
    with site([(JOINED, chosen.nodes)]) as found:
        bad = rounds(found, chosen.rounds, random.Random(chosen.seed))  # noqa: S311 - dice
    return 1 if bad else 0


def rounds(site: Site, times: int, dice: random.Random, say: Callable[[str], None] = print) -> int:
    """Run and print rounds; return the number of bad ones. At the end all nodes are on one lock."""
    other = Fleet(site.fleet.nodes, _another_controller(site.fleet.folder))
    lasting = dict.fromkeys(ENDS, LASTING_S)
    bad, ends, begun = 0, Counter[str](), time.monotonic()
    for number in range(1, times + 1):
        plan = _drawn(site, number, lasting, dice)
        seen = attempt(site, other, plan)
        bad += bool(seen.wrong)
        lasting |= {verb: seen.seconds[verb] for verb in ENDS if seen.codes[verb] == 0}
        ends.update(f"{verb} {Exit(code).name.lower()}" for verb, code in seen.codes.items())
        for line in _lines(number, plan, seen):
            say(line)
        _settle(site, seen.stands)
    result = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
    say(f"{times} rounds in {(time.monotonic() - begun) / 60:.0f} minutes, {bad} bad; {result}")
    return bad


def attempt(site: Site, other: Fleet, plan: Round) -> Seen:
    """Run one round: `upgrade` by the site's controller, `apply` by the other one; return what both did, with
    errors.
    """
    for node in site.fleet.nodes:
        if node.name in plan.lacking:
            node.run("apt-mark unhold libcuda1")
    shutil.copy(site.fleet.folder / site.fleet.lock(site.there), other.folder)
    upgrade = (site.fleet, ("upgrade", "--to", site.fleet.lock(site.there), *ACCEPTED, "--yes"))
    apply = (other, ("apply", "--lock", f"{plan.by}.lock.yml", "--reboot", "--allow-downgrade", "--yes"))
    words = {"upgrade": upgrade, "apply": apply}
    order = [plan.first, *(verb for verb in words if verb != plan.first)]
    with ThreadPoolExecutor(len(order)) as pool:
        ending: dict[str, Future[tuple[int, str, float]]] = {}
        for verb in order:
            time.sleep(plan.after_s if ending else 0)
            fleet, line = words[verb]
            ending[verb] = pool.submit(_ended, fleet.start(*line))
        ended = {verb: each.result() for verb, each in ending.items()}
    codes = {verb: code for verb, (code, _, _) in ended.items()}
    said = {verb: words for verb, (_, words, _) in ended.items()}
    seconds = {verb: lasted for verb, (_, _, lasted) in ended.items()}
    stands = {node.name: on_which(site.fleet, node.name) for node in site.fleet.nodes}
    return Seen(codes, said, stands, _wrong(site, codes, said, stands), seconds)


def _ended(process: Popen[str]) -> tuple[int, str, float]:
    """Return exit code, output and seconds."""
    begun = time.monotonic()
    out, err = process.communicate()
    return process.returncode, out + err, time.monotonic() - begun


def on_which(fleet: Fleet, name: str) -> str:
    """Return the version whose lock drift and verify confirm for a node; otherwise their output."""
    against: dict[str, Any] = {}
    for version in MIRRORED:
        lock = f"{version}.lock.yml"
        drift = fleet.gpuprov("drift", name, "--lock", lock)
        verify = fleet.gpuprov("verify", name, "--lock", lock)
        if drift.returncode == verify.returncode == 0:
            return version
        against[version] = (drift.stdout + drift.stderr + verify.stdout + verify.stderr).strip()
    return f"NONE: {against}"


def _wrong(site: Site, codes: dict[str, int], said: dict[str, str], stands: dict[str, str]) -> list[str]:
    """Return what is wrong after a round: versions, exit codes, messages, leases that are left."""
    found = [f"{name} is on {version}" for name, version in stands.items() if version not in MIRRORED]
    for verb, code in codes.items():
        if code not in ENDS[verb] or is_defect(said[verb]):
            found.append(f"{verb} exits with {code}: {said[verb][-3000:]}")
    left = [
        node.name
        for node in site.fleet.nodes
        if node.run("! test -e /var/lib/gpuprov/lease.json", check=False).returncode
    ]
    if left:
        found.append(f"leases left on {', '.join(left)}")
    return found


def _drawn(site: Site, number: int, lasting: dict[str, float], dice: random.Random) -> Round:
    """Draw a round: apply's version, the seconds until the second controller starts, and the nodes that lack
    a package; the rounds alternate between the verbs.
    """
    first = ("upgrade", "apply")[number % 2]
    names = [node.name for node in site.fleet.nodes]
    lacking = dice.sample(names, dice.randint(1, len(names)))
    by = dice.choice([site.here, site.there])
    return Round(first, by, dice.uniform(0, lasting[first]), tuple(sorted(lacking)))


def _lines(number: int, plan: Round, seen: Seen) -> list[str]:
    """Return the lines about a round."""
    [second] = set(ENDS) - {plan.first}
    ended = ", ".join(f"{verb} exit {code} ({seen.seconds[verb]:.0f} s)" for verb, code in seen.codes.items())
    lines = [
        f"{'BAD' if seen.wrong else 'ok '} round {number}: {plan.first}, {second} {plan.after_s:.0f} s later,"
        f" apply by {plan.by}, {len(plan.lacking)} nodes to mend",
        f"      {ended}; {_leased(seen)}; then " + ", ".join(
            f"{count} on {version}" for version, count in Counter(seen.stands.values()).most_common()
        ),
    ]  # fmt: skip
    return lines + [f"      {each}" for each in seen.wrong]


def _leased(seen: Seen) -> str:
    """Return the verbs that a lease or a changed node stopped."""
    kept = [verb for verb, said in seen.said.items() if "leased by " in said]
    changed = [verb for verb, said in seen.said.items() if "changed since the plan was made" in said]
    result = [f"a lease stopped {verb}" for verb in kept] + [f"a new look stopped {verb}" for verb in changed]
    return ", ".join(result) or "neither in the other's way"


def _settle(site: Site, stands: dict[str, str]) -> None:
    """Bring all nodes to one lock, and record it in the site.

    Raises:
        SystemExit: that failed.
    """
    if set(stands.values()) == {site.there}:
        site.moved()
        return
    site.settle()
    if set(stands.values()) != {site.here}:
        done = site.fleet.gpuprov("apply", "--reboot", "--allow-downgrade", "--yes")
        if done.returncode:
            raise SystemExit(f"nodes cannot be brought to {site.here}:\n{done.stdout}{done.stderr}")


def _another_controller(folder: Path) -> Path:
    """Create a folder with the same locks and a separate history."""
    other = folder.with_name(f"{folder.name}-other")
    other.mkdir()
    for version in MIRRORED:
        shutil.copy(folder / f"{version}.lock.yml", other)
    return other


if __name__ == "__main__":
    sys.exit(main())

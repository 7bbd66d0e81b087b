"""Upgrades lab nodes: a whole fleet and back, with faults, and with controllers killed at random moments.

    scripts/campaign upgrade [fleet] [faults] [kills] [--nodes 12] [--fault NAME ...] [--times 50] [--seed 1]
    scripts/campaign upgrade real

`fleet` moves three groups, `faults` two nodes, `kills` four. Two drivers come from a mirror of NVIDIA's
packages with stubs that build at once; apt, DKMS, reboots and SSH are real. `real` is one node with two of
Debian's own drivers, compiled. After each try the nodes are verified again: none may be left without a
working stack.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuprov.model.nodeset import fold
from gpuprov.upgrade.header import ended, header
from gpuprov.upgrade.state import Entry, out_of_service
from gpuprov_lab import Lab
from tests.campaign._upgrade_faults import FAULTS, Fault
from tests.campaign._upgrade_site import Site, site, timed
from tests.lab.upgrade_fleet import JOINED, NEWER, OLDER, SINGLE, SWITCHED, Fleet, compiled

OVER = "over"
"""Step of a run that had ended before it could be killed."""


def main() -> int:
    """Run the campaign; return 1 if a result was wrong."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("what", choices=["fleet", "faults", "kills", "real"], nargs="+")
    arguments.add_argument("--nodes", type=int, default=12, help="of the fleet")
    names = ", ".join(fault.name for fault in FAULTS)
    arguments.add_argument("--fault", action="append", metavar="NAME", help=f"only these of {names}")
    arguments.add_argument("--times", type=int, default=50)
    arguments.add_argument("--seed", type=int, default=1)
    chosen = arguments.parse_args()
    if "real" in chosen.what:
        return real()
    each = chosen.nodes // 3 if "fleet" in chosen.what else 0
    needed = [
        (SWITCHED, max(each, 2 * ("faults" in chosen.what))),
        (JOINED, max(each, 4 * ("kills" in chosen.what))),
        (SINGLE, each),
    ]
    bad = 0
    with site((kind, count) for kind, count in needed if count) as found:
        if "fleet" in chosen.what:
            bad += there_and_back(found)
        if "faults" in chosen.what:
            faulty = [fault for fault in FAULTS if fault.name in (chosen.fault or fault.name)]
            bad += faults(found.only(SWITCHED.name, 2), faulty)
        if "kills" in chosen.what:
            dice = random.Random(chosen.seed)  # noqa: S311 - dice
            bad += kills(found.only(JOINED.name, 4), chosen.times, dice)
    return 1 if bad else 0


def there_and_back(site: Site) -> int:
    """Move a fleet to the next lock and back, and print the times; return 1 if something went wrong."""
    rules = {"canary": "one_per_group", "serial": ["25%", "50%"]}
    bad = 0
    for what, end in (("upgrade", "new"), ("rollback", "old")):
        done, seconds = timed(lambda: site.upgrade(**rules) if what == "upgrade" else site.rollback())  # noqa: B023
        ends = site.fleet.ends(done)
        print(f"{what} of {len(ends)} nodes: {seconds:.0f} s, exit {done.returncode}, {counted(ends)}")
        if done.returncode:
            print(done.stderr[-2000:])
        bad += done.returncode + out_by_batch(site.entries())
        if set(ends.values()) == {end}:
            site.moved()
        bad += judged_anew(site)
    return 1 if bad else 0


def out_by_batch(entries: Sequence[Entry]) -> int:
    """Print the journal's nodes out of service; return the number of batches with more than allowed."""
    moments = list(out_of_service(entries))
    bad = 0
    for batch in header(list(entries)).batches:
        during = [(at, out) for at, out in moments if out.intersection(batch.nodes)]
        if not during:
            print(f"  {batch.name:<9}{fold(batch.nodes)}: not begun")
            continue
        most = max(len(out) for _, out in during)
        bad += most > len(batch.nodes)
        at = f"{during[0][0][11:19]} to {during[-1][0][11:19]}"
        print(f"  {batch.name:<9}{fold(batch.nodes):<40}{at}: {most} out at most, {len(batch.nodes)} may")
    back = not moments or not moments[-1][1]
    print(f"  all back in service: {'yes' if back else 'NO'}; {len(moments)} changes in the journal")
    return bad + (not back)


def judged_anew(site: Site) -> int:
    """Run drift and verify on every node, and print the result; return the number of nodes that fail."""
    wrong = {**site.drifted(), **site.fleet.wrong(f"{site.here}.lock.yml")}
    print(f"  afterwards: {len(site.fleet.nodes) - len(wrong)} nodes on {site.here} by drift and verify"
        + (f"; wrong: {wrong}" if wrong else ""))  # fmt: skip
    return len(wrong)


def faults(site: Site, chosen: Sequence[Fault]) -> int:
    """Run one upgrade for each fault, and print the results; return 1 if one is wrong. In the end all nodes
    have one version.
    """
    bad, working, begun = 0, 0, time.monotonic()
    for fault in chosen:
        since = time.monotonic()
        seen = fault.attempt(site)
        broken = healed(site, seen.ends)
        against = fault.against(seen)
        bad += bool(broken or against)
        working += not broken
        print(
            f"{'BAD' if broken or against else 'ok '} {fault.name} ({time.monotonic() - since:.0f} s)\n"
            f"      fleet   exit {seen.code}, {counted(seen.ends) or 'nothing moved'}\n"
            f"      screen  {seen.said}\n"
            f"      stack   {f'BROKEN {broken}' if broken else 'works on every node'}"
        )
        if against:
            print(f"      but     {against}")
        if broken:  # the next fault needs sound nodes
            site.fleet.gpuprov("apply", "--full", "--reboot", "--yes", "--allow-downgrade")
    print(
        f"{len(chosen)} faults in {(time.monotonic() - begun) / 60:.0f} minutes:"
        f" a working stack on every node after {working}, ended as they should {len(chosen) - bad}"
    )
    return 1 if bad else 0


def healed(site: Site, ends: dict[str, str]) -> dict[str, object]:
    """Bring the fleet to one version as an operator would; return node → failed checks of verify."""
    if set(ends.values()) == {"new"}:
        site.moved()
    elif {"new", "stuck"}.intersection(ends.values()):
        done = site.rollback()
        if done.returncode:
            print(f"      rollback exits with {done.returncode}: {done.stderr[-900:]}")
    site.settle()
    return site.fleet.wrong(f"{site.here}.lock.yml")


def kills(site: Site, times: int, dice: random.Random) -> int:
    """Upgrade repeatedly, with a canary and with all nodes at once, kill at random moments and resume; return
    1 if one is wrong.
    """
    shapes = [{"canary": canary, "serial": ["100%"]} for canary in ([site.fleet.nodes[0].name], "none")]
    lasting = []
    for shape in shapes:
        done, seconds = timed(lambda: site.upgrade(**shape))  # noqa: B023
        if done.returncode:
            print(done.stderr)
            return 1
        site.moved()
        lasting.append(seconds)
        print(f"an upgrade of {len(site.fleet.nodes)} nodes takes {seconds:.0f} s: {slowest(site.entries())}")
    bad, struck, stood = 0, Counter[str](), Counter[str]()
    took: list[float] = []
    while len(took) < times:
        number = len(took) + 1
        shape, moment = shapes[number % 2], dice.uniform(0, lasting[number % 2])
        (step, stand, wrong), seconds = timed(lambda: killed(site, moment, shape))  # noqa: B023
        if step == OVER:
            lasting[number % 2] = moment
            continue
        bad += bool(wrong)
        struck[step] += 1
        stood[stand] += not wrong
        took.append(seconds)
        print(f"{'BAD' if wrong else 'ok '} kill {number} after {moment:.1f} s, in {step}; {seconds:.0f} s")
        if wrong:
            print(f"      {wrong}")
    verified = site.fleet.wrong(f"{site.here}.lock.yml")
    print(f"killed in: {counted(struck)}; then: {counted(stood)}; median {statistics.median(took):.0f} s")
    print(f"{times} kills, {bad} bad; at the end verified: {verified or 'every node'}")
    return 1 if bad or verified else 0


def killed(site: Site, moment: float, rules: dict[str, Any]) -> tuple[str, str, str]:
    """Kill an upgrade after `moment` seconds and resume it; return the step it was in, the nodes' end state,
    and errors.
    """
    known = site.journals()
    process = site.start(**rules)
    time.sleep(moment)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    step = last_step(site.entries() if site.journals() != known else [])
    if step == OVER:  # the run ended before the kill; the next gate checks the nodes
        site.moved()
        return step, "", ""
    done = site.fleet.gpuprov("upgrade", "--resume", "-o", "json")
    ends = site.fleet.ends(done)
    if set(ends.values()) == {"new"}:
        site.moved()
    site.settle()
    drifted = site.drifted()
    whole = set(ends.values()) in (set(), {"old"}, {"new"})
    stand = f"all {ends.popitem()[1]}" if whole and ends else "nothing had begun"
    wrong = (
        "" if whole and not drifted else f"exit {done.returncode}, {ends}, {drifted}, {done.stderr[-600:]}"
    )
    return step, stand, wrong


def real() -> int:
    """Upgrade Debian's driver to the archive's older one, compiled by DKMS, and back without a compiler."""
    name = f"up-real-{os.getpid()}"
    with Lab(name) as lab, tempfile.TemporaryDirectory() as folder:
        fleet, seconds = timed(lambda: compiled(lab, Path(folder)))
        print(f"apply to {NEWER}: {seconds:.0f} s; {built(fleet)}")
        for version, words, before in (
            (OLDER, ("upgrade", "--to", fleet.lock(OLDER)), "true"),
            (NEWER, ("rollback",), "echo 'MAKE[0]=false' >/etc/dkms/nvidia-current.conf"),
        ):
            fleet.nodes[0].run(before)
            done, seconds = timed(lambda: fleet.gpuprov(*words, "--yes", "-o", "json"))  # noqa: B023
            wrong = fleet.wrong(f"{version}.lock.yml")
            print(f"{words[0]} to {version}: {seconds:.0f} s, exit {done.returncode}, {built(fleet)}")
            print(f"  verified: {wrong or 'every check'}")
            if done.returncode or wrong:
                print(done.stdout + done.stderr)
                return 1
        return 0


def built(fleet: Fleet) -> str:
    """Return DKMS's builds and the loaded version."""
    [node] = fleet.nodes
    status = node.run("dkms status").stdout.strip().replace("\n", "; ")
    return f"dkms: {status}; loaded: {', '.join(fleet.loaded().values())}"


def last_step(entries: Sequence[Entry]) -> str:
    """Return the step in which a run was interrupted, from its journal."""
    if not entries:
        return "gate"
    return OVER if ended(entries) else f"{entries[-1].step} {entries[-1].event}"


def slowest(entries: Sequence[Entry]) -> str:
    """Return the steps with their seconds, the longest first."""
    timed_steps = {
        (entry.at, entry.step, entry.data["seconds"])
        for entry in entries
        if entry.event == "done" and isinstance(entry.data, dict) and "seconds" in entry.data
    }
    seconds: Counter[str] = Counter()
    for _, step, each in timed_steps:
        seconds[step] += each
    return ", ".join(f"{step} {each:.0f} s" for step, each in seconds.most_common() if each >= 1)


def counted(ends: dict[str, str] | Counter[str]) -> str:
    """Return counts as text: `3 new, 1 old`."""
    found = ends if isinstance(ends, Counter) else Counter(ends.values())
    return ", ".join(f"{number} {name}" for name, number in found.most_common())


if __name__ == "__main__":
    sys.exit(main())

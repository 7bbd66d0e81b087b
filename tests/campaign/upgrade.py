"""Upgrades of lab nodes while something goes wrong: seeded faults, and controllers killed at random moments.

    scripts/campaign upgrade [faults [NAME ...] | kills] [--nodes N] [--times N] [--seed N]

Debian's 535.309.01 and 535.261.03 in turn, with the compiler played and all else real. After each try the
fleet is looked at by verification: no node may be left without a working stack of one of the two locks. What
was tried, how long it took, what the screen said and where the fleet stood is written line by line.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuprov.lab import Lab
from tests.campaign._upgrade_faults import FAULTS, Fault
from tests.lab.upgradable import NEWER, OLDER, Fleet, provisioned


def main() -> int:
    """Try; exit 1 when a node was left without a working stack, or a run ended as it should not."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("what", choices=["faults", "kills"], nargs="?", default="faults")
    arguments.add_argument("names", nargs="*", help=f"of {', '.join(fault.name for fault in FAULTS)}")
    arguments.add_argument("--nodes", type=int, default=2)
    arguments.add_argument("--times", type=int, default=50)
    arguments.add_argument("--seed", type=int, default=1)
    chosen = arguments.parse_args()
    image = f"campaign-{os.getpid()}"
    with Lab(f"campaign-{os.getpid()}") as lab, tempfile.TemporaryDirectory() as folder:
        try:
            fleet = provisioned(lab, Path(folder), chosen.nodes, image)
            if chosen.what == "kills":
                return kills(fleet, chosen.times, random.Random(chosen.seed))  # noqa: S311 - dice
            return faults(fleet, [fault for fault in FAULTS if fault.name in (chosen.names or fault.name)])
        finally:
            lab.down()
            lab.drop(image)


def faults(fleet: Fleet, chosen: list[Fault]) -> int:
    """One upgrade for each fault, alternating between both versions."""
    here, bad = NEWER, 0
    for fault in chosen:
        there = OLDER if here == NEWER else NEWER
        begun = time.monotonic()
        code, ends, said = fault.attempt(fleet, there)
        stuck = "stuck" in ends.values()
        if "new" in ends.values() or stuck:
            code_back = fleet.gpuprov("rollback", "--yes", "--lock", f"{there}.lock.yml").returncode
            said += f" | rolled back: exit {code_back}"
        wrong = fleet.wrong(f"{here}.lock.yml")
        (fleet.folder / "fleet.lock.yml").write_text((fleet.folder / f"{here}.lock.yml").read_text())
        fine = not wrong and code == fault.exits and set(ends.values()) <= fault.stands
        bad += not fine
        seconds = time.monotonic() - begun
        stood = ends or "nothing moved"
        say(f"{'ok ' if fine else 'BAD'} {fault.name}: exit {code}, {stood}, {seconds:.0f} s")
        say(f"      {said}" + (f"; wrong now: {wrong}" if wrong else ""))
    say(f"{len(chosen)} faults, {bad} bad")
    return 1 if bad else 0


def kills(fleet: Fleet, times: int, dice: random.Random) -> int:
    """Upgrades to and fro, each killed at a moment drawn anew, then resumed."""
    here, bad = NEWER, 0
    longest = timed(lambda: there_and_say(fleet, OLDER))
    here = OLDER
    say(f"an upgrade of {len(fleet.nodes)} nodes takes {longest:.0f} s")
    for number in range(1, times + 1):
        there = OLDER if here == NEWER else NEWER
        moment = dice.uniform(0, longest)
        process = fleet.start("upgrade", "--to", fleet.lock(there, serial=["50%"]), "--yes", "-o", "json")
        time.sleep(moment)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        runs = sorted((fleet.folder / "state/gpuprov/runs").glob("*-upgrade-*/journal.jsonl"))
        last = runs[-1].read_text().splitlines()[-1][:90] if runs else "no journal"
        done = fleet.gpuprov("upgrade", "--resume", "-o", "json")
        ends = fleet.ends(done)
        settled = "new" if set(ends.values()) == {"new"} else "old"
        here = there if settled == "new" else here
        wrong = fleet.wrong(f"{here}.lock.yml")
        fine = not wrong and (set(ends.values()) <= {settled})
        bad += not fine
        say(f"{'ok ' if fine else 'BAD'} kill {number} after {moment:.0f} s of {last}: all {settled}")
        if not fine:
            say(f"      exit {done.returncode}, {ends}, wrong: {wrong}, said: {done.stderr[-400:]}")
        (fleet.folder / "fleet.lock.yml").write_text((fleet.folder / f"{here}.lock.yml").read_text())
    say(f"{times} kills, {bad} bad")
    return 1 if bad else 0


def there_and_say(fleet: Fleet, version: str) -> None:
    done = fleet.upgrade(version, serial=["50%"])
    if done.returncode:
        raise SystemExit(done.stderr)


def timed(work: Callable[[], Any]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

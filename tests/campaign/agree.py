"""Makes random changes on a node with the full stack: drift and verify must agree about each of them.

    scripts/campaign agree [--rounds N] [--seed S] [--benign N] [--again S [S …]] [--trace]

A round makes one to three changes, runs drift and verify, and reverts the changes. Its seed repeats it:
`--seed S --rounds 1`, or for a benign round `--seed S --rounds 0 --benign 1`. Changes are drawn from known
ways to contradict a promise, from lines of the files that services of the stack open, and from units; those
of `--benign` rounds contradict nothing. If the witnesses disagree about several, they are tried one by one.
`--trace` records those files again. An interrupt ends the rounds. Exit 1 after a disagreement or a false
alarm; changes that contradict a promise and that both miss are listed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from gpuprov.model.lock import Lock, read_lock
from tests.campaign._agree_node import Place
from tests.campaign._agree_rounds import BAD, Outcome, Rounds, settled_before, table
from tests.campaign._agree_trace import RECORD, record, recorded, trace
from tests.campaign._agree_witnesses import NO_ANSWER, bench
from tests.campaign._roles_fleet import SETTLED, Fleet, bring_up
from tests.campaign.mutations import lay_out_stubs

SYSTEM = "debian12"
SEED = 1


def main() -> int:
    """Run rounds of changes, and print where drift and verify differ; return 1 if one is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=500, help="rounds of changes")
    parser.add_argument(
        "--seed", type=int, default=SEED, help="of the first round; the next has the next number"
    )
    parser.add_argument("--benign", type=int, default=0, help="rounds of benign changes")
    parser.add_argument(
        "--again", type=int, nargs="+", default=[], help="seeds of earlier rounds, which are repeated first"
    )
    parser.add_argument("--trace", action="store_true", help=f"first write {RECORD.name} again")
    stated = parser.parse_args()
    began = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuprov-agree-")))
        folder.chmod(0o755)
        place = _provisioned(stack, folder)
        print(f"{time.monotonic() - began:.0f} s: the node is provisioned", flush=True)
        if stated.trace:
            record(found := trace(place))
            place.opened = tuple(found)
            print(f"{len(found)} files in {RECORD}", flush=True)
        witnesses = stack.enter_context(bench(read_lock(folder / "fleet.lock.yml"), place.node.name))
        rounds = Rounds(place, witnesses)
        if before := settled_before(rounds).every:
            print(f"of the unchanged node is reported, and left out: {', '.join(sorted(before))}")
        seeds = range(stated.seed, stated.seed + max(stated.rounds, stated.benign))
        with suppress(KeyboardInterrupt):
            _tried(rounds, [*stated.again, *seeds[: stated.rounds]], benign=False)
            _tried(rounds, [*(stated.again if stated.benign else ()), *seeds[: stated.benign]], benign=True)
    return _reported(rounds, before, time.monotonic() - began)


def _provisioned(stack: ExitStack, folder: Path) -> Place:
    """Provision a node with every component and setting.

    Raises:
        SystemExit: a role failed.
    """
    fleet = bring_up(stack, f"agree-{os.getpid()}", folder, [SYSTEM])
    fleet.nodes[SYSTEM].run("apt-get -q update; apt-get -q -y install --no-install-recommends cron")
    lock = fleet.state(0)
    applied = fleet.apply("--reboot", "--no-verify")
    if any(applied.failed.values()):
        raise SystemExit(f"apply: exit {applied.code}\n{applied.said}")
    return place_of(fleet, lock)


def place_of(fleet: Fleet, lock: Lock) -> Place:
    """Return the place of a provisioned fleet's node, with what changes need."""
    node = fleet.nodes[SYSTEM]
    node.run(SETTLED, check=False)
    lay_out_stubs(node)
    [group] = lock.groups.values()
    return Place(node, group, recorded())


def _tried(rounds: Rounds, seeds: Iterable[int], *, benign: bool) -> None:
    """Run rounds; print what is not as it should be."""
    for seed in seeds:
        for outcome in rounds.run(seed, benign=benign):
            if outcome.result in (*BAD, "missed"):
                print(outcome, flush=True)
            if outcome.result in BAD:
                odd = outcome.heard.only_drift | outcome.heard.only_verify
                named = sorted(rounds.bench.values.items())
                print(*(f"    {who}: {value[:300]}" for who, value in named if _check(who) in odd), sep="\n")
        while rounds.left:
            print(f"seed {seed}  {rounds.left.pop()}", flush=True)


def _check(witness: str) -> str:
    """Return the check of a value's name, `drift driver.loaded`; `no answer` for a witness without one."""
    return witness.partition(" ")[2] or NO_ANSWER


def _reported(rounds: Rounds, before: Iterable[str], seconds: float) -> int:
    """Print the table and the lists; return 1 if a change is bad or the node differed before the
    first one.
    """
    print("\n".join(table(rounds.outcomes)))
    bad = [each for each in rounds.outcomes if each.result in BAD]
    missed = [each for each in rounds.outcomes if each.result == "missed"]
    contradicting = [each for each in rounds.outcomes if each.result in ("both", "missed", *BAD[:2])]
    _listed("disagreements and false alarms", bad)
    _listed("agreed about only when heard again", rounds.unsteady)
    _listed(f"missed by both, of {len(contradicting)} changes that are seen or contradict a promise", missed)
    print(f"{seconds:.0f} s, {rounds.tried} rounds, {len(rounds.outcomes)} changes, {len(bad)} bad")
    return 1 if bad or before else 0


def _listed(title: str, outcomes: Sequence[Outcome | str]) -> None:
    """Print a title with the number of outcomes, then the outcomes."""
    print(f"{title}: {len(outcomes)}")
    for each in outcomes:
        print(f"    {each}")


if __name__ == "__main__":
    sys.exit(main())

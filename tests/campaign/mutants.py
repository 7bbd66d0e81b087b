"""Changes one place of the code at a time and runs the unit tests that reach it: one of them must fail.

    scripts/campaign mutants [--room R] [--sample 180] [--seed 1]

A mutant is a function with one swapped comparison, `and` for `or`, a condition negated, a number or truth
value changed, or a return value, a raise or a call removed. The sample has as many mutants of each package of
pyproject.toml that decides. One run of the unit tests with coverage finds the tests that reach a place; 30 of
them are run on each mutant, and up to 300 before it counts as a survivor. If root starts the campaign, the
tests run as another user, without those that need root. Mutants that no test reaches are counted, not tried.
Survivors are printed as diffs; those of EQUIVALENT have the same effect as the code. Exit 1 if another
mutant survived.
"""

from __future__ import annotations

import argparse
import queue
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests import ROOT
from tests.campaign._mutant_tests import MOST, MOST_OF_A_SURVIVOR, Copy, Tests
from tests.campaign._mutants_equivalent import EQUIVALENT
from tests.campaign._mutations_of_code import Mutant, mutants
from tests.campaign.coverage import PACKAGES

PROCESSES = 2
VERDICTS = ("killed", "timed out", "unstable", "equivalent", "survived")


def main() -> int:
    """Run the campaign."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--room", choices=PACKAGES)
    arguments.add_argument("--sample", type=int, default=180)
    arguments.add_argument("--seed", type=int, default=1)
    options = arguments.parse_args()
    chosen = [options.room] if options.room else PACKAGES
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gm-") as folder:
        Path(folder).chmod(0o755)
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(PROCESSES):
            copy = Copy(Path(folder, str(number)))
            copy.fill()
            copies.put(copy)
        tests = Tests(copy)
        print(f"{len(tests.seconds)} unit tests that pass, {time.monotonic() - begun:.0f} s", flush=True)
        counted: defaultdict[str, Counter[str]] = defaultdict(Counter)
        picked = [
            each
            for room in chosen
            for each in sample(room, options.sample // len(chosen), options.seed, tests, counted[room])
        ]

        def tried(mutant: Mutant) -> None:
            """Test one mutant in a copy of the code, and count its verdict."""
            copy = copies.get()
            try:
                names = tests.reaching(mutant)
                verdict = copy.verdict(mutant, names[:MOST], tests.limit(names[:MOST]))
                others = names[MOST:MOST_OF_A_SURVIVOR]
                if verdict == "survived" and others:
                    verdict = copy.verdict(mutant, others, tests.limit(others))
                verdict = judged(mutant, verdict, len(names))
                counted[mutant.path.split("/")[1]][verdict] += 1
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(PROCESSES) as pool:
            list(pool.map(tried, picked))
    print("| package | mutants | no test |", " | ".join(VERDICTS), "|\n|---|---|---|---|---|---|---|---|")
    for room, count in counted.items():
        columns = [room, count["all"], count["no test"], *(count[verdict] for verdict in VERDICTS)]
        print("|", " | ".join(map(str, columns)), "|")
    print(f"{len(picked)} mutants in {time.monotonic() - begun:.0f} s")
    return int(any(count["survived"] for count in counted.values()))


def sample(room: str, number: int, seed: int, tests: Tests, counted: Counter[str]) -> list[Mutant]:
    """Return mutants of a package that tests reach, at random, and count all and the others."""
    every = [
        mutant
        for path in sorted((ROOT / "gpuprov" / room).rglob("*.py"))
        for mutant in mutants(str(path.relative_to(ROOT)), path.read_text())
    ]
    reached = [mutant for mutant in every if tests.names(mutant)]
    counted.update({"all": len(every), "no test": len(every) - len(reached)})
    dice = random.Random(f"{seed} {room}")  # noqa: S311 - dice, not secrets
    return dice.sample(reached, min(number, len(reached)))


def judged(mutant: Mutant, verdict: str, tests: int) -> str:
    """Return the verdict, or `equivalent`; print a survivor."""
    diff = mutant.diff((ROOT / mutant.path).read_text())
    if verdict == "survived" and (mutant.path, changed(diff)) in EQUIVALENT:
        return "equivalent"
    if verdict != "killed":
        print(f"{verdict}, {tests} tests: {mutant.path}", *diff, sep="\n", flush=True)
    return verdict


def changed(diff: list[str]) -> str:
    """Return the old and the new text of a diff on one line."""
    old, new = (" ".join(line[1:].strip() for line in diff if line.startswith(sign)) for sign in "-+")
    return f"{old} -> {new}"


if __name__ == "__main__":
    sys.exit(main())

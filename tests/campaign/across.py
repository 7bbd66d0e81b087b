"""Runs the search of `accept --across` on simulated fleets with each of its faults at many places.

scripts/campaign across [PLACES]
"""

from __future__ import annotations

import sys

from gpuprov.accept.across.search import MOST
from tests.unit.accept.across.fabric import Fabric, searched
from tests.unit.accept.across.faults import FAULTS, tried, who


def main(places: int) -> int:
    """Print a row for each fault; return 1 if one was missed, found too late, or blamed on another node."""
    missed = 0
    print("| fault in 64 nodes | found | known after round | rounds |\n|---|---|---|---|")
    for name in FAULTS:
        known, rounds, found = set(), set(), 0
        for place in range(places):
            search, wanted = tried(name, place)
            bad = [verdict for verdict in search.verdicts() if verdict.level == "bad"]
            found += who(bad) == wanted and search.rounds <= MOST
            known.add(max((verdict.round for verdict in bad), default=0))
            rounds.add(search.rounds)
        missed += places - found
        print(f"| {name} | {found} of {places} | {_range(known)} | {_range(rounds)} |")
    alarms = sum(bool(searched(Fabric(seed)).verdicts()) for seed in range(places))
    print(f"{places} sound fleets: {alarms} false alarms")
    return bool(missed or alarms)


def _range(numbers: set[int]) -> str:
    """Return a set of numbers as text: the least and the highest."""
    return " to ".join(str(number) for number in sorted({min(numbers), max(numbers)}))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 50))

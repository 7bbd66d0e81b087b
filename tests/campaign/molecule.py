"""Runs every Molecule scenario completely: check, converge, idempotence, verify.

scripts/campaign molecule [SCENARIO]...
"""

from __future__ import annotations

import sys
import time

from tests.lab.test_molecule import SCENARIOS, molecule


def main() -> int:
    """Run the scenarios one after the other, and print each result; return 1 if one failed."""
    wanted = sys.argv[1:] or SCENARIOS
    bad = 0
    for scenario in wanted:
        began = time.monotonic()
        done = molecule(scenario)
        bad += done.returncode != 0
        outcome = "good" if done.returncode == 0 else f"BAD\n{done.stdout[-6000:]}{done.stderr[-3000:]}"
        print(f"{time.monotonic() - began:6.0f} s  {scenario}: {outcome}")
    print(f"{len(wanted)} scenarios, {bad} bad")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

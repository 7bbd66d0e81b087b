"""Hostile nodes, repositories and files against the functions that the verbs call.

    scripts/campaign hostile [--tries 10000] [--seed 1]

One node of three is hostile. Nothing but documented errors may come out, and every healthy node has to be
reported in each run. What nobody had thought of, and was contained as that node's failure, is counted apart.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.campaign._hostile_ways import SHARES, Ways, way


def attempt(ways: Ways, name: str, tries: int, *, number: int) -> None:
    """Try one way so many times; what fails is raised, made as small as hypothesis can."""
    once = way(ways, name)
    bounded = settings(
        max_examples=tries,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    seed(number)(bounded(given(data=st.data())(lambda data: once(data))))()


def main() -> int:
    """Try every way; says how many, how long, what broke."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    stated = parser.parse_args()
    logging.disable()  # python-debian says what it cannot parse
    broken = 0
    with tempfile.TemporaryDirectory() as name:
        os.environ["XDG_STATE_HOME"] = name
        ways = Ways(Path(name))
        for each, share in SHARES.items():
            begun = time.monotonic()
            try:
                attempt(ways, each, -(-stated.tries * share // 100), number=stated.seed)
            except Exception as error:  # noqa: BLE001
                broken += 1
                print(f"{each}: BROKEN: {type(error).__name__}: {error}")
            spent = time.monotonic() - begun
            print(f"{each}: {ways.tally.tried[each]} tries in {spent:.0f} s")
    for what, times in ways.tally.unforeseen.most_common():
        print(f"contained, and not foreseen: {times} x {what}")
    print(f"{ways.tally.tried.total()} tries, {broken} of {len(SHARES)} ways broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

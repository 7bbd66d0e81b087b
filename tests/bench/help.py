"""Compares the start of `gpuprov --help` with `python -c pass`, in turns.

scripts/bench help [--rounds 40]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    """Measure how long `gpuprov --help` takes, and print it."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=40)
    rounds = arguments.parse_args().rounds
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "gpuprov --help": [str(Path(sys.executable).with_name("gpuprov")), "--help"],
    }
    times: dict[str, list[float]] = {what: [] for what in commands}
    for _ in range(rounds):
        for what, command in commands.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            times[what].append(time.perf_counter() - start)
    for what, seconds in times.items():
        low, middle, high = statistics.quantiles(seconds, n=4)
        sys.stdout.write(
            f"{what:<16}{middle * 1000:>8.1f} ms   (quartiles {low * 1000:.1f}, {high * 1000:.1f})\n"
        )
    floor, ours = (statistics.median(seconds) for seconds in times.values())
    print(f"{'ratio':<16}{ours / floor:>8.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

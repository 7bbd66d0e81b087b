"""Measures the resolver: import, catalog, one request, a batch of 1,000, every GPU on every system.

    scripts/bench resolve [--batch 1000] [--rounds 5]

All in one run, on this machine; times are medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from gpuprov.catalog import Catalog, load
from gpuprov.locking.resolve import Request, resolve
from tests.campaign.resolve import vocabulary


def main() -> int:
    """Measure how long requests to the resolver take, and print it."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--batch", type=int, default=1000)
    arguments.add_argument("--rounds", type=int, default=5)
    options = arguments.parse_args()
    catalog = load()
    dice = random.Random(1)  # noqa: S311
    bare = median(options.rounds, lambda: run([sys.executable, "-c", "pass"]))
    importing = median(options.rounds, lambda: run([sys.executable, "-c", "import gpuprov.locking.resolve"]))
    loading = median(
        options.rounds, lambda: run([sys.executable, "-c", "import gpuprov.catalog as c; c.load()"])
    )
    say("python -c pass", bare)
    say("import gpuprov.locking.resolve, beyond that", importing - bare)
    say("catalog: import, read and check, beyond that", loading - bare)
    say("resolve, all chosen", median(200, lambda: one(catalog, "NVIDIA H200", "ubuntu24.04")))
    say(
        "resolve, refused with its ways out",
        median(200, lambda: one(catalog, "B200", "ubuntu22.04", cuda="12.4")),
    )
    say("gpuprov resolve, whole command", median(options.rounds, whole_command))
    say(f"gpuprov resolve --batch of {options.batch}", median(3, lambda: batch(catalog, options.batch, dice)))
    say("every GPU on every system", median(1, lambda: product(catalog)))
    return 0


def say(what: str, seconds: float) -> None:
    """Print a line with the seconds of something in milliseconds."""
    print(f"{what:<48}{seconds * 1000:>10.1f} ms")


def median(rounds: int, work: Callable[[], object]) -> float:
    """Return the seconds of `work`, the median of several rounds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def run(command: list[str]) -> None:
    """Run a command without its output, with any exit code."""
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)


def one(catalog: Catalog, gpu: str, os: str, **stated: str) -> None:
    """Resolve one request for one GPU."""
    resolve(Request(gpus=(gpu,), os=os, **stated), catalog)


def whole_command() -> None:
    """Run `gpuprov resolve` in a new process."""
    run(
        [
            sys.executable,
            "-m",
            "gpuprov",
            "resolve",
            "--gpu",
            "NVIDIA H200",
            "--os",
            "ubuntu24.04",
            "-o",
            "json",
        ]
    )


def batch(catalog: Catalog, number: int, dice: random.Random) -> None:
    """Run mixed requests with few or many fields; about half are refused."""
    values = vocabulary(catalog)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as lines:
        for _ in range(number):
            stated = {
                name: dice.choice(of) for name, of in values.items() if name == "os" or dice.random() < 0.25
            }
            lines.write(json.dumps({"gpu": dice.choice(catalog.gpus).id, **stated}) + "\n")
        lines.flush()
        run([sys.executable, "-m", "gpuprov", "resolve", "--batch", lines.name])


def product(catalog: Catalog) -> None:
    """Resolve a request for each GPU on each system."""
    for gpu in catalog.gpus:
        for system in catalog.systems:
            one(catalog, gpu.id, system)


if __name__ == "__main__":
    sys.exit(main())

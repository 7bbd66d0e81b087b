"""Attacks gpuprov as each party of SECURITY.md's table, aiming at goals that the party must not reach.

    scripts/campaign hostile [--tries 20000] [--seed 1] [--jobs 2] [--only 'node/*']

A node, another user on it, a worker, a mirror, a metadata service, another user on the controller and a
foreign host on the network send hostile input to the functions and verbs that read it. A sign shows that a
goal was reached: a file that only an injected program creates, a path outside that was written, a secret in
an output, an exceeded limit of time or memory. Prints the table of actors and goals (tries/reached) and the
command that repeats each success. Exit 1 if a goal was reached. Needs root: actions of a machine's other
users run in a mount namespace with their rights.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.campaign._hostile import ways as registered  # noqa: F401
from tests.campaign._hostile.field import ACTORS, GOALS, WAYS, Way
from tests.campaign._hostile_ways import Ways, way

ALL = 20_000
SETTLE_S = 600.0
"""Time limit in seconds of a batch for Ansible."""
START_S = 120.0
HANGS = 3
"""Number of hanging tries after which the rest of a way is skipped."""
LATE = "no end after"


@dataclass
class Result:
    """Result of a way; `late` counts tries that ended in time only when they were repeated."""

    way: Way
    tries: int = 0
    seconds: float = 0.0
    late: int = 0
    reached: dict[tuple[int, str], str] = field(default_factory=dict)
    broken: str = ""


def attempt(ways: Ways, name: str, tries: int, *, number: int) -> None:
    """Try one of hypothesis's ways; a failure is raised in its smallest form."""
    once = way(ways, name)
    bounded = settings(
        max_examples=tries,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    seed(number)(bounded(given(data=st.data())(lambda data: once(data))))()


def tries_of(each: Way, total: int) -> int:
    """Return the number of tries of a way; at least one."""
    return max(1, -(-total * each.share // ALL))


def carry_out(each: Way, first: int, count: int, number: int) -> Result:
    """Try a way in separate processes; kill one that hangs, and continue after that try in another.

    A try that hangs is repeated once: next to other work a program can be late without a reason of its own.
    """
    result, begun, at, hangs = Result(each), time.monotonic(), first, 0
    while at < first + count and hangs < HANGS and not result.broken:
        at, hung = _process(result, at, first + count - at, number)
        late = (at - 1, "hang")
        if hung and result.reached.get(late, "").startswith(LATE):
            again = Result(each)
            _, hung = _process(again, at - 1, 1, number)
            if not hung:
                del result.reached[late]
                result.late += 1
        hangs += hung
    result.seconds = time.monotonic() - begun
    return result


def _process(result: Result, first: int, count: int, number: int) -> tuple[int, int]:
    """Run one process; return the next try, and 1 if one hung."""
    each, current = result.way, first - 1
    command = [
        sys.executable,
        "-m",
        "tests.campaign._hostile.trial",
        each.make.__module__,
        each.key,
        *map(str, (first, count, number)),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
    ) as process:
        try:
            bounds = [START_S]
            for reported in _lines(process, bounds):
                if reported is None:
                    result.reached[max(current, first), "hang"] = f"{LATE} {bounds[0]:g} s"
                    return max(current, first) + 1, 1
                if "try" in reported:
                    current, bounds[0] = reported["try"], each.seconds
                    result.tries += 1
                elif "settle" in reported:
                    bounds[0] = SETTLE_S
                elif "reached" in reported:
                    result.reached.setdefault((reported["number"], reported["reached"]), reported["seen"])
                elif "done" in reported:
                    return first + count, 0
            errors = (process.stderr.read() if process.stderr else b"").decode("utf-8", "replace")
            ended = f"ended with {process.wait()}: {errors.strip()[-800:]}"
            if current < first:
                result.broken = ended
            else:
                result.reached[current, "exception"] = f"the process {ended}"
            return current + 1, 1
        finally:
            _end(process)


def _lines(process: subprocess.Popen[bytes], bounds: list[float]) -> Iterator[dict[str, Any] | None]:
    """Yield a process's messages; None after `bounds[0]` seconds without a message."""
    assert process.stdout
    half = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(bounds[0]):
                yield None
                return
            read = os.read(process.stdout.fileno(), 65536)
            if not read:
                return
            *whole, half = (half + read).split(b"\n")
            yield from map(json.loads, whole)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def table(results: list[Result]) -> list[str]:
    """Return the table of actors and goals: tries/reached."""
    tried: Counter[tuple[str, str]] = Counter()
    reached: Counter[tuple[str, str]] = Counter()
    for result in results:
        for goal in result.way.aims:
            tried[result.way.actor, goal] += result.tries
        for _, goal in result.reached:
            reached[result.way.actor, goal] += 1
    lines = ["| | " + " | ".join(GOALS) + " |", "|---|" + "---|" * len(GOALS)]
    for actor in ACTORS:
        cells = [
            f"{tried[actor, goal]}/{reached[actor, goal]}"
            if tried[actor, goal] or reached[actor, goal]
            else "-"
            for goal in GOALS
        ]
        lines.append(f"| {actor} | " + " | ".join(cells) + " |")
    return lines


def report(result: Result, number: int) -> None:
    """Print what a way reached, similar cases once, with the command that repeats it."""
    late = f", {result.late} late once" if result.late else ""
    counts = f"{result.tries} tries in {result.seconds:.0f} s, {len(result.reached)} reached{late}"
    print(f"{result.way.key}: {counts}")
    if result.broken:
        print(f"  BROKEN: {result.broken}")
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    for (at, goal), seen in sorted(result.reached.items()):
        alike[goal, re.sub(r"\d+", "#", seen)[:40]].append(at)
    for (goal, _), numbers in list(alike.items())[:12]:
        print(f"  {goal} ({len(numbers)} x): {result.reached[numbers[0], goal]}")
        print(f"    scripts/campaign hostile --only '{result.way.key}' --seed {number} --try {numbers[0]}")


def main() -> int:
    """Try every way in parallel, and print the table; return 1 if a goal was reached or a way broke."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=ALL, help="of all ways together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="ways, such as 'node/*'")
    parser.add_argument("--try", dest="single", type=int, help="one try alone, by its number")
    stated = parser.parse_args()
    chosen = [each for key, each in WAYS.items() if fnmatch.fnmatch(key, stated.only)]
    print(f"{len(chosen)} ways, seed {stated.seed}")
    results = []
    with ThreadPoolExecutor(stated.jobs) as pool:

        def work(each: Way) -> Result:
            """Make the tries of a way; only one if the command line states its number."""
            if stated.single is not None:
                return carry_out(each, stated.single, 1, stated.seed)
            return carry_out(each, 0, tries_of(each, stated.tries), stated.seed)

        slow_first = sorted(chosen, key=lambda each: -each.share)
        for result in pool.map(work, slow_first):
            report(result, stated.seed)
            results.append(result)
    reached = sum(len(result.reached) for result in results)
    broken = sum(bool(result.broken) for result in results)
    print("\n".join(["", *table(results), ""]))
    tries = sum(result.tries for result in results)
    print(f"{tries} tries, {reached} reached, {broken} of {len(results)} ways broken")
    return 1 if reached or broken else 0


if __name__ == "__main__":
    sys.exit(main())

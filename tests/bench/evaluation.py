"""Measures the judgement of recorded nodes, from the bytes of a probe to output lines.

    scripts/bench evaluation [--nodes 10000]

Runs in one process and measures its processor time, since it waits for nothing else. Every answer differs
(boot, identities of GPUs), so that no result is cached for all; one node in fifty has drifted.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

from gpuprov.drift.judge import NodeDrift, judge
from gpuprov.model.lock import read_lock
from gpuprov.probe.facts import Facts
from gpuprov.report.text import drift_lines
from gpuprov.roles import expectations
from tests import RECORDED_FACTS, RECORDED_LOCK

DRIFTED = 50


def main() -> int:
    """Measure how long the comparison of many nodes takes, and print it."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--nodes", type=int, default=10_000)
    count = arguments.parse_args().nodes
    [group] = read_lock(RECORDED_LOCK).groups.values()
    expected = expectations(group)
    recorded = json.loads((RECORDED_FACTS).read_text())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds, nodes = 0.0, []
    for name, text in answers(recorded, count):
        begun = time.process_time()
        nodes.append(judge(name, Facts.from_answer(json.loads(text)), expected))
        seconds += time.process_time() - begun
    begun = time.process_time()
    lines = list(drift_lines(nodes))
    folding = time.process_time() - begun
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report(nodes, lines, seconds, folding, (before, after))
    return 0


def answers(recorded: dict[str, Any], count: int) -> Iterator[tuple[str, str]]:
    """Yield names and documents of this many nodes."""
    text = json.dumps(recorded)
    serials = {f"GPU-{number:08x}" for number in range(count)}
    for number, serial in enumerate(sorted(serials)):
        own = text.replace("<uuid>GPU-", f"<uuid>{serial}").replace('"boot_id": "', f'"boot_id": "{number}-')
        if number % DRIFTED == 0:
            own = own.replace("<persistence_mode>Enabled", "<persistence_mode>Disabled", 1)
        yield f"gpu{number:05}", own


def report(
    nodes: list[NodeDrift], lines: list[str], seconds: float, folding: float, memory: tuple[float, float]
) -> None:
    """Print the results."""
    drifted = sum(node.status == "drifted" for node in nodes)
    before, after = memory
    sys.stdout.write(
        f"{len(nodes)} nodes, {drifted} drifted: judged in {seconds:.1f} s"
        f" ({seconds / len(nodes) * 1000:.2f} ms each), folded in {folding:.2f} s to {len(lines)} lines of"
        f" {sum(map(len, lines))} characters; {after:.0f} MiB at most, {before:.0f} before\n"
    )


if __name__ == "__main__":
    sys.exit(main())

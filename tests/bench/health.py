"""Measures a node's health check against node_exporter: processor time for a day, and memory.

    scripts/bench health [--runs 20] [--scrapes 40]

Both run on one lab node, one after the other. A day has a run every 60 s, and a scrape every 15 s. The node's
nvidia-smi is the simulator's, a Python program: its processor time is measured separately and printed apart,
because a real one's is another. Exit 1 if a run needs more memory than the unit allows.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics

from gpuprov.roles.health import PROGRAM, SERVICE, VERDICT, program
from gpuprov.roles.monitoring import EXPORTER_UNIT
from gpuprov_lab import Lab, Node
from tests import ROOT
from tests.campaign._doctor_look import driven

DAY_S, INTERVAL_S, SCRAPE_S = 86400, 60, 15
RUN = """\
import json, resource, subprocess, sys, time
before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
after = resource.getrusage(resource.RUSAGE_CHILDREN)
cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
print(json.dumps([cpu, after.ru_maxrss / 1024, time.monotonic() - begun]))
"""
"""Prints processor time in s, largest memory of a process in MiB, and wall time in s of a command."""
SMI = (("-q", "-x"), ("nvlink", "-s"), ("nvlink", "-e"))
"""Calls of nvidia-smi in a usual run."""
SCRAPE = "import urllib.request as u; u.urlopen('http://127.0.0.1:9100/metrics').read()"


def main() -> int:
    """Measure the health check's memory and time, and print them; return 1 if it needs more memory than its
    unit allows.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--scrapes", type=int, default=40)
    wanted = parser.parse_args()
    unit = (ROOT / "gpuprov/health/node" / SERVICE).read_text()
    [allowed] = re.findall(r"(?m)^MemoryMax=(\d+)M$", unit)
    with Lab(f"health-{os.getpid()}") as lab:
        [node] = lab.up(1, os="debian12", gpu="h100x8")
        driven(node)
        node.run(
            "apt-get -q update && apt-get -q -y install --no-install-recommends prometheus-node-exporter"
        )
        node.run(f"cat >{PROGRAM} && chmod 755 {PROGRAM}; gpuprov-sim log 'nvidia: loaded'", input=program())
        first = measured(node, PROGRAM)
        node.run(f"test -s {VERDICT}")
        runs = [measured(node, PROGRAM) for _ in range(wanted.runs)]
        smi = sum(measured(node, "nvidia-smi", *words)[0] for words in SMI)
        exporter, memory = scraped(node, wanted.scrapes)
    own = statistics.median(cpu for cpu, _, _ in runs) - smi
    peak = max(each[1] for each in (first, *runs))
    day = own * DAY_S / INTERVAL_S
    theirs = exporter * DAY_S / SCRAPE_S
    print(f"first run after a boot: {first[0]:.2f} s of processor time")
    print(
        f"health check: {own:.3f} s a run without nvidia-smi ({smi:.3f} s here), "
        f"{day:.0f} s a day, {peak:.0f} MiB"
    )
    print(f"node_exporter: {exporter:.4f} s a scrape, {theirs:.0f} s a day, {memory:.0f} MiB")
    print(f"ratio: {day / theirs:.1f} of its processor time; {100 * day / DAY_S:.2f} % of one processor")
    return 1 if peak > int(allowed) else 0


def measured(node: Node, *command: str) -> tuple[float, float, float]:
    """Return processor time in s, largest memory of a process in MiB, and wall time in s of a command."""
    said = node.run(f"python3 - {' '.join(command)}", input=RUN).stdout
    cpu, memory, wall = json.loads(said.splitlines()[-1])
    return cpu, memory, wall


def scraped(node: Node, scrapes: int) -> tuple[float, float]:
    """Return node_exporter's processor time for a scrape in s, and its largest memory in MiB."""
    pid = node.run(f"systemctl show -P MainPID {EXPORTER_UNIT}").stdout.strip()
    before = _ticks(node, pid)
    for _ in range(scrapes):
        node.run("python3 -", input=SCRAPE)
    ticks = _ticks(node, pid) - before
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", node.run(f"cat /proc/{pid}/status").stdout)
    return ticks / os.sysconf("SC_CLK_TCK") / scrapes, int(peak) / 1024


def _ticks(node: Node, pid: str) -> int:
    """Return the processor time of a process in clock ticks."""
    fields = node.run(f"cat /proc/{pid}/stat").stdout.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


if __name__ == "__main__":
    raise SystemExit(main())

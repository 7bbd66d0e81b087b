"""Measures `gpuprov status --watch` on many nodes from one controller, on a terminal.

    scripts/bench status [--targets 200] [--seconds 60] [--interval 5] [--picture FILE.svg]

Every target is an address of one lab node, with a real sshd. Running all probes at once would need more
processors than one machine has: each target answers with an earlier reading of this node's probe, some of
them with a reading of a changed node. Counted are the readings in the node's sshd, the controller's processor
time, and the bytes on the node's network. Then one node stops answering and comes back, keys are pressed, and
the terminal is resized. Exit 1 if the interval was not kept or something was not shown.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from gpuprov.doctor.status import STALE
from gpuprov.model.lock import Lock, write_lock
from gpuprov.probe.payload import STATUS_PROBE, Parameters, build
from gpuprov_lab import Lab, Node
from gpuprov_lab.host import execute
from tests.bench._terminal import Terminal, picture, processor_seconds
from tests.bench.targets import RANGE, many_addresses, write_targets
from tests.lab.command_line import PROGRAM
from tests.lab.stub_driver_node import drive, locked_group

WIDTH, HEIGHT = 132, 30
CHANGED = {4: "nvidia-smi -i 5 -pl 500", 9: "nvidia-smi -pm 0", 17: "nvidia-smi -pl 650"}
"""Target → change of the node before its reading."""
SILENT = 12
ANSWER = """\
#!/bin/sh
# Answers one question of the probe with a reading that was taken before.
nonce=${SSH_ORIGINAL_COMMAND#*<<gpuprov }
set -- $SSH_CONNECTION
date "+%s.%N $3" >>/run/readings
cat >/dev/null
body=/run/answer.$3
[ -e "$body" ] || body=/run/answer.all
read -r size sum <"$body.mark"
printf '\\n<<gpuprov %s %s %s>>\\n' "${nonce%% *}" "$size" "$sum"
cat "$body"
"""
MATCH = f"Match LocalAddress {RANGE}\n    ForceCommand /bin/sh /run/answer\n"


def main() -> int:
    """Measure the live table of many nodes, and print it; return 1 if a limit is exceeded."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--targets", type=int, default=200)
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--interval", type=float, default=5)
    arguments.add_argument("--picture", type=Path)
    options = arguments.parse_args()
    with Lab(f"bench-status-{os.getpid()}") as lab, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        [node] = lab.up(1, os="debian12", gpu="h200x8")
        drive(node)
        node.run("systemctl enable --now nvidia-persistenced")
        readings(node)
        write_lock(Lock(inputs="0", groups={"h200": locked_group(lab, node)}), folder / "node.lock.yml")
        with many_addresses(node):
            write_targets(lab, folder, options.targets)
            command = [*PROGRAM, "status", "--watch", f"{options.interval:g}"]
            with Terminal(["env", f"XDG_STATE_HOME={folder}", *command], WIDTH, HEIGHT, folder) as terminal:
                return watch(terminal, node, options)


def readings(node: Node) -> None:
    """Write readings of the node's probe, unchanged and changed, to the node, to be used as answers."""
    changed = {str(RANGE[number]): line for number, line in CHANGED.items()}
    for address, line in {"all": "true", **changed}.items():
        node.run(line)
        payload = build(Parameters(collectors=("status",)), become=False, modules=STATUS_PROBE)
        said = node.run(f"/bin/sh -c {shlex.quote(payload.command)}", input=payload.stdin.decode()).stdout
        result = re.search(r"<<gpuprov \w+ (\d+) (\w+)>>\r?\n(.*)", said, re.S)
        assert result, said
        node.run(f"cat >/run/answer.{address}", input=result[3])
        node.run(f"echo {result[1]} {result[2]} >/run/answer.{address}.mark")
        node.run("nvidia-smi -pm 1; nvidia-smi -pl 700")
    node.run("cat >/run/answer", input=ANSWER)
    node.run("cat >/etc/ssh/sshd_config.d/zz-answer.conf", input=MATCH)


def watch(terminal: Terminal, node: Node, options: argparse.Namespace) -> int:
    """Run all measurements; return 1 if one is beyond its limit, or the table does not end at `q`."""
    count, interval = options.targets, options.interval
    first = terminal.until(lambda text: f"{count} nodes" in text and " 0 without an answer" in text, 90)
    print(f"{count} nodes of 8 GPUs, all read {first:.1f} s after the start")
    node.run(": >/run/readings")
    before, cpu, begun = wire(node), processor_seconds(terminal.pid), time.monotonic()
    time.sleep(options.seconds)
    after, seconds = wire(node), time.monotonic() - begun
    share = (processor_seconds(terminal.pid) - cpu) / seconds
    times = [line.split() for line in node.run("cat /run/readings").stdout.splitlines()]
    kept = intervals(times, interval, count)
    sent, received = ((now - then) / len(times) for now, then in zip(after, before, strict=True))
    print(
        f"  controller {share:.0%} of a core; on the wire {sent / 1024:.1f} KiB to a node and "
        f"{received / 1024:.1f} KiB from it a reading"
    )
    good = all([kept, dies(terminal, node, interval, options.picture), keys(terminal, count)])
    return 0 if leaves(terminal) and good else 1


def leaves(terminal: Terminal) -> bool:
    """Press `q`; return whether the command ends within 15 s with exit code 0, and print it."""
    begun = time.monotonic()
    terminal.press("q")
    while terminal.ended is None and time.monotonic() - begun < 15:
        time.sleep(0.1)
    print(f"  q: exit {terminal.ended} after {time.monotonic() - begun:.1f} s")
    if terminal.ended != 0:
        print(terminal.text())
    return terminal.ended == 0


def intervals(times: list[list[str]], interval: float, count: int) -> bool:
    """Print the intervals between readings of each node; return whether they were kept."""
    stamps = defaultdict(list)
    for stamp, address in times:
        stamps[address].append(float(stamp))
    gaps = sorted(b - a for own in stamps.values() for a, b in pairwise(own))
    late = sum(gap > 1.5 * interval for gap in gaps)
    print(
        f"  {len(times)} readings of {len(stamps)} nodes; from one to the next "
        f"{statistics.median(gaps):.2f} s, 99 of 100 within {gaps[int(0.99 * len(gaps))]:.2f} s, "
        f"the longest {gaps[-1]:.2f} s; {late} late"
    )
    return len(stamps) == count and late <= len(gaps) // 100


def wire(node: Node) -> tuple[int, int]:
    """Return the bytes that the node's interfaces have received and sent."""
    result = json.loads(execute(["ip", "-n", node.link.namespace, "-s", "-j", "link", "show", "up"]))
    counted = [each["stats64"] for each in result if each["ifname"] != "lo"]
    return sum(each["rx"]["bytes"] for each in counted), sum(each["tx"]["bytes"] for each in counted)


def dies(terminal: Terminal, node: Node, interval: float, path: Path | None) -> bool:
    """Silence one node like one without power, and bring it back; check the intervals of the others."""
    with silent(node, str(RANGE[SILENT])):
        node.run(": >/run/readings")
        seconds = terminal.until(lambda text: " 1 without an answer" in text, STALE * interval + 60)
        terminal.press("f")
        terminal.until(lambda text: f"gpu{SILENT:04} " in text, 5)
        [line] = [line for line in terminal.text().splitlines() if line.startswith(f"gpu{SILENT:04} ")]
        print(f"  a node that falls silent is reported after {seconds:.1f} s: {' '.join(line.split())}")
        if path:
            picture(terminal.text(colours=True), WIDTH, "gpuprov status --watch", path)
        times = [line.split() for line in node.run("cat /run/readings").stdout.splitlines()]
        kept = intervals(times, interval, len({address for _, address in times}))
    seconds = terminal.until(lambda text: " 0 without an answer" in text, 60)
    print(f"  and is read again {seconds:.1f} s after it came back")
    terminal.press("f")
    terminal.until(lambda text: "f fold" in text, 5)
    return kept


@contextmanager
def silent(node: Node, address: str) -> Iterator[None]:
    """Drop packets to an address during the block."""
    route = [f"{address}/32", "table", "local"]
    execute(["ip", "-n", node.link.namespace, "route", "add", "blackhole", *route])
    try:
        yield
    finally:
        execute(["ip", "-n", node.link.namespace, "route", "delete", "blackhole", *route])


def keys(terminal: Terminal, count: int) -> bool:
    """Press every key and change the size, and wait for each effect."""
    rows = 8 * count

    def of(pattern: str) -> Callable[[str], bool]:
        return lambda text: re.search(pattern, text) is not None

    took = {}
    for name, press, pattern in (
        ("f", "f", rf"1-{HEIGHT - 4} of {count}\b"),
        ("down", "Down", rf"2-{HEIGHT - 3} of {count}\b"),
        ("page down", "NPage", rf"{HEIGHT - 2}-{2 * HEIGHT - 7} of {count}\b"),
        ("page up", "PPage", rf"2-{HEIGHT - 3} of {count}\b"),
        ("up", "Up", rf"1-{HEIGHT - 4} of {count}\b"),
        ("o", "o", rf"1-{len(CHANGED)} of {len(CHANGED)}\b"),
        ("o again", "o", rf"of {count}\b"),
        ("f again", "f", rf"1-{HEIGHT - 4} of {rows}\b"),
    ):
        terminal.press(press)
        took[name] = terminal.until(of(pattern), 10)
    for width, height in ((80, 16), (180, 50), (WIDTH, HEIGHT)):
        terminal.resize(width, height)
        took[f"{width}x{height}"] = terminal.until(of(rf"1-{height - 4} of {rows}\b"), 10)
        assert max(map(len, terminal.text().splitlines())) <= width
    print("  keys and sizes, seconds until shown: " + ", ".join(f"{n} {s:.1f}" for n, s in took.items()))
    return True


if __name__ == "__main__":
    sys.exit(main())

"""Repairs lab nodes with the controller killed at each step of each ladder, and resumed.

    scripts/campaign repair [--times 40] [--seed 1]

Three nodes, at most one out of service: one has the fault of the round, which a reset, a reboot or a power
cycle mends; one has a fault that a reset mends; one has a fault and a job on its GPUs. The controller gets
SIGKILL up to two seconds after a step has begun. Exit 1 if an end is another one than without a kill, a rung
is missing or too much, more than one node is out at a time, a node is not returned to service, or the job is
gone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path

from gpuprov.model.lock import Lock, write_lock
from gpuprov.model.rollout import Hook, Hooks, Rollout
from gpuprov.upgrade.journal import read
from gpuprov.upgrade.repair.state import RUNGS
from gpuprov_lab import Lab
from tests.campaign._doctor_faults import FORGET
from tests.lab.bmc_of_node import Power, serving_bmc
from tests.lab.command_line import gpuprov, start
from tests.lab.stub_driver_node import drive, locked_group, with_kernel_lines

ROUTES = {
    "remap": ("drain", "idle-reset", "reset", "look-reset", "accept-reset", "resume"),
    "remap-stuck": (
        *("drain", "idle-reset", "reset", "look-reset"),
        *("idle-reboot", "reboot", "look-reboot", "accept-reboot", "resume"),
    ),
    "gpu-dead": (
        *("drain", "idle-reboot", "reboot", "look-reboot"),
        *("idle-power", "power", "look-power", "accept-power", "resume"),
    ),
}
"""Fault → the steps of its node."""
ENDS = {"node1": "mended", "node2": "mended", "node3": "busy"}
JOB = "mknod /dev/nvidia9 c 1 7; systemd-run --quiet --unit=job sh -c 'exec sleep 86400 </dev/nvidia9'"
WORDS = ("repair", "--yes", "--accept", "none", "--at-once", "1", "--patience", "1")


class Site:
    """Three sick nodes, the folder of their fleet, and the first one's BMC."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.folder = folder
        self.nodes = lab.up(3, os="debian12", gpu="a100x4")
        for node in self.nodes:
            drive(node)
            with_kernel_lines(node)
            node.run("systemctl enable --now nvidia-persistenced; ldconfig", check=False)
        self.nodes[2].run(JOB)
        self.job = self._pid()
        hooks = {
            name: Hook(run=f"echo {name} $GPUPROV_NODE >>{folder}/hooks") for name in ("drain", "resume")
        }
        group = locked_group(lab, self.nodes[0])
        hosts = {node.name: node.address for node in self.nodes}
        lock = Lock(inputs="0" * 64, groups={"test": group.model_copy(update={"hosts": hosts})})
        rollout = Rollout(hooks=Hooks(**hooks), settle_s=20)
        write_lock(lock.model_copy(update={"rollout": rollout}), folder / "fleet.lock.yml")

    def _pid(self) -> str:
        """Return the process id of the job on the third node."""
        return self.nodes[2].run("systemctl show --value --property=MainPID job").stdout.strip()

    def try_one(self, fault: str, step: str, delay: float, power: Power) -> str:
        """Repair with one kill; return what is wrong, "" if nothing is."""
        shutil.rmtree(self.folder / "state", ignore_errors=True)
        (self.folder / "hooks").unlink(missing_ok=True)
        power.log.clear()
        for node, its in zip(self.nodes, (f"{fault} 1", "remap 1", "remap 1"), strict=True):
            node.run(f"gpuprov-sim mend; {FORGET}; gpuprov-sim fault {its}", check=False)
        if not self._killed(step, delay):
            return "the controller ended before the step"
        done = gpuprov(self.folder, "repair", "--resume", "-o", "json", code=None)
        return "; ".join(filter(None, self._wrong(fault, done.stdout, power)))

    def _killed(self, step: str, delay: float) -> bool:
        """Start a repair, and kill it `delay` seconds after the step begins on the first node; return whether
        it was killed.
        """
        process = start(self.folder, *WORDS)
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith(f"{step} {self.nodes[0].name}"):
                time.sleep(delay)
                process.send_signal(signal.SIGKILL)
                break
        process.communicate()
        return process.returncode == -signal.SIGKILL

    def _wrong(self, fault: str, said: str, power: Power) -> list[str]:
        """Return what differs from a repair without a kill, with "" for each thing that does not."""
        [run] = (self.folder / "state/gpuprov/runs").glob("*-repair-*")
        nodes = json.loads(said)["nodes"]
        ends = {each["name"]: each["end"] for each in nodes}
        rungs = {
            entry.step
            for entry in read(run)
            if entry.node == "node1" and entry.event == "done" and entry.step in RUNGS
        }
        wanted = {step for step in ROUTES[fault] if step in RUNGS}
        out, most = set[str](), 0
        for line in (self.folder / "hooks").read_text().splitlines():
            what, node = line.split()
            out = out | {node} if what == "drain" else out - {node}
            most = max(most, len(out))
        return [
            f"ends {ends}, {[each['reason'] for each in nodes]}" if ends != ENDS else "",
            f"rungs {sorted(rungs)}" if rungs != wanted else "",
            f"{most} nodes out at a time" if most > 1 else "",
            f"left out: {sorted(out)}" if out else "",
            "the job is gone" if self._pid() != self.job else "",
            f"power: {power.log}" if power.log not in ([], ["Off", "On"]) else "",
        ]


def main() -> int:
    """Repair `--times` times with a kill at a random time of a step, and print each; return 1 if one is
    wrong.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    chance, began, bad = random.Random(wanted.seed), time.monotonic(), 0  # noqa: S311
    tries = [(fault, step) for fault, steps in ROUTES.items() for step in steps]
    chance.shuffle(tries)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as text, Lab(f"repair-{os.getpid()}") as lab:
        folder = Path(text)
        site = Site(lab, folder)
        with serving_bmc(site.nodes[0], folder, port) as power:
            for fault, step in islice(cycle(tries), wanted.times):
                delay = chance.uniform(0, 2)
                wrong = site.try_one(fault, step, delay, power)
                bad += bool(wrong)
                how = f"{fault}, killed {delay:.1f} s into {step}"
                print(f"BAD  {how}: {wrong}" if wrong else f"ok   {how}", flush=True)
    print(f"{wanted.times} repairs with a kill; {bad} bad; {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

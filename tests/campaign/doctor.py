"""Doctor on simulated machines: healthy ones without a false alarm, and faults seeded one at a time.

    scripts/campaign doctor [RULE]... [--machine NAME]... [--recorded] [-v]

Every machine of the lab's is looked at as it is: nothing may be broken or degraded. Then faults are put into
one machine, found by name, mended by the lines that the doctor prints where they can be typed on such a node,
and looked for again. Recorded faults (tests/unit/doctor) are counted beside. Exit 1 when anything was missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from gpuprov.doctor.examination import Examination
from gpuprov.doctor.judge import Diagnosis, diagnose
from gpuprov.doctor.look import conclude, examine
from gpuprov.errors import GpuprovError
from gpuprov.lab import Lab, Node
from gpuprov.lab.simulator import machines
from gpuprov.model.lock import Connection
from gpuprov.ssh.transport import Target
from tests.campaign._doctor_faults import SEEDED, Seeded
from tests.lab.stub_driver_node import drive
from tests.unit.doctor.faults import FAULTS
from tests.unit.doctor.machines import HEALTHY, as_examined, bare_metal

ON = "h100x8"
OF_THE_LAB = ("network.gpudirect",)
"""What is true of the lab's nodes: their stand-in for the driver has no peer-memory module."""
SICK = ("broken", "degraded")
FABRIC_MANAGER = """\
[Unit]
After=gpuprov-sim.service

[Service]
Type=forking
ExecStart=/usr/bin/nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg

[Install]
WantedBy=multi-user.target
"""


@dataclass
class Tally:
    """What was tried, and what went wrong."""

    tried: int = 0
    bad: int = 0
    verbose: bool = False

    def say(self, what: str, wrong: str = "") -> None:
        """One line a trial."""
        self.tried += 1
        self.bad += bool(wrong)
        if wrong or self.verbose:
            print(f"{'BAD ' if wrong else 'ok  '} {what}{f': {wrong}' if wrong else ''}")


def main() -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rules", nargs="*", metavar="RULE", help="only faults of these")
    parser.add_argument("--machine", action="append", choices=machines(), help="only this one; repeatable")
    parser.add_argument("--recorded", action="store_true", help="no nodes: recorded machines alone")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for what went well, too")
    wanted = parser.parse_args()
    began, tally = time.monotonic(), Tally(verbose=wanted.verbose)
    _recorded(tally)
    recorded = tally.tried
    if not wanted.recorded:
        for machine in wanted.machine or machines():
            with Lab(f"doctor-{os.getpid()}-{machine}") as lab:
                _on_nodes(lab, machine, wanted.rules, tally)
    nodes = tally.tried - recorded
    print(f"{recorded} recorded, {nodes} on nodes, {tally.bad} bad; {time.monotonic() - began:.0f} s")
    return 1 if tally.bad else 0


def _recorded(tally: Tally) -> None:
    for name, machine in HEALTHY.items():
        tally.say(f"healthy: {name}", _alarms(diagnose(as_examined(machine()))))
    for name, changes in FAULTS.items():
        for number, change in enumerate(changes):
            told = bare_metal()
            change(told)
            tally.say(f"recorded {name} {number}", _missed(diagnose(as_examined(told)), name))


def _on_nodes(lab: Lab, machine: str, rules: list[str], tally: Tally) -> None:
    [node] = lab.up(1, os="debian12", gpu=machine)
    drive(node)
    provision(node)
    found = look(lab, node)
    tally.say(f"node {machine}: healthy", _alarms(found))
    if tally.verbose:
        print(f"     {len(found.unknown)} unknown; {[fault.rule for fault in found.faults]}")
    if machine == ON:
        for fault in SEEDED:
            if not rules or fault.rule in rules:
                tally.say(f"node {fault.rule}: {fault.seed[:60]}", _trial(lab, node, fault))


def provision(node: Node) -> None:
    """What a driver's packages would have brought beside the module."""
    node.run("cat >/etc/systemd/system/nvidia-fabricmanager.service", input=FABRIC_MANAGER)
    node.run(
        "touch /usr/bin/nv-fabricmanager.distrib /usr/lib/x86_64-linux-gnu/libcuda.so.535.309.01; "
        "ln -sf libcuda.so.535.309.01 /usr/lib/x86_64-linux-gnu/libcuda.so.1; /usr/lib/gpuprov-sim/arrange; "
        "systemctl daemon-reload; systemctl enable --now nvidia-persistenced; ldconfig; "
        "nvidia-smi -q | grep -q NVSwitch; systemctl enable --now nvidia-fabricmanager",
        check=False,
    )


def _trial(lab: Lab, node: Node, fault: Seeded) -> str:
    """Seed, find, mend as it is printed where that can be typed here, look again; what went wrong."""
    node.run(fault.seed)
    if fault.reboot:
        node.reboot()
    found = look(lab, node)
    wrong = _missed(found, fault.rule)
    if not wrong and fault.typed:
        lines = [line for each in found.faults if each.rule == fault.rule for line in each.mend]
        for line in _typable(lines):
            node.run(line, check=False)
    if fault.undo:
        node.run(fault.undo, check=False)
    if fault.reboot:
        node.reboot()
        node.run("systemctl is-system-running --wait", check=False)
    left = [each.rule for each in look(lab, node).faults if each.rule == fault.rule]
    return wrong or (f"still there after {'its own lines' if fault.typed else fault.undo}" if left else "")


def _typable(lines: list[str]) -> Iterator[str]:
    """The commands among them, without remarks."""
    for line in lines:
        command = line.partition("   (")[0].strip()
        known = command.startswith(("sudo ", "echo ", "printf ", "nvidia-"))
        if known and not any(word in command for word in ("DEVICE", "reboot", "poweroff")):
            yield command


def look(lab: Lab, node: Node) -> Diagnosis:
    """One look at a node over SSH."""
    connection = Connection(identity_file=str(lab.identity_file), known_hosts=str(lab.known_hosts))
    [(name, answer)] = examine([Target(node.name, node.address, connection)])
    assert isinstance(answer, (Examination, GpuprovError))
    return conclude(name, answer)


def _alarms(found: Diagnosis) -> str:
    """What is called broken or degraded on a machine that is neither."""
    if found.failure:
        return str(found.failure)
    alarms = [each for each in found.faults if each.severity in SICK and each.rule not in OF_THE_LAB]
    return "; ".join(f"{each.rule}: {each.text}" for each in alarms)


def _missed(found: Diagnosis, rule: str) -> str:
    """Why a fault does not count as found: it is not there, or something that is no cause of it comes "
    "first."""
    if found.failure:
        return str(found.failure)
    places = [place for place, each in enumerate(found.faults) if each.rule == rule]
    if not places:
        return f"not found; {[each.rule for each in found.faults]}"
    mine = found.faults[places[0]]
    before = {each.rule for each in found.faults[: places[0]] if each.severity in SICK} - {
        *mine.follows,
        rule,
    }
    return f"after {sorted(before)}" if before and mine.severity == "broken" and not mine.follows else ""


if __name__ == "__main__":
    sys.exit(main())

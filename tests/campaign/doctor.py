"""Runs doctor on healthy machines, which must raise no alarm, and on faults, which it must find and correct.

    scripts/campaign doctor [RULE]... [--part recorded|healthy|seeded]... [--machine TEXT]... [--health] [-v]

Healthy: lab nodes of every machine and both systems, and recorded machines; no result may be broken or
degraded. Seeded: each fault is caused on a node, must be found by name with its cause first, and is corrected
by running the doctor's printed commands; if these cannot run on such a node, the fault is removed by hand and
the reason printed. With --health the node has the role health, and each fault also has to reach textfile,
plugin and Debian's own Slurm with its rule, within two intervals; no healthy machine has one that drains it.
Recorded: the same faults as changes to recorded machines, and public logs. Exit 1 if anything was missed.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gpuprov.doctor.judge import Diagnosis, diagnose
from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov_lab import Lab, Node
from tests.campaign._doctor_faults import Seeded, seeded
from tests.campaign._doctor_health import forget, not_reached, with_health
from tests.campaign._doctor_healthy import of_the_lab, recorded
from tests.campaign._doctor_look import alarms, driven, equip, look, missed
from tests.unit.doctor.faults import FAULTS
from tests.unit.doctor.machines import as_examined, bare_metal
from tests.unit.doctor.test_public_logs import ANSWERS, LOGS, first_of_a_log, first_of_an_answer

ON = "h100x8"
PARTS = ("recorded", "healthy", "seeded")
ROUNDS = 3
"""Maximum of rounds of examining and running commands: one fault can hide another."""
COMMAND = re.compile(r"(?:^|: )((?:sudo|echo|printf|dpkg -S|nvidia-smi) .+)$")
BY_HAND = ("poweroff", "apt install", "smartctl", "mokutil", "dmesg", "--gpu-reset")


@dataclass
class Tally:
    """Counts of trials and of errors."""

    verbose: bool = False
    counts: Counter[str] = field(default_factory=Counter)

    def say(self, kind: str, what: str, wrong: str = "", how: str = "") -> None:
        """Print one line for a trial."""
        self.counts[kind] += 1
        self.counts["bad"] += bool(wrong)
        if wrong or self.verbose:
            print(f"{'BAD ' if wrong else 'ok  '} {what}: {wrong or how or 'nothing wrong'}", flush=True)


def main() -> int:
    """Run the chosen parts of the campaign, and print the counts; return 1 if something is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rules", nargs="*", metavar="RULE", help="only faults of these")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this one; repeatable")
    parser.add_argument("--machine", action="append", help="healthy ones with this in their name; repeatable")
    parser.add_argument("--health", action="store_true", help="all machines through the health check, too")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for what went well, too")
    wanted = parser.parse_args()
    parts = wanted.part or (["seeded"] if wanted.rules else ["healthy"] if wanted.machine else PARTS)
    began, tally = time.monotonic(), Tally(wanted.verbose)
    if "recorded" in parts:
        _recorded(tally)
    if "healthy" in parts:
        _healthy(tally, wanted.machine or [""], health=wanted.health)
    if "seeded" in parts:
        with Lab(f"doctor-{os.getpid()}") as lab:
            _seeded(lab, wanted.rules, tally, health=wanted.health)
    counts = tally.counts
    print(
        f"{counts['recorded']} recorded faults, {counts['public']} public logs and answers; "
        f"{counts['healthy']} healthy machines ({counts['of the lab']} of the lab); "
        f"{counts['seeded']} faults on nodes: {counts['mended']} mended by what is printed, "
        f"{counts['by hand']} taken out by hand; "
        + (f"{counts['health']} through the health check; " if counts["health"] else "")
        + f"{counts['bad']} bad; {time.monotonic() - began:.0f} s"
    )
    return 1 if counts["bad"] else 0


def _recorded(tally: Tally) -> None:
    """Judge each recorded fault, log and answer, and count those that are missed or named wrongly."""
    for name, changes in FAULTS.items():
        for number, change in enumerate(changes):
            result = bare_metal()
            change(result)
            tally.say("recorded", f"{name} {number}", missed(diagnose(as_examined(result)), name))
    named = [(text, rule, first_of_a_log(text)) for text, (rule, _) in LOGS.items()]
    named += [(text, rule, first_of_an_answer(text)) for text, rule in ANSWERS.items()]
    for text, rule, first in named:
        wrong = "" if first.rule == rule else f"{first.rule} comes first"
        tally.say("public", f"public {rule}: {text[:60]!r}", wrong)


def _healthy(tally: Tally, names: list[str], *, health: bool) -> None:
    """Judge recorded machines and lab nodes that are healthy and have one of these texts in their names, and
    count alarms.
    """
    for name, found, drained in recorded(health=health):
        if any(each in name for each in names):
            _say_healthy(tally, name, found, drained)
    for number, machine in enumerate(of_the_lab()):
        if any(each in machine.name for each in names):
            try:
                with Lab(f"doctor-{os.getpid()}-{number}") as lab:
                    found, drained = machine.look(lab, health=health)
            except GpuprovError as error:
                found, drained = Diagnosis(machine.name, failure=error), ""
            tally.counts["of the lab"] += 1
            _say_healthy(tally, machine.name, found, drained)


def _say_healthy(tally: Tally, name: str, found: Diagnosis, drained: str) -> None:
    """Count a healthy machine, and print its alarms, or why it would be drained."""
    wrong = alarms(found) or (f"would be drained: {drained}" if drained else "")
    tally.say("healthy", f"healthy: {name}", wrong, _aside(found))


def _aside(found: Diagnosis) -> str:
    rules = sorted({fault.rule for fault in found.faults})
    return f"no alarm; {len(found.unknown)} unknown; risks and hints: {', '.join(rules) or 'none'}"


def _seeded(lab: Lab, rules: list[str], tally: Tally, *, health: bool) -> None:
    """Cause each fault on one lab node, and check that it is found, and gone after its correction."""
    with tempfile.TemporaryDirectory() as folder:
        judged = with_health(lab, Path(folder)) if health else None
        if judged:
            node = judged.node
        else:
            [node] = lab.up(1, os="debian12", gpu=ON)
            driven(node)
            equip(node)
        for fault in seeded():
            if rules and fault.rule not in rules:
                continue
            if judged:
                forget(judged)
            begun = _cause(node, fault)
            found = look(lab, node)
            if judged:
                lost, kind, seconds = not_reached(judged, fault.rule, begun)
                how = f"reached all three as {kind} after {seconds:.0f} s"
                tally.say("health", f"health {fault.rule}: {fault.seed[:60]}", lost, how)
            wrong, how = _corrected(lab, node, fault, found)
            tally.counts["by hand" if fault.undo else "mended"] += not wrong
            tally.say("seeded", f"{fault.rule}: {fault.seed[:60]}", wrong, how)


def _cause(node: Node, fault: Seeded) -> float:
    """Cause a fault; return the time from which on it can be seen."""
    node.run(fault.seed)
    if fault.reboot:
        _boot(node)
    return time.monotonic()


def _corrected(lab: Lab, node: Node, fault: Seeded, found: Diagnosis) -> tuple[str, str]:
    """Correct a fault that was found and look again; return what is wrong, "" if nothing, and how it was
    corrected.

    The node boots again if something is wrong.
    """
    wrong, how = missed(found, fault.rule), f"by hand ({fault.why})"
    if not wrong and not fault.undo:
        found, typed = _typed(lab, node, fault.rule, found)
        how = f"typed: {' ; '.join(typed)}"
    if fault.undo:
        node.run(fault.undo, check=False)
        found = look(lab, node)
    if not wrong and any(each.rule == fault.rule for each in found.faults):
        wrong = f"still there, {how}"
    wrong = wrong or (f"{alarms(found)}; {how}" if alarms(found) else "")
    if fault.after:
        node.run(fault.after, check=False)
    if wrong:
        _boot(node)  # removes traces before the next fault
    return wrong, how


def _typed(lab: Lab, node: Node, rule: str, found: Diagnosis) -> tuple[Diagnosis, list[str]]:
    """Run the commands for the fault and for every broken or degraded result until no such result remains."""
    typed: list[str] = []
    for _ in range(ROUNDS):
        mine = [each for each in found.faults if each.rule == rule or alarms(Diagnosis("", (each,)))]
        if not mine:
            break
        for line in dict.fromkeys(line for each in mine for line in commands(each.mend)):
            typed.append(line)
            if line.startswith("sudo reboot"):
                _boot(node)
            else:
                node.run(line, check=False)
        found = look(lab, node)
    return found, typed


def commands(lines: tuple[str, ...]) -> Iterator[str]:
    """Yield the commands among the lines, without remarks and without alternatives to an earlier command."""
    for place, line in enumerate(lines):
        result = COMMAND.search(line.partition("   (")[0].strip())
        if result and not (place and line.startswith("or")) and not any(word in line for word in BY_HAND):
            yield result[1]


def _boot(node: Node) -> None:
    """Reboot a node, and wait until its units have started."""
    with suppress(NodeFailed):  # next to other work a boot takes longer than the lab waits
        node.reboot()
    with suppress(NodeFailed):
        node.await_ssh()
    node.await_ssh()
    node.run("systemctl is-system-running --wait", check=False)


if __name__ == "__main__":
    sys.exit(main())

"""The same machines through the health check: faults until textfile, plugin and Debian's own Slurm have them,
and healthy machines, which must not be drained.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

from gpuprov.doctor.examination import Examination
from gpuprov.doctor.fault import CLASSES
from gpuprov.health.look import judge
from gpuprov.health.memory import DRAINING
from gpuprov.roles.health import LIBRARY, PLUGIN, PROGRAM, TEXTFILE, TIMER, program
from gpuprov_lab import Lab, Node
from tests.campaign._doctor_look import OF_THE_LAB
from tests.lab.health_node import FOLDER, SLURM_S, HealthNode, health_node

INTERVAL = 20
STANDING = (*OF_THE_LAB, "host.limits")
"""Rules that apply to every lab node: a fault must not be hidden in Slurm behind one of them."""
SETTING = {
    "interval": INTERVAL,
    "grace": 0,
    "hold": 1,
    "rules": dict.fromkeys(STANDING, "off"),
    "command": None,
}
BOOT_S = 30
"""The timer's OnBootSec: the first run after a boot. A real interval is longer."""
CUT = "%%%"
SPARE_S = 10.0
"""Time for this program's own questions to the node, and for programs to start on a machine in use."""


def with_health(lab: Lab, folder: Path) -> HealthNode:
    """Return a new node with the health check applied, and Slurm installed."""
    node = health_node(lab, folder, SETTING)
    outcome, _ = node.apply()
    assert outcome.ok, outcome.failed
    node.install_slurm()
    return node


def forget(node: HealthNode) -> None:
    """Remove what the health check and Slurm know of earlier faults, and start the timer again."""
    back = f"scontrol update NodeName={node.node.name}"
    node.stop()
    node.node.run(
        f"{PROGRAM} --forget; {back} State=UNDRAIN; {back} Comment=; systemctl start {TIMER}",
        check=False,
    )


def not_reached(node: HealthNode, rule: str, begun: float) -> tuple[str, str, float]:
    """Wait until textfile, plugin and Slurm all show the rule, or time is up; return which does not ("" if
    all do), the rule's class, and the seconds waited.

    Two runs have to see a fault, so it takes at most two intervals and the second run, then Slurm's interval;
    after a boot, the time to the first run instead of one interval.

    Args:
        begun: time of the fault, by this process' clock.
    """
    while True:
        lost, kind, run_s = _state(node, rule)
        passed = time.monotonic() - begun
        if not lost or passed > INTERVAL + BOOT_S + run_s + SLURM_S + SPARE_S:
            return lost, kind, passed
        time.sleep(2)


ASK = f"""\
cat /run/gpuprov/health.json
echo {CUT}
cat {FOLDER}/{TEXTFILE}
echo {CUT}
scontrol show node
for class in {" ".join(CLASSES)}; do echo {CUT}; {LIBRARY}/{PLUGIN} $class; echo $?; done
"""
"""Shell lines that print document, textfile, Slurm's node, and the plugin's answer for each class."""


def _state(node: HealthNode, rule: str) -> tuple[str, str, float]:
    """Return which of textfile, plugin and Slurm does not show the rule ("" if all do), its class, and the
    seconds of the last run.
    """
    said, metrics, shown, *plugins = node.node.run(f"{{ {ASK}}} 2>&1", check=False).stdout.split(f"{CUT}\n")
    document = json.loads(said) if said.startswith("{") else {}
    run_s = float(document.get("seconds", 0.0))
    faults = set(re.findall(r'gpuprov_health_fault\{rule="([^"]*)",class="([^"]*)"\}', metrics))
    classes = [kind for name, kind in faults if name == rule]
    if not classes:
        return (
            f"textfile has {sorted(faults)}; {document.get('verdict')}, {document.get('reasons')}",
            "",
            run_s,
        )
    worst = min(classes, key=CLASSES.index)
    is_drained = re.search(r"State=\S*DRAIN", shown) is not None
    if worst == "none":  # has no consequence: it is in the textfile alone
        return "the node is drained" if is_drained else "", worst, run_s
    plugin = plugins[CLASSES.index(worst)]
    named = rf"(?:{re.escape(rule)}: .*|\S+: .*; also .*\b{re.escape(rule)}\b.*)"
    if not re.match(rf"{named}\n1\n$", plugin):
        return f"the plugin prints {plugin!r}", worst, run_s
    key = "Reason" if worst in DRAINING else "Comment"
    found = re.search(rf"(?m)^ *{key}=gpuprov:health: {worst} {named}", shown)
    if not found or is_drained != (worst in DRAINING):
        return f"Slurm has {' '.join(re.findall('(?:State|Reason|Comment)=.*', shown))}", worst, run_s
    return "", worst, run_s


def drains(node: Node) -> str:
    """Run the health check twice on a node without the role; return the faults that would drain the node, ""
    if none.

    Times count from the node's boot, and an empty kernel log is allowed.
    """
    node.run(f"cat >{PROGRAM} && chmod 755 {PROGRAM}", input=program())
    node.run("cat >/run/health.config", input=json.dumps({"grace": 0}))
    node.run(f"for each in 1 2; do {PROGRAM} --config /run/health.config; done")
    document = json.loads(node.run("cat /run/gpuprov/health.json").stdout)
    found = [each for each in (*document["faults"], *document["suspected"]) if each["health"] in DRAINING]
    return "; ".join(f"{each['health']} {each['rule']}: {each['text']}" for each in found)


def drains_recorded(seen: Examination) -> str:
    """Judge a recorded machine; return the faults that would drain it, "" if none."""
    found = [each for each in judge(seen, {}, {}).sights if each.health in DRAINING]
    return "; ".join(f"{each.health} {each.rule}: {each.text}" for each in found)

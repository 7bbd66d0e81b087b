"""The same faults through a node's health check: two runs, then textfile, plugin and Slurm's reason."""

from __future__ import annotations

import json
import re
from pathlib import Path

from gpuprov.doctor.fault import CLASSES
from gpuprov.health.memory import DRAINING
from gpuprov.roles.health import LIBRARY, PLUGIN, PROGRAM, SLURM, program
from gpuprov_lab import Node
from tests import ROOT

TEXTFILE = "/run/gpuprov-health.prom"
CONFIG = "/run/gpuprov-health.config"
# The node has no Slurm: this one prints an idle node, and what it would be updated to.
SCONTROL = """\
#!/bin/sh
if [ "$1" = show ]; then printf 'NodeName=%s\\n   State=IDLE X=1\\n' "$3"; else printf '%s\\n' "$@"; fi
"""


def install_health(node: Node) -> None:
    """Install the program, its scripts, and an imitated scontrol."""
    folder = ROOT / "gpuprov/health/node"
    files = {PROGRAM: program(), "/usr/local/bin/scontrol": SCONTROL}
    files[f"{LIBRARY}/{SLURM[0]}"] = (folder / "slurm").read_text()
    files[f"{LIBRARY}/{PLUGIN}"] = (folder / PLUGIN).read_text()
    for path, text in files.items():
        node.run(f"mkdir -p {Path(path).parent} && cat >{path} && chmod 755 {path}", input=text)


def not_reached(node: Node, rule: str) -> tuple[str, str]:
    """Run the health check twice; return what does not have the rule, and its class."""
    node.run(
        f"rm -f /run/gpuprov/health* {TEXTFILE}; cat >{CONFIG}",
        input=f'{{"textfile": "{TEXTFILE}", "grace": 0}}',
    )
    node.run(f"{PROGRAM} --config {CONFIG} && {PROGRAM} --config {CONFIG}")
    document = json.loads(node.run("cat /run/gpuprov/health.json").stdout)
    classes = [each["health"] for each in document["faults"] if each["rule"] == rule]
    if not classes:
        return f"no fault counts; {document['verdict']}, {document['reasons'][:2]}", ""
    worst = min(classes, key=CLASSES.index)
    if f'rule="{rule}",class="{worst}"' not in node.run(f"cat {TEXTFILE}").stdout:
        return "not in the textfile", worst
    if worst in DRAINING:
        said = node.run(f"{LIBRARY}/{SLURM[0]}", check=False).stdout
        reason = re.search(r"Reason=gpuprov:health: (\w+) (\S+):", said)
        if not reason or reason[2] != rule:
            return f"Slurm's reason is {reason[0] if reason else said!r}", worst
        plugin = node.run(f"{LIBRARY}/{PLUGIN} {reason[1]}; echo $?", check=False).stdout
        if not re.match(rf"{re.escape(rule)}: .*\n1\n", plugin):
            return f"the plugin prints {plugin!r}", worst
    return "", worst

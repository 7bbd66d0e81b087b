"""State of a node for the role firewall, as one JSON document. Changes nothing.

Standard library only; runs on the node, from standard input. Argument: {"table": the `networks` and `chains`
that the table must have, "others": units of other firewalls}. `armed` is the run for which the dead man's
switch is armed; `mistaken` are uplinks that the rules take for containers' bridges; `others` are those of the
units that run or start at boot.

    {"armed": "", "installed": true, "loaded": false, "mistaken": ["br-ex"], "others": ["firewalld.service"]}
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ARMED = Path("/var/lib/gpuprov/deadman/armed")
INTERFACES = Path("/sys/class/net")
OF_DOCKER = re.compile(r"br-[0-9a-f]{12}")
"""Name that Docker gives to the bridge of a network, which may have other ports too."""

os.environ["PATH"] += ":/usr/sbin:/sbin"
asked = json.loads(sys.argv[1])
ON = ("ActiveState=active", "ActiveState=activating", "ActiveState=reloading", "UnitFileState=enabled")


def table() -> dict[str, dict[str, list[str]]]:
    """Run nft; return the elements of the table's sets as `networks` and the lines of its `chains`, by name.

    Both are empty without the table.
    """
    listed = subprocess.run(
        ["nft", "-p", "list", "table", "inet", "gpuprov"],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    networks, chains = {}, {}
    blocks = re.findall(r"^\t(set|chain) (\S+) \{\n(.*?)^\t\}", listed.stdout, re.M | re.S)
    for kind, name, body in blocks:
        if kind == "chain":
            chains[name] = [line.strip() for line in body.splitlines() if line.strip()]
        else:
            elements = re.search(r"elements = \{(.*?)\}", body, re.S)
            networks[name] = [each.strip() for each in elements[1].split(",")] if elements else []
    return {"networks": networks, "chains": chains}


def on(units: list[str]) -> list[str]:
    """Return those of the units that run or start at boot; none in a tree that is not booted."""
    shown = ["systemctl", "show", "--property=ActiveState,UnitFileState"]
    said = {
        unit: subprocess.run([*shown, unit], capture_output=True, text=True, errors="replace", check=False)
        for unit in units
    }
    return [unit for unit, done in said.items() if set(done.stdout.split()).intersection(ON)]


def leads_elsewhere(interface: Path) -> bool:
    """Return whether an interface is no bridge, or has a port other than those of containers, veth*."""
    ports = interface / "brif"
    return not ports.is_dir() or any(not port.name.startswith("veth") for port in ports.iterdir())


def mistaken(chains: dict[str, list[str]]) -> list[str]:
    """Return interfaces that the rules take for Docker's bridges, by their names, and that lead elsewhere."""
    rules = "\n".join(chains.get("forward", []))
    if 'iifname "br-*"' not in rules:
        return []
    found = [path for path in sorted(INTERFACES.glob("br-*")) if not OF_DOCKER.fullmatch(path.name)]
    names = [path.name for path in found if leads_elsewhere(path)]
    return [name for name in names if f'iifname != "{name}"' not in rules]


installed = shutil.which("nft") is not None
look = {
    "armed": ARMED.read_text().strip() if ARMED.exists() else "",
    "installed": installed,
    "loaded": installed and table() == asked["table"],
    "mistaken": mistaken(asked["table"]["chains"]),
    "others": on(asked["others"]),
}
json.dump(look, sys.stdout)

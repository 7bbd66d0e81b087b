"""What the role package_pins reads of a node: one JSON document. Changes nothing.

Standard library only; runs on the node from stdin.

    {"installed": {"libcuda1": "535.309.01-1~deb12u1"}, "held": ["libcuda1"], "ours": ["libcuda1"]}
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

OURS = Path("/var/lib/gpuprov/held")  # written by the role: a name a line

form = "${db:Status-Abbrev}\t${Package}\t${Version}\n"
listed = subprocess.run(["dpkg-query", "-W", "-f", form], capture_output=True, text=True, check=True)
packages = [line.split("\t") for line in listed.stdout.splitlines()]
look = {
    "installed": {name: version for state, name, version in packages if state[1] == "i"},
    "held": [name for state, name, _ in packages if state[0] == "h"],
    "ours": OURS.read_text().split() if OURS.exists() else [],
}
json.dump(look, sys.stdout)

"""What the role package_pins reads of a node: one JSON document. Changes nothing.

Runs on the node, with plugins/module_utils beside it.

    {"installed": {"libcuda1": "535.309.01-1~deb12u1"}, "held": ["libcuda1"], "ours": ["libcuda1"]}
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gpuprov_node import packages

OURS = Path("/var/lib/gpuprov/held")  # written by the role: a name a line

rows = packages()
look = {
    "installed": {row.name: row.version for row in rows if row.state == "i"},
    "held": [row.name for row in rows if row.wanted == "h"],
    "ours": OURS.read_text().split() if OURS.exists() else [],
}
json.dump(look, sys.stdout)

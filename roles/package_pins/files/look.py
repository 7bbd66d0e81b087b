"""State of a node for the role package_pins, as one JSON document. Changes nothing.

Runs on the node, with the modules of plugins/module_utils.

    {"manager": "apt", "installed": {"libcuda1": "535.309.01-1~deb12u1"}, "held": ["libcuda1"],
     "ours": ["libcuda1"]}
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gpuprov_manager import package_manager
from gpuprov_node import packages

OURS = Path("/var/lib/gpuprov/held")  # the role's record, one name per line

rows = packages()
look = {
    "manager": package_manager().NAME,
    "installed": {row.name: row.version for row in rows if row.state == "i"},
    "held": [row.name for row in rows if row.wanted == "h"],
    "ours": OURS.read_text().split() if OURS.exists() else [],
}
json.dump(look, sys.stdout)

"""State of a node for the role monitoring, as one JSON document. Changes nothing.

Standard library only; runs on the node, from standard input. Argument: {"units": [names of units]}.

    {"loaded": true, "units": ["prometheus-node-exporter.service"], "text": "/srv/gpuprov.prom"}

`units` are the given ones that a package has installed; `text` is the path that the role wrote last, or null.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

DRIVER = Path("/proc/driver/nvidia/version")
UNITS = Path("/usr/lib/systemd/system")
RECORD = Path("/var/lib/gpuprov/textfile")

look = {
    "loaded": DRIVER.exists(),
    "units": [unit for unit in json.loads(sys.argv[1])["units"] if (UNITS / unit).exists()],
    "text": (RECORD.read_text().strip() if RECORD.exists() else "") or None,
}
json.dump(look, sys.stdout)

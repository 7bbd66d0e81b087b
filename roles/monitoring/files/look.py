"""What the role monitoring reads of a node: one JSON document. Changes nothing.

Standard library only; runs on the node from stdin. Argument: {"units": [names of units]}.

    {"loaded": true, "units": ["prometheus-node-exporter.service"], "text": "/srv/gpuprov.prom"}

`units` are those of the ones asked for that a package has brought; `text` is where the role wrote last, or
null.
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

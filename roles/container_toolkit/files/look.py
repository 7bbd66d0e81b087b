"""State of a node for the role container_toolkit, as one JSON document. Changes nothing.

Standard library only; runs on the node, from standard input.

    {"old_sources": ["/etc/apt/sources.list.d/nvidia-docker.list"], "refresh_unit": true, "answers": true,
     "specification": false}
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

# Two lists with different Signed-By make apt refuse both (troubleshooting page of NVIDIA's toolkit).
OLD_SOURCES = ("nvidia-docker.list", "nvidia-container-runtime.list", "libnvidia-container.list")
UNIT_FOLDERS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")

sources = [Path("/etc/apt/sources.list.d", name) for name in OLD_SOURCES]
look = {
    "old_sources": [str(path) for path in sources if path.exists()],
    "refresh_unit": any(Path(folder, "nvidia-cdi-refresh.service").exists() for folder in UNIT_FOLDERS),
    "answers": Path("/proc/driver/nvidia/version").exists(),
    "specification": Path("/var/run/cdi/nvidia.yaml").exists(),
}
json.dump(look, sys.stdout)

"""What the role container_toolkit reads of a node: one JSON document. Changes nothing.

Standard library only; runs on the node from stdin.

    {"installed": {"nvidia-container-toolkit": "1.19.0-1"}, "forerunners": ["nvidia-docker2"],
     "old_sources": ["/etc/apt/sources.list.d/nvidia-docker.list"], "refresh_unit": true, "answers": true}
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

# Removed from the toolkit with 1.15.0 (its changelog); the toolkit alone does what they did.
FORERUNNERS = ("nvidia-docker2", "nvidia-docker", "nvidia-container-runtime")
# A second list with another Signed-By makes apt refuse both (NVIDIA's troubleshooting page of the toolkit).
OLD_SOURCES = ("nvidia-docker.list", "nvidia-container-runtime.list", "libnvidia-container.list")
UNIT_FOLDERS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")

form = "${db:Status-Abbrev}\t${Package}\t${Version}\n"
listed = subprocess.run(["dpkg-query", "-W", "-f", form], capture_output=True, text=True, check=True)
rows = [line.split("\t") for line in listed.stdout.splitlines()]
installed = {name: version for state, name, version in rows if state[1] == "i"}
sources = [Path("/etc/apt/sources.list.d", name) for name in OLD_SOURCES]
look = {
    "installed": installed,
    "forerunners": [name for name in FORERUNNERS if name in installed],
    "old_sources": [str(path) for path in sources if path.exists()],
    "refresh_unit": any(Path(folder, "nvidia-cdi-refresh.service").exists() for folder in UNIT_FOLDERS),
    "answers": Path("/proc/driver/nvidia/version").exists(),
    "specification": Path("/var/run/cdi/nvidia.yaml").exists(),
}
json.dump(look, sys.stdout)

"""State of a node for the role container_toolkit, as one JSON document. Changes nothing.

Standard library only; runs on the node, from standard input.

    {"old_sources": ["/etc/apt/sources.list.d/nvidia-docker.list"], "refresh_unit": true, "answers": true,
     "specification": true, "outdated": false}
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from gpuprov_cdi import specifications

# Two lists with different Signed-By make apt refuse both (troubleshooting page of NVIDIA's toolkit).
OLD_SOURCES = ("nvidia-docker.list", "nvidia-container-runtime.list", "libnvidia-container.list")
UNIT_FOLDERS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")

SPECIFICATION = "/var/run/cdi/nvidia.yaml"
ANSWER = ("nvidia-smi", "-L")
DEVICES = Path("/dev")
LOADED = Path("/proc/driver/nvidia/version")


def outdated() -> bool:
    """Return whether the specification does not fit the loaded driver, and can be written again; False
    without either.

    It does not fit if it names files that do not exist, libraries of another version or another number of
    GPUs, or if users cannot read it. A driver whose libraries wait for a reboot does not answer, and nothing
    can be written for it.
    """
    specification = specifications().get(SPECIFICATION)
    loaded = re.search(r"  (\d+\.\d+(?:\.\d+)?)  ", LOADED.read_text()) if LOADED.exists() else None
    if specification is None or loaded is None:
        return False
    nodes = len([path for path in DEVICES.glob("nvidia[0-9]*") if path.name[6:].isdecimal()])
    unfit = (
        specification["missing"]
        or [v for v in specification["versions"] if v != loaded.group(1)]
        or specification["gpus"] != nodes
        or specification["private"]
    )
    return (
        bool(unfit) and subprocess.run(ANSWER, capture_output=True, check=False, timeout=60).returncode == 0
    )


sources = [Path("/etc/apt/sources.list.d", name) for name in OLD_SOURCES]
look = {
    "old_sources": [str(path) for path in sources if path.exists()],
    "refresh_unit": any(Path(folder, "nvidia-cdi-refresh.service").exists() for folder in UNIT_FOLDERS),
    "answers": LOADED.exists(),
    "specification": SPECIFICATION in specifications(),
    "outdated": outdated(),
}
json.dump(look, sys.stdout)

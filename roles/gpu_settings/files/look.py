"""What the role gpu_settings reads of a node before and after it acts: one JSON document. Changes nothing.

Standard library only; runs on the node from stdin.

    {"answers": true, "persistence": ["Enabled"], "clocks": ["application 1980 3201"],
     "daemon": {"command": "/usr/bin/nvidia-persistenced --user nvpd", "installs": true} or null,
     "clocks_unit": true}
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

LOADED = Path("/proc/driver/nvidia/version")
OUTCOME = Path("/run/gpuprov/gpu-clocks")  # written by our unit: `0 application 1980 3201`
FIELDS = "persistence_mode,clocks.applications.graphics,clocks.applications.memory"
UNIT_FOLDERS = ("/usr/lib/systemd/system", "/lib/systemd/system")


def gpus() -> list[list[str]] | None:
    """For each GPU its persistence mode and application clocks; None where no driver answers.

    Nothing is asked of a driver that is not loaded: nvidia-smi would load it.
    """
    if not LOADED.exists() or not shutil.which("nvidia-smi"):
        return None
    query = ["nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60)
    except subprocess.TimeoutExpired:
        return None
    return [line.split(", ") for line in done.stdout.splitlines()] if done.returncode == 0 else None


def clocks(seen: list[list[str]]) -> list[str]:
    """What our unit achieved for each GPU; application clocks as the driver has them now.

    Locked clocks cannot be read back from a driver, so for them the unit's own word stands.
    """
    said = dict(line.split(" ", 1) for line in OUTCOME.read_text().splitlines()) if OUTCOME.exists() else {}
    now = []
    for index, (_, graphics, memory) in enumerate(seen):
        outcome = said.get(str(index), "unset")
        now.append(f"application {graphics} {memory}" if outcome.startswith("application ") else outcome)
    return now


def daemon() -> dict | None:
    """nvidia-persistenced as it is packaged, without drop-ins."""
    for folder in UNIT_FOLDERS:
        unit = Path(folder, "nvidia-persistenced.service")
        if unit.exists():
            text = unit.read_text()
            command = re.search(r"(?m)^ExecStart=(.+)$", text)
            return {"command": command.group(1) if command else "", "installs": "\n[Install]" in text}
    return None


def main() -> None:
    seen = gpus()
    look = {
        "answers": seen is not None,
        "persistence": [mode for mode, *_ in seen or []],
        "clocks": clocks(seen or []),
        "daemon": daemon(),
        "clocks_unit": Path("/etc/systemd/system/gpuprov-gpu-clocks.service").exists(),
    }
    json.dump(look, sys.stdout)


if __name__ == "__main__":
    main()

"""State of a node for the role gpu_settings, as one JSON document. Changes nothing.

Standard library only; runs on the node, from standard input. Argument: the requested modes, null for others:
{"power": 300, "compute": "default", "ecc": true, "mig": ["3g.40gb"]}.

    {"answers": true, "persistence": ["Enabled"], "clocks": ["application 1980 3201"],
     "daemon": {"command": "/usr/bin/nvidia-persistenced --user nvpd", "installs": true} or null,
     "override": false, "clocks_unit": true, "modes_unit": false, "modes_set": ["power"], "modes_off": true}
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

LOADED = Path("/proc/driver/nvidia/version")
OUTCOME = Path("/run/gpuprov/gpu-clocks")  # written by the role's unit: `0 application 1980 3201`
FIELDS = "persistence_mode,clocks.applications.graphics,clocks.applications.memory"
MODES = "power.limit,compute_mode,ecc.mode.pending,mig.mode.pending,mig.mode.current"
OVERRIDE = Path("/etc/systemd/system/nvidia-persistenced.service.d/gpuprov.conf")
MODES_UNIT = Path("/etc/systemd/system/gpuprov-gpu-modes.service")
UNIT_FOLDERS = ("/usr/lib/systemd/system", "/lib/systemd/system")


def gpus(fields: str = FIELDS) -> list[list[str]] | None:
    """Return fields of each GPU, by default persistence mode and application clocks; None without a driver.

    A driver that is not loaded is not queried: nvidia-smi would load it.
    """
    if not LOADED.exists() or not shutil.which("nvidia-smi"):
        return None
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            query, capture_output=True, text=True, errors="replace", check=False, timeout=60
        )
    except subprocess.TimeoutExpired:
        return None
    return [line.split(", ") for line in done.stdout.splitlines()] if done.returncode == 0 else None


def clocks(seen: list[list[str]]) -> list[str]:
    """Return the result of the role's unit for each GPU, with application clocks as the driver has them now.

    Locked clocks cannot be read from a driver, so that for them the unit's record counts.
    """
    said = dict(line.split(" ", 1) for line in OUTCOME.read_text().splitlines()) if OUTCOME.exists() else {}
    now = []
    for index, (_persistence, graphics, memory) in enumerate(seen):
        outcome = said.get(str(index), "unset")
        now.append(f"application {graphics} {memory}" if outcome.startswith("application ") else outcome)
    return now


def instances() -> dict[int, list[str]]:
    """Run nvidia-smi; return the sorted profiles of the GPU instances, by GPU; {} without any, or if it
    fails.
    """
    done = subprocess.run(
        ["nvidia-smi", "mig", "-lgi"],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=60,
    )
    found: dict[int, list[str]] = {}
    for index, profile in re.findall(r"(?m)^\|\s+(\d+)\s+MIG (\S+)", done.stdout):
        found[int(index)] = sorted([*found.get(int(index), []), profile])
    return found


def off(index: int, gpu: list[str], wanted: dict) -> bool:
    """Return whether a mode of a GPU differs from the requested one; modes that it does not have never do."""
    power, compute, ecc, mig, mig_now = (None if "N/A" in word or "Not" in word else word for word in gpu)
    layout = sorted(wanted["mig"] or [])
    return any(
        (
            None not in (wanted["power"], power) and float(power or 0) != float(wanted["power"]),
            None not in (wanted["compute"], compute) and str(compute).lower() != wanted["compute"],
            None not in (wanted["ecc"], ecc) and (ecc == "Enabled") != wanted["ecc"],
            None not in (wanted["mig"], mig) and (mig == "Enabled") != bool(layout),
            None not in (wanted["mig"], mig) and mig_now == mig and instances().get(index, []) != layout,
        )
    )


def modes_set() -> list[str]:
    """Return the names of the modes that the role's unit sets; [] without the unit."""
    line = re.search(r"(?m)^ExecStart=\S+ (.+)$", MODES_UNIT.read_text()) if MODES_UNIT.exists() else None
    return [word.partition("=")[0] for word in line.group(1).split()] if line else []


def daemon() -> dict | None:
    """Return the unit of nvidia-persistenced as packaged, without drop-ins; None if it is not installed."""
    for folder in UNIT_FOLDERS:
        unit = Path(folder, "nvidia-persistenced.service")
        if unit.exists():
            text = unit.read_text()
            command = re.search(r"(?m)^ExecStart=(.+)$", text)
            return {"command": command.group(1) if command else "", "installs": "\n[Install]" in text}
    return None


def main(wanted: dict) -> None:
    """Print modes and clocks of the GPUs, and the units that set them at boot, as JSON; `answers` is whether
    nvidia-smi does.
    """
    seen = gpus()
    look = {
        "answers": seen is not None,
        "persistence": [mode for mode, *_clocks in seen or []],
        "clocks": clocks(seen or []),
        "daemon": daemon(),
        "override": OVERRIDE.exists(),
        "modes_unit": MODES_UNIT.exists(),
        "modes_set": modes_set(),
        "modes_off": any(off(index, gpu, wanted) for index, gpu in enumerate(gpus(MODES) or [])),
        "clocks_unit": Path("/etc/systemd/system/gpuprov-gpu-clocks.service").exists(),
    }
    json.dump(look, sys.stdout)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

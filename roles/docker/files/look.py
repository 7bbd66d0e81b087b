"""What the role docker reads of a node, and what daemon.json would become: one JSON document.

Changes nothing. Standard library only; runs on the node from stdin, with one argument: {"config": {…}}, what
daemon.json shall hold.

    {"installed": {"docker.io": "20.10.24+dfsg1-1+deb12u1"}, "text": "{…}" or null, "merged": "{…}",
     "broken": null, "stale": false, "gpu_containers": ["trainer"]}

`broken` says where daemon.json is not JSON: "line 3, column 5: Expecting value". `stale`: the daemon started
before its configuration or the toolkit's hook, which it reads at its start alone, was last written.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CONFIG = Path("/etc/docker/daemon.json")
OURS = Path("/var/lib/gpuprov/daemon.json")  # written by the role: what it put into daemon.json
READ_AT_START = (CONFIG, Path("/usr/bin/nvidia-container-runtime-hook"))
GPUS = "{{.Name}} {{.HostConfig.Runtime}} {{json .HostConfig.DeviceRequests}}"


def merge(document, wanted, ours):
    """The document with what is wanted in it and without what was ours and is wanted no more.

    Everything else stays. A list is merged by its items' names, the part before "=":
    `native.cgroupdriver=systemd` takes the place of `native.cgroupdriver=cgroupfs`.
    """
    if isinstance(document, dict) and isinstance(wanted, dict):
        before = ours if isinstance(ours, dict) else {}
        kept = {key: value for key, value in document.items() if key in wanted or value != before.get(key)}
        for key in [key for key in kept if key not in wanted and isinstance(before.get(key), (dict, list))]:
            kept[key] = merge(kept[key], type(kept[key])(), before[key])
            if not kept[key]:
                del kept[key]
        new = {key: merge(kept.get(key), value, before.get(key)) for key, value in wanted.items()}
        return {**kept, **new}
    if isinstance(document, list) and isinstance(wanted, list):
        named = {name(item) for item in wanted}
        before = ours if isinstance(ours, list) else []
        kept = [
            item for item in document if item in wanted or (name(item) not in named and item not in before)
        ]
        return kept + [item for item in wanted if item not in kept]
    return wanted


def name(item):
    """What a list's item sets."""
    return item.partition("=")[0] if isinstance(item, str) else json.dumps(item)


def read(text):
    """The document in a text, and where it is broken; an empty file is an empty document."""
    try:
        document = json.loads(text) if text and text.strip() else {}
    except ValueError as error:
        return {}, f"line {error.lineno}, column {error.colno}: {error.msg}"
    return (document, None) if isinstance(document, dict) else ({}, "line 1, column 1: not an object")


def output(*argv):
    """What a program prints, or nothing where it is missing or fails."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def installed():
    """Packages by version."""
    rows = output("dpkg-query", "-W", "-f", "${db:Status-Abbrev}\t${Package}\t${Version}\n").splitlines()
    return {row[1]: row[2] for row in (line.split("\t") for line in rows) if row[0][1] == "i"}


def started():
    """When the daemon that runs now was started, in seconds since the epoch; None where none runs."""
    pid = output("systemctl", "show", "--value", "--property=MainPID", "docker.service").strip()
    if pid in ("", "0"):
        return None
    return Path("/proc", pid).stat().st_ctime


def gpu_containers():
    """Names of the running containers that were given GPUs."""
    if started() is None:
        return []
    running = output("docker", "ps", "--quiet").split()
    rows = [row.split(" ", 2) for row in output("docker", "inspect", "--format", GPUS, *running).splitlines()]
    return sorted(row[0].lstrip("/") for row in rows if row[1] == "nvidia" or row[2] not in ("null", "[]"))


def main(wanted):
    """Print the document."""
    text = CONFIG.read_text() if CONFIG.exists() else None
    document, broken = read(text)
    result = merge(document, wanted, read(OURS.read_text() if OURS.exists() else None)[0])
    since = started()
    written = [path.stat().st_ctime for path in READ_AT_START if path.exists()]
    look = {
        "installed": installed(),
        "text": text,
        "merged": text or "" if result == document else json.dumps(result, indent=4) + "\n",
        "broken": broken,
        "stale": since is not None and max(written, default=0) > since,
        "gpu_containers": gpu_containers(),
    }
    json.dump(look, sys.stdout)


if __name__ == "__main__":
    main(json.loads(sys.argv[1])["config"])

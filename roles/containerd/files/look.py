"""What the role containerd reads of a node: one JSON document. Changes nothing.

Standard library only; runs on the node from stdin.

    {"installed": {"containerd": "1.6.20~ds1-1+deb12u3"}, "text": "…" or null, "mode": "0644", "ours": […],
     "overriding": [], "stale": false, "gpu_containers": ["k8s.io/trainer-0"]}

`text` is config.toml, `ours` what of it the role remembers as its own. `overriding` are files that
config.toml imports and that speak of the plugin that Kubernetes talks to: up to 1.7 containerd then forgets
what config.toml says of it. `stale`: the daemon, which reads it at its start alone, started before it was
last written.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

CONFIG = Path("/etc/containerd/config.toml")
OURS = Path("/var/lib/gpuprov/containerd.json")  # written by the role
CRI = re.compile(r"io\.containerd\.(?:grpc\.v1\.cri|cri\.v1\.runtime)\b")
POD = "io.kubernetes.pod.name"


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


def imported(dump):
    """Files that the configuration is made of beside config.toml, of what `containerd config dump` prints."""
    listed = re.search(r"^imports = \[(.*)\]$", dump, re.MULTILINE)
    paths = re.findall(r"""["']([^"']+)["']""", listed[1]) if listed else []
    return [Path(path) for path in paths if path != str(CONFIG)]


def started():
    """When the daemon that runs now was started, in seconds since the epoch; None where none runs."""
    pid = output("systemctl", "show", "--value", "--property=MainPID", "containerd.service").strip()
    if pid in ("", "0"):
        return None
    return Path("/proc", pid).stat().st_ctime


def gpu_containers():
    """Running containers that were given GPUs, by namespace and pod; those of Docker are among them."""
    found = set()
    for namespace in output("ctr", "namespaces", "list", "--quiet").split():
        for line in output("ctr", "--namespace", namespace, "tasks", "list").splitlines()[1:]:
            container, pid = line.split()[:2]
            if any(Path("/proc", pid, "root/dev").glob("nvidia[0-9]*")):
                told = json.loads(
                    output("ctr", "--namespace", namespace, "containers", "info", container) or "{}"
                )
                found.add(f"{namespace}/{(told.get('Labels') or {}).get(POD, container[:12])}")
    return sorted(found)


def main():
    """Print the document."""
    packages, since = installed(), started()
    # From 2.0 on tables are merged (containerd#9982).
    whole = packages.get("containerd", "").startswith("1.")
    files = imported(output("containerd", "config", "dump")) if whole else []
    status = CONFIG.stat() if CONFIG.exists() else None
    look = {
        "installed": packages,
        "text": CONFIG.read_text() if status else None,
        "mode": f"{status.st_mode & 0o7777:04o}" if status else "0644",
        "ours": json.loads(OURS.read_text()) if OURS.exists() else [],
        "overriding": [str(path) for path in files if CRI.search(path.read_text())],
        "stale": since is not None and status is not None and status.st_ctime > since,
        "gpu_containers": gpu_containers() if since is not None else [],
    }
    json.dump(look, sys.stdout)


if __name__ == "__main__":
    main()

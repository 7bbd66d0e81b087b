"""What the role containerd reads of a node: one JSON document. Changes nothing.

Runs on the node, with plugins/module_utils beside it.

    {"installed": {"containerd": "1.6.20~ds1-1+deb12u3"}, "text": "…" or null, "mode": "0644", "ours": […],
     "overriding": [], "stale": false, "containers": ["k8s.io/trainer-0"], "gpu_containers": [],
     "silent": null, "kept": true}

`text` is config.toml, `ours` what of it the role remembers as its own. `overriding` are files that
config.toml imports and that speak of the plugin that Kubernetes talks to: up to 1.7 containerd then forgets
what config.toml says of it. `stale`: the daemon, which reads it at its start alone, started before it was
last written. `containers` are those that run; where the daemon does not tell them, `silent` says how it was
asked. `kept`: they go on while it is restarted.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import gpuprov_containers as containers
from gpuprov_node import installed, output, started

CONFIG = Path("/etc/containerd/config.toml")
OURS = Path("/var/lib/gpuprov/containerd.json")  # written by the role
CRI = re.compile(r"io\.containerd\.(?:grpc\.v1\.cri|cri\.v1\.runtime)\b")


def imported(dump):
    """Files that the configuration is made of beside config.toml, of what `containerd config dump` prints."""
    listed = re.search(r"^imports = \[(.*)\]$", dump, re.MULTILINE)
    paths = re.findall(r"""["']([^"']+)["']""", listed[1]) if listed else []
    return [Path(path) for path in paths if path != str(CONFIG)]


def main():
    """Print the document."""
    packages, since = installed(), started("containerd.service")
    # From 2.0 on tables are merged (containerd#9982).
    whole = packages.get("containerd", "").startswith("1.")
    files = imported(output("containerd", "config", "dump")) if whole else []
    status = CONFIG.stat() if CONFIG.exists() else None
    silent, running = None, []
    try:
        running = containers.of_containerd()
    except containers.Silent as error:
        silent = str(error)
    look = {
        "installed": packages,
        "text": CONFIG.read_text() if status else None,
        "mode": f"{status.st_mode & 0o7777:04o}" if status else "0644",
        "ours": json.loads(OURS.read_text()) if OURS.exists() else [],
        "overriding": [str(path) for path in files if CRI.search(path.read_text())],
        "stale": since is not None and status is not None and status.st_ctime > since,
        "containers": [each.name for each in running],
        "gpu_containers": [each.name for each in running if each.gpus],
        "silent": silent,
        "kept": containers.kept_by_containerd(),
    }
    json.dump(look, sys.stdout)


if __name__ == "__main__":
    main()

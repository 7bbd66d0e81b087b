"""State of a node for the role containerd, as one JSON document. Changes nothing.

Runs on the node, with the modules of plugins/module_utils.

    {"installed": {"containerd": "1.6.20~ds1-1+deb12u3"}, "text": "…" or null, "mode": "0644", "ours": […],
     "overriding": [], "stale": false, "containers": ["k8s.io/trainer-0"], "gpu_containers": [],
     "silent": null, "kept": true}

`text` is config.toml, `ours` the keys in it that the role wrote. `overriding` are files that config.toml
imports and that have a table of the CRI plugin: up to 1.7 containerd then ignores that table in config.toml.
`stale`: the daemon, which reads its configuration only at its start, started before the last change.
`containers` are those that run; `silent` is the command that did not list them, or null. `kept`: they keep
running while the daemon is restarted.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import gpuprov_containers as containers
from gpuprov_node import installed, output, started

CONFIG = Path("/etc/containerd/config.toml")
OURS = Path("/var/lib/gpuprov/containerd.json")  # the role's record
CRI = re.compile(r"io\.containerd\.(?:grpc\.v1\.cri|cri\.v1\.runtime)\b")


def imported(dump):
    """Return the files that config.toml imports, from the output of `containerd config dump`."""
    listed = re.search(r"^imports = \[(.*)\]$", dump, re.MULTILINE)
    paths = re.findall(r"""["']([^"']+)["']""", listed[1]) if listed else []
    return [Path(path) for path in paths if path != str(CONFIG)]


def main():
    """Print the document."""
    packages, since = installed(), started("containerd.service")
    # containerd 2.0 and newer merge tables (containerd#9982).
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

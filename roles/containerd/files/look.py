"""State of a node for the role containerd, as one JSON document. Changes nothing.

Runs on the node, with the modules of plugins/module_utils.

    {"installed": {"containerd": "1.6.20~ds1-1+deb12u3"}, "text": "…" or null, "ours": […],
     "default": {"version": 2, "imports": []}, "imported": [["/etc/containerd/conf.d/a.toml", "…"]],
     "overriding": [], "stale": false, "containers": ["k8s.io/trainer-0"], "gpu_containers": [],
     "silent": null, "kept": true}

`text` is config.toml, `ours` the keys in it that the role wrote. `default` has two values of containerd's own
default configuration, which is in effect without config.toml; {} without containerd. `imported` are path and
text of the files that config.toml imports. `overriding` are those that have a table of the CRI plugin: up to
1.7 containerd then ignores that table in config.toml.
`stale`: the daemon, which reads its configuration only at its start, started before the last change.
`containers` are those that run; `silent` is the command that did not list them, or null. `kept`: they keep
running while the daemon is restarted.
"""

from __future__ import annotations

import glob
import json
import re
import sys
from pathlib import Path

import gpuprov_containers as containers
from gpuprov_node import installed, output, started

CONFIG = Path("/etc/containerd/config.toml")
OURS = Path("/var/lib/gpuprov/containerd.json")  # the role's record
IMPORTED, BYTES = 64, (64 << 10) + 1  # files, and bytes of each; merge.py refuses a file of so many
CRI = re.compile(r"io\.containerd\.(?:grpc\.v1\.cri|cri\.v1\.runtime)\b")


def imports(text):
    """Return the paths and patterns in the list `imports` of a configuration; [] without it."""
    listed = re.search(r"^\s*imports\s*=\s*\[([^\]]*)\]", text, re.MULTILINE)
    return re.findall(r"""["']([^"'\n]+)["']""", listed[1]) if listed else []


def imported(text, dump):
    """Return the files that config.toml imports.

    Up to 1.7 `containerd config dump` lists them, also those that an imported file imports; later it prints
    the patterns of config.toml, and nothing if it refuses a file, so that config.toml is read, too.

    Args:
        text: config.toml.
        dump: the output of `containerd config dump`.
    """
    patterns = [str(CONFIG.parent / pattern) for pattern in imports(text) + imports(dump)]
    found = [path for pattern in dict.fromkeys(patterns) for path in sorted(glob.glob(pattern))]  # noqa: PTH207 - a pattern with a root
    return [Path(path) for path in dict.fromkeys(found) if path != str(CONFIG)]


def default(text):
    """Return version and imports in the output of `containerd config default`; {} without a version."""
    version = re.search(r"^version = ([0-9]{1,2})$", text, re.MULTILINE)
    return {"version": int(version[1]), "imports": imports(text)} if version else {}


def beginning(path):
    """Return the first `BYTES` of a file as text, which is only read."""
    with path.open("rb") as file:
        return file.read(BYTES).decode("utf-8", "replace")


def main():
    """Print packages, containerd's configuration with its imports, and its containers as JSON; `silent` is
    why these are unknown.
    """
    packages, since = installed(), started("containerd.service")
    # containerd 2.0 and newer merge tables (containerd#9982).
    whole = packages.get("containerd", "").startswith("1.")
    status = CONFIG.stat() if CONFIG.exists() else None
    try:
        text = CONFIG.read_text("utf-8") if status else None
    except UnicodeDecodeError as error:
        says = f"{CONFIG} is not UTF-8 at its byte {error.start + 1}, and containerd does not read it"
        json.dump({"failure": {"says": says, "do": "correct it on the node"}}, sys.stdout)
        return
    paths = imported(text or "", output("containerd", "config", "dump"))[:IMPORTED]
    files = [[str(path), beginning(path)] for path in paths if path.is_file()]
    silent, running = None, []
    try:
        running = containers.of_containerd()
    except containers.Silent as error:
        silent = str(error)
    look = {
        "installed": packages,
        "text": text,
        "ours": json.loads(OURS.read_text()) if OURS.exists() else [],
        "default": default(output("containerd", "config", "default")),
        "imported": files,
        "overriding": [path for path, own in files if whole and CRI.search(own)],
        "stale": since is not None and status is not None and status.st_ctime > since,
        "containers": [each.name for each in running],
        "gpu_containers": [each.name for each in running if each.gpus],
        "silent": silent,
        "kept": containers.kept_by_containerd(),
    }
    json.dump(look, sys.stdout)


if __name__ == "__main__":
    main()

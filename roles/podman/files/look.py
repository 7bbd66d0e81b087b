"""State of a node for the role podman, as one JSON document. Changes nothing.

Runs on the node, with the modules of plugins/module_utils. Argument: {"config": {…}}, the tables that
containers.conf must have.

    {"installed": {"podman": "5.4.2+ds1-2+b2"}, "config": {…}, "containers": ["trainer"], "silent": null}

`config` are the tables of the role's file: those with the limits of earlier files, as Podman takes the whole
list from one file. `containers` are those of root that run; `silent` is the command that did not list them,
or null.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import gpuprov_containers as containers
from gpuprov_node import installed

FIRST = ("/usr/share/containers/containers.conf", "/etc/containers/containers.conf")
OURS = Path("/etc/containers/containers.conf.d/gpuprov.conf")
LIMITS = re.compile(r"(?m)^[ \t]*(?:containers[ \t]*\.[ \t]*)?default_ulimits[ \t]*=[ \t]*\[([^\]]*)\]")


def earlier():
    """Return the limits of the last file before the role's that states any: `["nofile=1024:4096"]`."""
    found = []
    folder = sorted(path for path in OURS.parent.glob("*.conf") if path.name < OURS.name)
    for path in [*map(Path, FIRST), *folder]:
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        for listed in LIMITS.findall(text):
            found = re.findall(r"""["']([^"'\n]+)["']""", re.sub("(?m)#.*$", "", listed))
    return found


def merged(config, others):
    """Return the tables with these limits too, unless they have one of the name; unchanged without limits."""
    ours = config.get("containers", {}).get("default_ulimits")
    if ours is None:
        return config
    names = {each.partition("=")[0] for each in ours}
    kept = [each for each in others if each.partition("=")[0] not in names]
    return {**config, "containers": {**config["containers"], "default_ulimits": kept + ours}}


def main(config):
    """Print the document."""
    silent, running = None, []
    try:
        running = containers.of_podman()
    except containers.Silent as error:
        silent = str(error)
    look = {
        "installed": installed(),
        "config": merged(config, earlier()),
        "containers": running,
        "silent": silent,
    }
    json.dump(look, sys.stdout)


if __name__ == "__main__":
    main(json.loads(sys.argv[1])["config"])

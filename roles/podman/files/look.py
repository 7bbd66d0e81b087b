"""State of a node for the role podman, as one JSON document. Changes nothing.

Runs on the node, with the modules of plugins/module_utils. Argument: {"config": {…}}, the tables that
containers.conf must have.

    {"manager": "apt", "installed": {"podman": "5.4.2+ds1-2+b2"}, "config": {…}, "unread": null,
     "containers": ["trainer"], "silent": null}

`config` are the tables of the role's file: those with the limits of earlier files, as Podman takes the whole
list from one file; `unread` is the reason why these limits are not known, or null. `containers` are those of
root that run; `silent` is the command that did not list them, or null.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path

import gpuprov_containers as containers
from gpuprov_manager import package_manager
from gpuprov_node import MISSING, installed, run

OURS = Path("/etc/containers/containers.conf.d/gpuprov.conf")
ASK_S = 10
"""Seconds within which Podman has to print its help, which has the defaults of its options."""
HELP = "unset CONTAINERS_CONF CONTAINERS_CONF_OVERRIDE; exec podman create --help"
# In a mount namespace, which ends with the command, the files are empty.
WITHOUT = f'for file; do mount --bind /dev/null "$file" || exit; done; {HELP}'
ASK = 'exec 2>&1; script=$1; shift; [ $# = 0 ] || exec unshare --mount sh -c "$script" sh "$@"; ' + HELP
NO_MOUNT = "cannot change root filesystem propagation"
"""Message of unshare(1) in a chroot."""
OPTION = re.compile(r"(?m)^ +--ulimit +strings +[^(\n]*(?:\(default \[(.*)\]\))?$")
LIMIT = re.compile(r"[A-Za-z_]+=-?[0-9]+(:-?[0-9]+)?|host")


class Unread(Exception):
    """Reason why the limits of other files are not known."""


def earlier():
    """Return the limits that the files before the role's make together: `["nofile=1024:4096"]`.

    Podman itself reads them: it knows all of TOML, and its own files. Empty without Podman.

    Raises:
        Unread: Podman does not read its files, or states limits in another form.
    """
    hidden = sorted(str(path) for path in OURS.parent.glob("*.conf") if path.name >= OURS.name)
    status, said = run("sh", "-c", ASK, "sh", WITHOUT, *hidden, seconds=ASK_S)
    if status == MISSING:
        return []
    if NO_MOUNT in said:
        raise Unread(
            "this root tree is no mount point, which `mount --bind TREE TREE` before chroot makes it"
        )
    if status:
        why = " ".join(said.split())[-200:]
        raise Unread(f"`podman create --help` exited with {status}" + (f": {why}" if why else ""))
    option = OPTION.search(said)
    if option is None:
        raise Unread("`podman create --help` has no option --ulimit")
    [limits] = csv.reader([option.group(1) or ""])
    for limit in limits:
        if not LIMIT.fullmatch(limit):
            raise Unread(f"the limit {limit!r} of another file is not NAME=SOFT:HARD")
    return limits


def merged(config, others):
    """Return the tables with these limits too, unless they have one of the name."""
    ours = config["containers"]["default_ulimits"]
    names = {each.partition("=")[0] for each in ours}
    kept = [each for each in others if each.partition("=")[0] not in names]
    return {**config, "containers": {**config["containers"], "default_ulimits": kept + ours}}


def main(config):
    """Print manager, packages, the merged settings and containers as JSON, with the reasons why one could not
    be read.

    Args:
        config: settings of the role, which are merged with those of earlier files.
    """
    silent, unread, running = None, None, []
    try:
        running = containers.of_podman()
    except containers.Silent as error:
        silent = str(error)
    try:
        if "default_ulimits" in config.get("containers", {}):
            config = merged(config, earlier())
    except Unread as error:
        unread = str(error)
    look = {
        "manager": package_manager().NAME,
        "installed": installed(),
        "config": config,
        "unread": unread,
        "containers": running,
        "silent": silent,
    }
    json.dump(look, sys.stdout)


if __name__ == "__main__":
    main(json.loads(sys.argv[1])["config"])

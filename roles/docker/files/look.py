"""State of a node for the role docker and the merged daemon.json, as one JSON document.

Changes nothing. Runs on the node, with the modules of plugins/module_utils. Argument: {"config": {…}}, the
keys and values that daemon.json must have.

    {"installed": {"docker.io": "20.10.24+dfsg1-1+deb12u1"}, "text": "{…}" or null, "merged": "{…}",
     "options": "OPTIONS=\"\"\n" or null, "broken": null, "stale": false, "containers": ["trainer"],
     "silent": null, "live_restore": false}

`options` is /etc/sysconfig/docker without limits of containers, if dockerd would refuse to start because
daemon.json has limits, too; `merged` then has these limits. Amazon's package states one there.
`broken` is the place where daemon.json is not JSON: "line 3, column 5: Expecting value"; such a file is not
written, and `text` may have other characters. `stale`: the daemon started before the last change to its
configuration or the toolkit's hook, which it reads only at its start. `containers` are those that run;
`silent` is the command that did not list them, or null.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import gpuprov_containers as containers
from gpuprov_node import installed, started

CONFIG = Path("/etc/docker/daemon.json")
OURS = Path("/var/lib/gpuprov/daemon.json")  # the role's record of its keys in daemon.json
OPTIONS = Path("/etc/sysconfig/docker")
LIMITS = "default-ulimits"
LIMIT = re.compile(r" *--default-ulimit[= ]([a-z]+)=(-?[0-9]+)(?::(-?[0-9]+))?")
"""The option of dockerd with one limit: name, soft, hard."""
COMMENT = ("#", ";")
"""Begin of a comment in a file of variables, systemd.exec(5)."""
READ_AT_START = (CONFIG, OPTIONS, Path("/usr/bin/nvidia-container-runtime-hook"))


def merge(document, wanted, ours):
    """Return the document with the wanted values, without the role's former values that are not wanted.

    Everything else stays. A list is merged by its items' names, the part before "=":
    `native.cgroupdriver=systemd` replaces `native.cgroupdriver=cgroupfs`.
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
    """Return the name of what a list's item sets."""
    return item.partition("=")[0] if isinstance(item, str) else json.dumps(item)


def content(path):
    """Return the text of a file, and the place of a byte that is not UTF-8; None twice without the file."""
    if not path.exists():
        return None, None
    data = path.read_bytes()
    try:
        return data.decode("utf-8"), None
    except UnicodeDecodeError as error:
        return data.decode("utf-8", "replace"), f"byte {error.start + 1}: not UTF-8"


def read(text):
    """Return the document in a text, and the place of an error; an empty file is an empty document."""
    try:
        document = json.loads(text) if text and text.strip() else {}
    except ValueError as error:
        return {}, f"line {error.lineno}, column {error.colno}: {error.msg}"
    return (document, None) if isinstance(document, dict) else ({}, "line 1, column 1: not an object")


def moved(wanted, document, options):
    """Return the document with the limits of dockerd's options, and the options without them; None as the
    latter if they have none, or if daemon.json is to have no limits.

    dockerd does not start with both. A limit that the document has takes precedence. Comments state no limit,
    and stay.
    """
    lines = (options or "").splitlines(keepends=True)
    found = [limit for line in lines if not is_comment(line) for limit in LIMIT.findall(line)]
    if not found or LIMITS not in wanted:
        return document, None
    limits = {
        limit: {"Name": limit, "Hard": int(hard or soft), "Soft": int(soft)} for limit, soft, hard in found
    }
    without = "".join(line if is_comment(line) else LIMIT.sub("", line) for line in lines)
    return {**document, LIMITS: {**limits, **document[LIMITS]}}, without


def is_comment(line):
    """Return whether a line of a file of variables is a comment."""
    return line.lstrip().startswith(COMMENT)


def main(wanted):
    """Print packages, daemon.json with the role's settings merged into it, and Docker's containers as JSON.

    `broken` is why daemon.json cannot be read, `silent` why containers are unknown, `stale` whether a file
    has changed since Docker's start.
    """
    text, wrong = content(CONFIG)
    document, broken = read(text)
    result = merge(document, wanted, read(content(OURS)[0])[0])
    result, options = moved(wanted, result, content(OPTIONS)[0])
    since = started("docker.service")
    written = [path.stat().st_ctime for path in READ_AT_START if path.exists()]
    silent, running = None, []
    try:
        running = containers.of_docker()
    except containers.Silent as error:
        silent = str(error)
    look = {
        "installed": installed(),
        "text": text,
        "merged": text or "" if result == document else json.dumps(result, indent=4) + "\n",
        "options": options,
        "broken": wrong or broken,
        "stale": since is not None and max(written, default=0) > since,
        "containers": running,
        "silent": silent,
        "live_restore": bool(running) and containers.kept_by_docker(),
    }
    json.dump(look, sys.stdout)


if __name__ == "__main__":
    main(json.loads(sys.argv[1])["config"])

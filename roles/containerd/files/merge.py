"""What the role containerd makes of config.toml: one JSON document. Runs on the controller, with its tomlkit.

Standard input: {"text": "…" or null, "cri": {…}, "ours": […]}: the file as it is, what the table of the
plugin that Kubernetes talks to must hold, what we put there before.

    {"text": "…" or null, "refused": null, "ours": [[["containerd", "default_runtime_name"], "nvidia"]]}

`refused` says why the file is left alone. Only what differs is changed: the rest of the file, comments
included, stays as it is. `ours` is what differed before: what stood there already as it is wanted is the
site's and stays. A file of ours beside it, named by `imports`, cannot do this: up to 1.7 containerd takes a
plugin's table from the last file that has one, whole.
"""

from __future__ import annotations

import json
import sys

import tomlkit
from tomlkit.exceptions import ParseError
from tomlkit.items import InlineTable

# The plugin's name, by the version of the file (containerd's docs/PLUGINS.md); 1 is containerd 1.2's.
CRI = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
DISABLING = {"cri", *CRI.values()}


class Refused(Exception):
    """The file is left alone, for the reason given."""


def main(question):
    """The document."""
    try:
        text, ours = merged(question["text"] or "", question["cri"], question["ours"])
    except Refused as refused:
        return {"text": question["text"], "refused": str(refused), "ours": question["ours"]}
    return {"text": text if question["text"] or text else None, "refused": None, "ours": ours}


def merged(text, cri, ours):
    """The file with what the plugin's table must hold, without what was ours and is wanted no more; what is
    ours now.

    Raises:
        Refused: it is no TOML, of a version with other names, or written in a way that tomlkit cannot change.
    """
    document = parsed(text)
    plain = document.unwrap()
    version = plain.get("version", 1 if "plugins" in plain else 2)
    if version not in CRI:
        raise Refused(f"is of version {version}, whose names are others; those of version 2 are needed")
    now, plugin = flat(plain), ("plugins", CRI[version])
    put = {(*plugin, *path): value for path, value in ours}
    put = {path: value for path, value in put.items() if now.get(path) == value}
    table = flat(cri, plugin)
    wanted = {**table, **(of_the_file(plain, version) if table else {})}
    changed = {path: value for path, value in wanted.items() if path not in now or now[path] != value}
    gone = put.keys() - wanted
    for path in gone:
        remove(document, path)
    for path, value in changed.items():
        assign(document, path, value)
    # tomlkit 0.15 moves indents of what it wrote itself when it reads it again.
    result = tomlkit.dumps(document) if changed or gone else text
    # Below dotted keys tomlkit 0.15 makes tables at the wrong place.
    if flat(parsed(result).unwrap()) != {**{path: now[path] for path in now.keys() - gone}, **wanted}:
        raise Refused("has dotted keys where `containerd config default` has tables with headers")
    return result, [[path[len(plugin) :], table[path]] for path in table if path in changed or path in put]


def parsed(text):
    """The document in a text.

    Raises:
        Refused: it is no TOML; says where.
    """
    try:
        return tomlkit.parse(text)
    except ParseError as error:
        said = str(error).partition(" at line ")[0]
        raise Refused(f"is not TOML, line {error.line}, column {error.col + 1}: {said}") from None


def of_the_file(document, version):
    """What is wanted beside the plugin's table: that the plugin is loaded, and its name understood."""
    disabled = document.get("disabled_plugins", [])
    kept = [name for name in disabled if name not in DISABLING]
    return {("version",): version, **({} if kept == disabled else {("disabled_plugins",): kept})}


def flat(table, path=()):
    """Values by the keys that lead to them; a list is a value."""
    found = {}
    for key, value in table.items():
        found.update(flat(value, (*path, key)) if isinstance(value, dict) else {(*path, key): value})
    return found


def assign(table, path, value):
    """Set a value, in tables that are made where there are none."""
    for key in path[:-1]:
        if key not in table:
            inline = isinstance(table, InlineTable)
            table[key] = tomlkit.inline_table() if inline else tomlkit.table(is_super_table=key != path[-2])
        table = table[key]
    table[path[-1]] = value


def remove(table, path):
    """Take a value out, and tables that are empty without it."""
    if len(path) > 1:
        remove(table[path[0]], path[1:])
        if table[path[0]]:
            return
    del table[path[0]]


if __name__ == "__main__":
    json.dump(main(json.load(sys.stdin)), sys.stdout)

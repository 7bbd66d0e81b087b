"""Merge of settings into containerd's config.toml. Runs on the controller, with its tomlkit.

Standard input: {"text": "…" or null, "cri": {…}, "ours": […], "default": {…}, "imported": […]}: the file as
it is, the wanted content of the CRI plugin's table, the keys that the role wrote before, `version` and
`imports` of containerd's own default configuration, and path and text of each imported file. Prints

    {"text": "…" or null, "refused": null, "ours": [[["containerd", "default_runtime_name"], "nvidia"]],
     "overriding": []}

`refused` is the reason why the file is not changed. Only values that differ are changed: the rest of the
file, including comments, stays as it is. `ours` are the values that the role changed: a value that was there
before belongs to the site and stays. An imported file of the role's own would not do: up to 1.7 containerd
takes a plugin's whole table from the last file that has one. `overriding` are imported files that prevent
values of this one, each with the reason.

The version is that of the file: containerd migrates an older file in memory when it starts. Its `config dump`
prints the migrated one, and a table by the name of that version would have no effect in an older file.
"""

from __future__ import annotations

import json
import signal
import sys

import tomlkit
from tomlkit.exceptions import ParseError
from tomlkit.items import InlineTable

# Version of the file → name of the CRI plugin (containerd's docs/PLUGINS.md); containerd 1.2 has version 1.
# Version 4, of containerd 2.3, has other tables for the daemon's sockets (containerd-config.toml(5)).
CRI = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime", 4: "io.containerd.cri.v1.runtime"}
FIRST_MERGING = 3  # the first version whose daemons merge tables of imported files (containerd#9982)
DISABLING = {"cri", *CRI.values()}
NO_MEMORY = "takes more memory to merge than a script may use"
VERSIONS = 100  # a larger number is no version, and may be too large to print
# The text is the node's, and tomlkit's time is quadratic. `containerd config default` is about 10 kB: 0.05 s.
BYTES, SECONDS = 64 << 10, 5.0
DOTS = 512  # in a line: memory and time of a key's tables are the square of their number


class Refused(Exception):
    """Reason why the file is not changed."""


def main(question):
    """Return the merged text, the role's own keys in it, and files that override them; or `refused`, with the
    text unchanged, if it cannot be merged or takes more than `SECONDS` of processor time.
    """
    signal.signal(signal.SIGVTALRM, too_slow)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS, 1.0)
    try:
        cri, default = question["cri"], question.get("default", {})
        text, ours = merged(question["text"] or "", cri, question["ours"], default)
        found = overriding(text, cri, question.get("imported", [])) if cri else []
    except (Refused, MemoryError) as refused:
        said = str(refused) or NO_MEMORY
        return {"text": question["text"], "refused": said, "ours": question["ours"], "overriding": []}
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    text = text if question["text"] or text else None
    return {"text": text, "refused": None, "ours": ours, "overriding": found}


def too_slow(number, frame):
    """Refuse the file: the merge has used its processor time.

    Raises:
        Refused: always.
    """
    raise Refused(f"takes more than {SECONDS:g} s to merge")


def merged(text, cri, ours, default=()):
    """Return the file with the wanted values and without the role's former ones, and the role's values now.

    A file without content gets the version of containerd's default configuration, and its imports: without a
    file, containerd from 2.2 on reads /etc/containerd/conf.d, and with one only what it imports.

    Args:
        default: `version` and `imports` of containerd's default configuration; empty if it is not known.

    Raises:
        Refused: it is too large or not TOML, its version has other plugin names, a value has the wrong type,
            or tomlkit cannot change it correctly.
    """
    if len(text.encode("utf-8", "surrogatepass")) > BYTES:
        raise Refused(f"is larger than {BYTES >> 10} KiB")
    document = parsed(text)
    plain = document.unwrap()
    fresh = {key: value for key, value in dict(default).items() if value} if not plain else {}
    version = fresh.get("version") or version_of(plain)
    if version not in CRI:
        raise Refused(f"is of version {version}, expected version {listed(CRI)}")
    now, plugin = flat(plain), ("plugins", CRI[version])
    put = {(*plugin, *path): value for path, value in ours}
    put = {path: value for path, value in put.items() if now.get(path) == value}
    table = flat(cri, plugin)
    wanted = {**table, **(of_the_file(plain, version) if table else {})}
    if table and fresh.get("imports"):
        wanted[("imports",)] = fresh["imports"]
    changed = {path: value for path, value in wanted.items() if path not in now or now[path] != value}
    for path in changed:
        for end in range(1, len(path)):
            if path[:end] in now:
                raise Refused(f"has a value in place of the table {'.'.join(path[:end])}")
    gone = put.keys() - wanted
    for path in gone:
        remove(document, path)
    for path, value in changed.items():
        assign(document, path, value)
    # tomlkit 0.15 changes the indentation of a table that it created when it reads it again.
    result = tomlkit.dumps(document) if changed or gone else text
    # Below dotted keys tomlkit 0.15 creates tables in the wrong place.
    if flat(parsed(result).unwrap()) != {**{path: now[path] for path in now.keys() - gone}, **wanted}:
        raise Refused("has dotted keys where `containerd config default` has tables with headers")
    return result, [[path[len(plugin) :], table[path]] for path in table if path in changed or path in put]


def version_of(document):
    """Return a document's version; without one 1, and 2 if it has no plugin, whose name would matter.

    Raises:
        Refused: it is not a version.
    """
    version = document.get("version", 1 if "plugins" in document else 2)
    if type(version) is not int or not 0 <= version < VERSIONS:
        raise Refused(f"has a value of `version` that is not a version, expected {listed(CRI)}")
    return version


def listed(versions):
    """Return versions as words: `2, 3 or 4`."""
    *before, last = map(str, versions)
    return f"{', '.join(before)} or {last}"


def overriding(text, cri, imported):
    """Return `PATH: REASON` of the imported files that prevent wanted values in the configuration.

    A file of a later version than the configuration counts: containerd 2.3.0 to 2.3.4 does not start with it,
    and others do not migrate the configuration, whose tables of plugins are then ignored (containerd#12891,
    and tried with 2.1.9).

    Raises:
        Refused: an imported file is too large or not TOML.
    """
    root, found = version_of(parsed(text).unwrap()), []
    for path, own in imported:
        if len(own.encode("utf-8", "surrogatepass")) > BYTES:
            raise Refused(f"imports {path}, which is larger than {BYTES >> 10} KiB")
        try:
            document = parsed(own).unwrap()
        except Refused as refused:
            raise Refused(f"imports {path}, which {refused}") from None
        version = document.get("version", root)
        if type(version) is not int or not 0 <= version < VERSIONS:
            found.append(f"{path}: its value of `version` is not a version")
        elif version > root:
            found.append(f"{path}: its version is {version}, and that of config.toml {root}")
        elif root >= FIRST_MERGING:
            found += [f"{path}: it sets {key}" for key in contradictions(document.get("plugins"), cri, root)]
    return found


def contradictions(plugins, cri, root):
    """Return `KEY = VALUE` of the values in an imported file's table that differ from wanted ones.

    A table by the plugin's name in another version has no effect (tried with containerd 2.1.9).

    Args:
        root: the version of the configuration.
    """
    table = plugins.get(CRI[root]) if isinstance(plugins, dict) else None
    own, wanted = flat(table) if isinstance(table, dict) else {}, flat(cri)
    return [
        f"{'.'.join(path)} = {shown(value)}"
        for path, value in own.items()
        if path in wanted and wanted[path] != value
    ]


def shown(value):
    """Return a value as JSON; other words for a number that is too large to print."""
    try:
        return json.dumps(value, default=str)
    except ValueError:
        return "a number that is too large to print"


def parsed(text):
    """Return the document in a text; no other function reads TOML.

    Raises:
        Refused: it is not TOML, with line and column in the message, or has a line of too many dots.
    """
    if any(line.count(".") > DOTS for line in text.split("\n")):
        raise Refused(f"has a line of more than {DOTS} dots")
    try:
        return tomlkit.parse(text)
    except ParseError as error:
        said = str(error).partition(" at line ")[0]
        raise Refused(f"is not TOML, line {error.line}, column {error.col + 1}: {said}") from None
    except RecursionError:
        raise Refused("is nested too deeply") from None


def of_the_file(document, version):
    """Return the wanted values outside the plugin's table: the file's version, the plugin not disabled.

    Raises:
        Refused: `disabled_plugins` is not a list of names.
    """
    disabled = document.get("disabled_plugins", [])
    if not isinstance(disabled, list) or not all(isinstance(name, str) for name in disabled):
        raise Refused("has a value of `disabled_plugins` that is not a list of names")
    kept = [name for name in disabled if name not in DISABLING]
    return {("version",): version, **({} if kept == disabled else {("disabled_plugins",): kept})}


def flat(table, path=()):
    """Return path of keys → value; a list is a value."""
    found = {}
    for key, value in table.items():
        found.update(flat(value, (*path, key)) if isinstance(value, dict) else {(*path, key): value})
    return found


def assign(table, path, value):
    """Set a value; create the tables that are missing."""
    for key in path[:-1]:
        if key not in table:
            inline = isinstance(table, InlineTable)
            table[key] = tomlkit.inline_table() if inline else tomlkit.table(is_super_table=key != path[-2])
        table = table[key]
    table[path[-1]] = value


def remove(table, path):
    """Remove a value, and the tables that are empty afterwards."""
    if len(path) > 1:
        remove(table[path[0]], path[1:])
        if table[path[0]]:
            return
    del table[path[0]]


if __name__ == "__main__":
    json.dump(main(json.load(sys.stdin)), sys.stdout)

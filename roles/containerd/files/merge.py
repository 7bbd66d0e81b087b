"""What the role containerd makes of config.toml: one JSON document. Runs on the controller, for its tomllib.

Standard library only, Python 3.11 or later. Standard input: {"text": "…" or null, "cri": {…}, "ours": […]}:
the file as it is, what the table of the plugin that Kubernetes talks to shall hold, what we put there before.

    {"text": "…" or null, "refused": null, "ours": [[["containerd", "default_runtime_name"], "nvidia"]]}

`refused` says why the file is left alone: "is not TOML, line 3, column 5: Invalid value". Only statements
that differ are changed: the rest of the file, comments included, stays as it is. `ours` is what differed
before: what stood there already as it is wanted is the site's and stays. A file of ours beside it, named by
`imports`, cannot do this: up to 1.7 containerd takes a plugin's table from the last file that has one, whole.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from typing import NamedTuple

# The plugin's name, by the version of the file (containerd's docs/PLUGINS.md); 1 is containerd 1.2's.
CRI = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
DISABLING = {"cri", *CRI.values()}
PLACE = re.compile(r"(.*) \(at (.*)\)")


class Refused(Exception):
    """The file is left alone, for the reason given."""


class Statement(NamedTuple):
    """A table's header, one or more keys with their values, or a comment."""

    text: str
    table: tuple
    header: bool
    values: dict  # by the keys that lead to them from the top of the file


def main(question):
    """The document."""
    try:
        text, ours = merged(question["text"] or "", question["cri"], question["ours"])
    except Refused as refused:
        return {"text": question["text"], "refused": str(refused), "ours": question["ours"]}
    return {"text": text if question["text"] or text else None, "refused": None, "ours": ours}


def merged(text, cri, ours):
    """The file with what the plugin's table shall hold, without what was ours and is wanted no more; what is
    ours now.

    Raises:
        Refused: it is no TOML, or written in a way that cannot be changed statement by statement.
    """
    document = parsed(text)
    version = document.get("version", 1 if "plugins" in document else 2)
    if version not in CRI:
        raise Refused(f"is of version {version}, whose names are others; those of version 2 are needed")
    now, plugin = flat(document), ("plugins", CRI[version])
    put = {(*plugin, *path): value for path, value in ours}
    put = {path: value for path, value in put.items() if now.get(path) == value}
    table = flat(cri, plugin)
    wanted = {**table, **(of_the_file(document, version) if table else {})}
    changes = {path: value for path, value in wanted.items() if path not in now or now[path] != value}
    gone = put.keys() - wanted
    result = edited(text, changes, gone) if changes or gone else text
    if not same(result, {**{path: now[path] for path in now.keys() - gone}, **wanted}):
        raise Refused(
            "has inline tables or dotted keys where `containerd config default` has tables with headers"
        )
    return result, [[path[len(plugin) :], table[path]] for path in table if path in changes or path in put]


def of_the_file(document, version):
    """What is wanted beside the plugin's table: that the plugin is loaded, and its name understood."""
    disabled = document.get("disabled_plugins", [])
    kept = [name for name in disabled if name not in DISABLING]
    return {("version",): version, **({} if kept == disabled else {("disabled_plugins",): kept})}


def same(text, values):
    """Whether a text says just these values."""
    try:
        return flat(tomllib.loads(text)) == values
    except tomllib.TOMLDecodeError:
        return False


def parsed(text):
    """The document in a text.

    Raises:
        Refused: it is no TOML; says where.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        said = PLACE.fullmatch(str(error))
        raise Refused(f"is not TOML, {said[2]}: {said[1]}" if said else f"is not TOML: {error}") from None


def flat(table, path=()):
    """Values by the keys that lead to them; a list is a value."""
    found = {}
    for key, value in table.items():
        found.update(flat(value, (*path, key)) if isinstance(value, dict) else {(*path, key): value})
    return found


def statements(text):
    """The statements of a valid text: each is the fewest lines that are valid by themselves."""
    table, lines = (), ""
    for line in re.findall(r".*\n|.+$", text):
        lines += line
        try:
            content = tomllib.loads(lines)
        except tomllib.TOMLDecodeError:
            continue
        header = lines.lstrip().startswith("[")
        if header:
            table = keys(content)
        yield Statement(lines, table, header, {} if header else flat(content, table))
        lines = ""


def keys(content):
    """Where a header leads to; nothing else stands in a list of tables."""
    path = ()
    while isinstance(content, dict) and content:
        [(key, content)] = content.items()
        path += (key,)
    return (*path, None) if isinstance(content, list) else path


def edited(text, changes, gone):
    """The text with values changed and added by their keys, and others taken out."""
    added, left = dict(changes), {*flat(tomllib.loads(text)), *changes} - gone
    lines, ends = [], {}
    for each in statements(text if text.endswith("\n") or not text else text + "\n"):
        path = next(iter(each.values)) if len(each.values) == 1 else None
        if path in gone:
            continue
        if each.header and emptied(each.table, gone, left):
            lines[-1:] = [line for line in lines[-1:] if line.strip()]  # the blank line before it
            continue
        if path in added:
            value = assignment(path[len(each.table) :], added.pop(path))
            lines.append(re.match(r"\s*", each.text)[0] + value)
        else:
            lines.append(each.text)
        if each.header:
            ends[each.table] = (len(lines), re.match(r"[ \t]*", each.text)[0] + "  ")
    tops = [place for place, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")]
    ends[()] = (min(tops, default=len(lines)), "")
    return "".join(with_added(lines, ends, added))


def emptied(table, gone, left):
    """Whether a table had something that is gone, and has nothing else."""
    return any(path[: len(table)] == table for path in gone) and not any(
        path[: len(table)] == table for path in left
    )


def with_added(lines, ends, added):
    """The lines with statements added: after their table's header, or in a table at the end."""
    tables = {}
    for path, value in added.items():
        tables.setdefault(path[:-1], []).append(assignment(path[-1:], value))
    here = [table for table in tables if table in ends]
    for table in sorted(here, key=lambda each: ends[each][0], reverse=True):
        place, indent = ends[table]
        lines[place:place] = [indent + each for each in tables.pop(table)]
    for table, values in tables.items():
        lines += [f"\n[{dotted(table)}]\n", *("  " + each for each in values)]
    return lines


def assignment(path, value):
    """A statement; of the values that are wanted JSON's words are TOML's as well."""
    return f"{dotted(path)} = {json.dumps(value, ensure_ascii=False)}\n"


def dotted(path):
    """Keys as a header has them."""
    return ".".join(key if re.fullmatch(r"[\w-]+", key, re.ASCII) else json.dumps(key) for key in path)


if __name__ == "__main__":
    json.dump(main(json.load(sys.stdin)), sys.stdout)

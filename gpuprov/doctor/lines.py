"""Lines to type that take one setting out of a file and leave the rest of it alone.

Paths and names come from the machine: they are quoted, and what is no plain name gets words instead.
"""

from __future__ import annotations

import re
import shlex


def without_variable(path: str, name: str) -> str:
    """`sudo sed -i -E '/^…NAME=/d' FILE`: for files of NAME=VALUE, with or without `export`."""
    if not re.fullmatch(r"\w+", name):
        return f"take the line out of {path}"
    return _sed(rf"/^[[:space:]]*(export[[:space:]]+)?{name}=/d", path)


def without_folder(path: str, name: str, folder: str) -> str:
    """The same for folders of that last name (`compat`) in a variable that is a list of folders."""
    where = rf"/^[[:space:]]*(export[[:space:]]+)?{name}=/"
    after = rf's#:[^:="]*/{folder}(:|"|$)#\1#g'
    first = rf's#(="?)[^:="]*/{folder}(:|("|$))#\1\3#'
    return _sed(f"{where}{{{after};{first}}}", path)


def without_line(place: str) -> str:
    """`sudo sed -i 7s/^/#/ FILE` of a place FILE:7; other places get words."""
    path, _, number = place.rpartition(":")
    return _sed(f"{number}s/^/# /", path) if path and number.isdigit() else f"take it out of: {place}"


def without_text(path: str, text: str) -> str:
    """The line that is just this text, out of a file."""
    literal = re.sub(r"([][\\.*^$|+?(){}])", r"\\\1", text)
    return _sed(rf"\|^[[:space:]]*{literal}[[:space:]]*$|d", path)


def _sed(script: str, path: str) -> str:
    return f"sudo sed -i -E {shlex.quote(script)} {shlex.quote(path)}"

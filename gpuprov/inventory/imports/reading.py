"""Reading of an untrusted Ansible inventory: links, limits of aliases and of Ansible's answer, types."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from gpuprov.errors import InvalidInput, NodeFailed
from gpuprov.inventory.ansible import (
    FLEET_VARIABLE,
    GROUP_VARIABLE,
    HOST_VARIABLE,
    KINDS_VARIABLE,
    NAME_VARIABLE,
)
from gpuprov.model.documents import MAX_BYTES
from gpuprov.untrusted import shown
from gpuprov.untrusted.parsing import read_json
from gpuprov.untrusted.programs import Answer, run_limited

ALIASED = 20_000
"""Maximum number of values that aliases (`*name`) add to an inventory's files; nested ones multiply."""
TIMEOUT_S = 300
ANSWER_BYTES = 64 << 20
ANSWER_VALUES = 1 << 20
MEMORY_KIB = 4 << 20
"""Maximum address space of ansible-inventory, where the system supports such a limit."""
YAML_SUFFIXES = ("", ".yml", ".yaml", ".json")
"""Suffixes of files that Ansible reads as YAML."""
SHAPES: Sequence[tuple[tuple[str, ...], type, str]] = (
    ((GROUP_VARIABLE,), dict, "a mapping"),
    ((GROUP_VARIABLE, "name"), str, "text"),
    ((NAME_VARIABLE,), str, "text"),
    ((FLEET_VARIABLE,), dict, "a mapping"),
    ((KINDS_VARIABLE,), list, "a list of names"),
    ((HOST_VARIABLE,), dict, "a mapping"),
    ((HOST_VARIABLE, "ssh"), dict, "a mapping"),
    ((HOST_VARIABLE, "variables"), list, "a list of names"),
)
"""Type of each value that the import reads from the variables that gpuprov writes; lists are of text."""


def check_shapes(variables: Mapping[str, Any], place: str) -> None:
    """Check the types of gpuprov's own variables of a group or host.

    Raises:
        InvalidInput: with the place, the variable, and what was expected.
    """
    for path, kind, expected in SHAPES:
        found: Any = variables
        for key in path:
            if key not in found:
                break
            found = found[key]
        else:
            texts = kind is not list or (isinstance(found, list) and all(isinstance(e, str) for e in found))
            if not isinstance(found, kind) or not texts:
                raise InvalidInput(
                    f"{place}: {'.'.join(path)} is {shown(found)}",
                    expected=f"{expected}, as `gpuprov inventory generate` writes it",
                )
    if "groups" in variables.get(FLEET_VARIABLE, {}):
        raise InvalidInput(
            f"{place}: {FLEET_VARIABLE} has the key groups",
            expected=f"the keys of a group in its variable {GROUP_VARIABLE}",
        )


def refuse_links(path: Path) -> None:
    """Check that links in an inventory lead to its own files.

    Ansible would read the file of the operator to which another's link leads, and its content would become
    variables of the fleet. Hidden files are skipped, as by Ansible.

    Raises:
        InvalidInput: a link leads out of the inventory's folder.
    """
    whole = path if path.is_dir() else path.parent
    root = whole.resolve()
    folders = [whole] if path.is_dir() else [whole / "group_vars", whole / "host_vars"]
    for folder in folders:
        _refuse_link(folder, root, whole)
        for at, below, files in os.walk(folder):
            below[:] = [name for name in below if not name.startswith(".")]
            for name in (*below, *files):
                if not name.startswith("."):
                    _refuse_link(Path(at, name), root, whole)


def _refuse_link(path: Path, root: Path, whole: Path) -> None:
    """Raise InvalidInput if the path is a link that leads out of `root`, the resolved path of `whole`."""
    if path == whole or not path.is_symlink():
        return
    try:
        inside = path.resolve().is_relative_to(root)
    except (OSError, RuntimeError):  # links that lead to each other
        inside = False
    if not inside:
        raise InvalidInput(
            f"{path} is a link that leads out of {whole}",
            expected="links to files of the inventory",
            do="replace it by a copy if these values belong to the fleet",
        )


def refuse_aliases(path: Path) -> None:
    """Check the number of values that aliases add to the YAML files of an inventory.

    Raises:
        InvalidInput: it is larger than `ALIASED`, or a file is too large.
    """
    added = 0
    for file in _files(path):
        if file.stat().st_size > MAX_BYTES:
            raise InvalidInput(f"{file} is larger than {MAX_BYTES >> 20} MiB")
        try:
            data = file.read_bytes()
        except OSError as error:
            raise InvalidInput(f"{file} cannot be read: {error.strerror}") from None
        if b"\0" not in data and not re.search(rb"\*[\w-]", data):
            continue
        with suppress(yaml.YAMLError, ValueError, RecursionError):  # Ansible reports it, if it reads the file
            for values in _added(data):
                added += values
                if added > ALIASED:
                    raise InvalidInput(
                        f"{file}: aliases (*name) add more than {ALIASED} values",
                        do="write the values without aliases",
                    )


def _files(path: Path) -> Iterator[Path]:
    """Yield the files that Ansible may read as YAML: of a folder, or a file and the variables next to it."""
    folders = [path] if path.is_dir() else [path.parent / "group_vars", path.parent / "host_vars"]
    if not path.is_dir():
        yield path
    for folder in folders:
        for file in folder.rglob("*"):
            if file.suffix in YAML_SUFFIXES and file.is_file():
                yield file


def _added(data: bytes) -> Iterator[int]:
    """Yield the number of values that each alias of a YAML text adds, without composing the text."""
    sizes: dict[str, int] = {}
    parents: list[tuple[str | None, int]] = [(None, 0)]
    for event in yaml.parse(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.CollectionStartEvent):
            parents.append((event.anchor, 1))
            continue
        if isinstance(event, yaml.AliasEvent):
            anchor, size = None, sizes.get(event.anchor or "", 1)
            yield size
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = parents.pop()
        else:
            continue
        if anchor is not None:
            sizes[anchor] = size
        parents[-1] = (parents[-1][0], parents[-1][1] + size)


def run_bounded(command: Sequence[str], environment: Mapping[str, str]) -> Answer:
    """Run a command with limits of its time, memory, output and files.

    Raises:
        InvalidInput: it exceeded the limit of time or output.
    """
    limited = f'ulimit -v {MEMORY_KIB} 2>/dev/null; ulimit -f {ANSWER_BYTES >> 9} 2>/dev/null; exec "$@"'
    argv = ["/bin/sh", "-c", limited, "sh", *command]
    try:
        return run_limited(argv, seconds=TIMEOUT_S, limit=ANSWER_BYTES, environment=environment)
    except NodeFailed as error:
        raise InvalidInput(f"Ansible cannot read the inventory within the limits: {error.seen}") from None


def parsed(answer: bytes, path: Path) -> Any:
    """Return the document that ansible-inventory printed for an inventory.

    Raises:
        InvalidInput: it has too many values, or one that JSON does not have.
    """
    try:
        return read_json(answer, ANSWER_BYTES, ANSWER_VALUES)
    except ValueError as error:
        raise InvalidInput(f"{path}: Ansible's answer cannot be read: {error}") from None

"""Files that Ansible reads for an untrusted inventory: links, limits of aliases, encrypted files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from gpuprov.errors import InvalidInput
from gpuprov.model.documents import MAX_BYTES
from gpuprov.untrusted.stated import read_bounded

ALIASED = 20_000
"""Maximum number of values that aliases (`*name`) add to an inventory's files; nested ones multiply."""
YAML_SUFFIXES = ("", ".yml", ".yaml", ".json")
"""Suffixes of files that Ansible reads as YAML, without those that a group's name ends with."""
VARIABLES = ("group_vars", "host_vars")
ENCRYPTED = b"$ANSIBLE_VAULT"
"""Beginning of a file that ansible-vault encrypted as a whole."""


@dataclass(frozen=True)
class InventoryFile:
    """One file of an inventory; `variables` is whether a folder of variables has it, also through a link."""

    path: Path
    variables: bool


def check_files(path: Path) -> list[Path]:
    """Check the files of an inventory, and return those of variables that ansible-vault encrypted as a whole.
    Those are not read as YAML; a file that is not YAML is not refused.

    Ansible would read the file of the operator to which another's link leads, and its content would become
    variables of the fleet.

    Raises:
        InvalidInput: a link leads out of the inventory's folder; aliases add more values than `ALIASED`; or a
            file is too large or cannot be read.
    """
    added, encrypted = 0, []
    for file in _files(path):
        data = _content(file.path)
        if file.variables and data.startswith(ENCRYPTED):
            encrypted.append(file.path)
            continue
        if b"\0" not in data and not re.search(rb"\*[\w-]", data):
            continue
        with suppress(yaml.YAMLError, ValueError, RecursionError):  # Ansible reports it, if it reads the file
            for values in _added(data):
                added += values
                if added > ALIASED:
                    raise InvalidInput(
                        f"{file.path}: aliases (*name) add more than {ALIASED} values",
                        do="write the values without aliases",
                    )
    return encrypted


def _content(path: Path) -> bytes:
    """Return the content of a file; InvalidInput if it is larger than `MAX_BYTES` or cannot be read."""
    try:
        return read_bounded(path, MAX_BYTES)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None


def _files(path: Path) -> Iterator[InventoryFile]:
    """Yield the files that Ansible may read as YAML: of a folder, or a file and the variables next to it.

    Links are checked first, then followed as Ansible does. Hidden files are skipped, as by Ansible, but not
    those of variables: a name of a group could begin with a dot.

    Raises:
        InvalidInput: as `_refuse_link`, or a folder cannot be read.
    """
    whole = path if path.is_dir() else path.parent
    root = whole.resolve()
    folders = [(whole, False)] * path.is_dir() + [(whole / name, True) for name in VARIABLES]
    seen: set[Path] = set()
    if not path.is_dir():
        _refuse_link(path, root, whole)
        yield InventoryFile(path, variables=False)
    while folders:
        folder, variables = folders.pop()
        _refuse_link(folder, root, whole)
        if not folder.is_dir() or (real := folder.resolve()) in seen:
            continue
        seen.add(real)
        for each in _listed(folder):
            if each.name.startswith(".") and not variables:
                continue
            _refuse_link(each, root, whole)
            if each.is_dir():
                folders.append((each, variables))
            elif each.is_file() and (variables or each.suffix in YAML_SUFFIXES):
                yield InventoryFile(each, variables)


def _listed(folder: Path) -> list[Path]:
    """Return the entries of a folder in order; InvalidInput if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be read: {error.strerror}") from None


def _refuse_link(path: Path, root: Path, whole: Path) -> None:
    """Raise InvalidInput if the path, other than `whole`, is a link that leads out of `root`, which is
    `whole` resolved.
    """
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


def _added(data: bytes) -> Iterator[int]:
    """Yield the number of values that each alias of a YAML text adds, without composing the text.

    Raises:
        YAMLError: it is not YAML.
    """
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

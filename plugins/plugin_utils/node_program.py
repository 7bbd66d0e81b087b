# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packer of Python programs for nodes: one text with all modules, each after the modules that it imports.

Actions of the collection and gpuprov use it. gpuprov loads this file without Ansible, so it needs only the
standard library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

UTILITIES = Path(__file__).parents[1] / "module_utils"
"""Folder of the modules `gpuprov_…`."""
_LOADER = """\
import sys, types
for name, source in {modules!a}:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, 'exec'), module.__dict__)
    package, _, short = name.rpartition('.')
    if package: setattr(sys.modules.setdefault(package, types.ModuleType(package)), short, module)
"""
"""Program that makes the modules importable, with a list of name and source."""
# Expressions for the style of this project's sources, as Python's own parser takes 20 ms for the probe's. A
# test compares their results with the parser's for each source that is sent.
_TEXT = re.compile(r'(?ms)^([ \t]*)r?"""(?>.*?""")(?=[ \t]*(?:#[^\n]*)?$)|""".*?"""')
"""A docstring, with what is before it on its line as first group; or another string in triple quotes."""
_FOR_TYPES = re.compile(r"(?m)^(if TYPE_CHECKING:)(?: *#.*)?\n(?:(?:[ \t].*)?\n)*+")
_FOR_TOOLS = re.compile(r" *# (?:type|noqa)\b.*")
_IMPORT = re.compile(r"(?m)^[ \t]*(?:from ([\w.]+) )?import (\([^)]*\)|.*)")


class Source(NamedTuple):
    """Source of a module as it is sent.

    Attributes:
        text: the source with empty docstrings, without what is for type checkers and without comments at the
            end of a line for linters; line numbers stay the same.
        imports: names that it imports; those after `from` with and without what is imported from them.
    """

    text: str
    imports: tuple[str, ...]


def loader(names: Iterable[str], root: Path | None = None) -> str:
    """Return a program that makes modules importable by name without a file, and also what they import.

    Args:
        names: modules of `module_utils` and of the package gpuprov; other names are ignored.
        root: the folder that contains the package gpuprov; None: its modules are not packed.
    """
    found: dict[str, str] = {}
    for name in names:
        _add(name, root, found, set())
    return _LOADER.format(modules=list(found.items()))


def script(source: str, argument: str) -> str:
    """Return a program that runs a script with one argument, and contains the modules that it imports.

    The script runs as `__main__`. Modules of the package gpuprov are not contained.
    """
    text, imports = parsed(source)
    return (
        f"{loader(imports)}"
        f"sys.argv[1:] = [{argument!a}]\n"
        f"exec(compile({text!a}, 'script', 'exec'), {{'__name__': '__main__'}})\n"
    )


@lru_cache(maxsize=128)
def parsed(source: str) -> Source:
    """Return a module without its docstrings, and what it imports; the last 128 results are cached."""
    text = _FOR_TYPES.sub(_emptied, _TEXT.sub(_emptied, source))
    return Source(_FOR_TOOLS.sub("", text), tuple(_imports(_TEXT.sub('""', text))))


def _emptied(found: re.Match[str]) -> str:
    """Return the first group, `""` and as many newlines as there were; a match without the group as it is."""
    return found[0] if found[1] is None else f'{found[1]}""' + "\n" * found[0].count("\n")


def _imports(text: str) -> Iterator[str]:
    """Yield the names that a text without strings imports; for `from a import b` these are `a` and `a.b`."""
    for origin, names in _IMPORT.findall(text):
        if origin:
            yield origin
        for name in re.sub(r"#.*", "", names).strip("() ").split(","):
            yield from (f"{origin}.{word}".lstrip(".") for word in name.split()[:1])


def tree(names: Iterable[str], root: Path, data: Iterable[str] = ()) -> dict[str, str]:
    """Return path → text of a folder from which Python imports modules of the package gpuprov as usual.

    It has the modules and those that they import, and an empty `__init__.py` in a package whose own is not
    imported.

    Args:
        names: modules of gpuprov.
        root: the folder that contains the package gpuprov.
        data: paths below it of files that the modules read.
    """
    found: dict[str, str] = {}
    for name in names:
        _add(name, root, found, set(), packages=True)
    files = {_below(name, root): text for name, text in found.items()}
    for path in [*files]:
        for folder in list(Path(path).parents)[:-1]:
            files.setdefault(f"{folder.as_posix()}/__init__.py", "")
    files.update({path: (root / path).read_text("utf-8") for path in data})
    return dict(sorted(files.items()))


def preload() -> None:
    """Parse the modules of `module_utils` and the scripts of the collection's roles.

    Processes that are forked later have the results in their cache.
    """
    for path in (*UTILITIES.glob("*.py"), *UTILITIES.parents[1].glob("roles/*/files/*.py")):
        _module(path)


@cache
def _module(path: Path) -> Source:
    """Return the parsed module in a file; it is read once."""
    return parsed(path.read_text("utf-8"))


def _add(
    name: str, root: Path | None, found: dict[str, str], begun: set[str], *, packages: bool = False
) -> None:
    """Add a module to `found` after the modules that it imports, unless it is there or is not sent to nodes.

    Args:
        begun: modules that are being added, so that a loop of imports ends.
        packages: whether a package is a module too, if something is imported from it that is no module.
    """
    path = _path(name, root)
    if path is None and packages and root is not None and name.startswith("gpuprov."):
        path = _init(name, root)
    if path is None or name in found or name in begun:
        return
    begun.add(name)
    text, imports = _module(path)
    for each in imports:
        if packages and root is not None and _init(each, root) and not _takes_from(each, imports, root):
            continue
        _add(each, root, found, begun, packages=packages)
    found[name] = text


def _init(name: str, root: Path) -> Path | None:
    """Return the `__init__.py` of a package of gpuprov, None if the name is not a package."""
    path = root / name.replace(".", "/") / "__init__.py"
    return path if path.is_file() else None


def _takes_from(package: str, imports: Iterable[str], root: Path) -> bool:
    """Return whether one of the imports takes from a package what is neither a module nor a package."""
    inside = [each for each in imports if each.rpartition(".")[0] == package]
    return any(_path(each, root) is None and _init(each, root) is None for each in inside)


def _below(name: str, root: Path) -> str:
    """Return the path of a module below the root."""
    stem = name.replace(".", "/")
    return f"{stem}/__init__.py" if (root / stem / "__init__.py").is_file() else f"{stem}.py"


def _path(name: str, root: Path | None) -> Path | None:
    """Return the file of a module that is sent to nodes; None for other names and for missing files."""
    if name.startswith("gpuprov_"):
        path = UTILITIES / f"{name}.py"
    elif name.startswith("gpuprov.") and root is not None:
        path = root / f"{name.replace('.', '/')}.py"
    else:
        return None
    return path if path.is_file() else None

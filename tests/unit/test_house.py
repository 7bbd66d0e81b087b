"""Structure of the package: number and levels of rooms, and rules beyond import-linter's contracts."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from re import _constants, _parser  # type: ignore[attr-defined]

import grimp
import pytest

from gpuprov.cli.common.verbs import VERBS
from tests import ROOT

ENTRIES = 28
LEVELS = 16
UTILITIES = ROOT / "plugins/module_utils"
SHARED = {path.stem for path in UTILITIES.glob("*.py")}
"""Modules that roles' scripts and an upgrade's acts on nodes share; they are sent with both."""
SENT = ("gpuprov.untrusted.urls", "urls")
"""Modules of other rooms that are sent to nodes too, and their names there."""
CALL = re.compile(r"re\.(?!escape)\w+")
"""Functions of `re` whose first argument is a pattern."""
LAB = "gpuprov_lab"
OF_THE_LAB = (LAB, "gpuprov.catalog", "gpuprov.errors", "gpuprov.locking.repository")
OF_ITS_VERB = (*OF_THE_LAB, "gpuprov.cli.common")


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """Module → its imports: modules of gpuprov and its lab by their names, others by their package's."""
    graph = grimp.build_graph("gpuprov", "gpuprov_lab", include_external_packages=True, cache_dir=None)
    ours = [module for module in graph.modules if not graph.is_module_squashed(module)]
    return {module: graph.find_modules_directly_imported_by(module) for module in ours}


def test_the_top_can_be_surveyed() -> None:
    entries = [
        entry.name for entry in (ROOT / "gpuprov").iterdir() if entry.name not in ("__pycache__", "share")
    ]
    assert len(entries) <= ENTRIES, sorted(entries)


def test_the_command_line_is_one_file_a_verb() -> None:
    """Require a file for each command, such as `drift.py`, and `inventory_discover.py` for a subcommand.

    Code that commands share is in `common`.
    """
    stems = {entry.stem for entry in (ROOT / "gpuprov/cli").glob("*.py")} - {"__init__"}
    assert {stem.partition("_")[0] for stem in stems} == set(VERBS)
    assert {module for module, _ in VERBS.values()} <= stems


def test_rooms_stand_on_few_levels(imports: dict[str, set[str]]) -> None:
    below: dict[str, set[str]] = {}
    for module, imported in imports.items():
        if room(module) == LAB:  # above all rooms
            continue
        rooms = {room(each) for each in imported - SHARED if each.startswith("gpuprov")}
        below.setdefault(room(module), set()).update(rooms - {room(module)})

    @cache
    def level(name: str) -> int:
        return 1 + max(map(level, below[name]), default=0)

    assert max(map(level, below)) <= LEVELS


def test_code_for_nodes_needs_nothing_that_is_not_sent(imports: dict[str, set[str]]) -> None:
    """Import only modules that are sent: nodes get only these folders, and their Python has no packages."""
    of_nodes = {module: imported for module, imported in imports.items() if ".node." in module}
    assert {room(module) for module in of_nodes} == {
        "access",
        "probe",
        "apply",
        "upgrade",
        "accept",
        "inventory",
        LAB,
    }
    for module, imported in of_nodes.items():
        sent = (f"{module.rpartition('.')[0]}.", "gpuprov.probe.node.", "gpuprov.apply.node.", *SENT)
        foreign = {each for each in imported if not each.startswith(sent)} - sys.stdlib_module_names
        foreign -= {"gpuprov.files.mutex"} | (
            {"gpuprov.upgrade.node.main"} if room(module) == "repair" else set()
        )
        assert not foreign - SHARED, f"{module} imports {foreign}"


def test_what_all_scripts_on_nodes_share_needs_nothing_else() -> None:
    for path in UTILITIES.glob("*.py"):
        named = re.findall(r"(?m)^ *(?:import|from) (\w+)", path.read_text())
        assert not set(named) - sys.stdlib_module_names - SHARED, path


def test_the_lab_stands_beside_the_house(imports: dict[str, set[str]]) -> None:
    for module, imported in imports.items():
        if room(module) == LAB:
            allowed = OF_ITS_VERB if module == f"{LAB}.cli" else OF_THE_LAB
            foreign = {each for each in imported if each.startswith("gpuprov") and not within(each, allowed)}
            assert not foreign, f"{module} imports {foreign}"


def within(module: str, allowed: tuple[str, ...]) -> bool:
    """Return whether a module is one of those that the lab may import."""
    return any(f"{module}.".startswith(f"{each}.") for each in allowed)


def room(module: str) -> str:
    """Return a module's room, such as `drift` for `gpuprov.drift.judge`; a package is its own room."""
    package, _, below = module.partition(".")
    return below.split(".")[0] if below and package != LAB else package


def test_an_end_of_text_is_no_end_of_line() -> None:
    """Refuse `$` without re.MULTILINE: it also matches before a final newline; `\\Z` and fullmatch do not."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for folder in ("gpuprov", "lab", "plugins", "roles")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text, multiline in patterns(ast.parse(path.read_text()))
        if not multiline and has_dollar(text)
    ]
    assert not found, found


def test_a_home_directory_that_nobody_has_ends_no_command() -> None:
    """Refuse `Path.expanduser`, which raises a RuntimeError for `~USER` of a file: `stated_path` does not."""
    files = (path for path in sorted((ROOT / "gpuprov").rglob("*.py")) if "node" not in path.parts)
    assert not [path for path in files if re.search(r"\)\.expanduser\(\)|Path\.home\(\)", path.read_text())]


def patterns(tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """Yield line, pattern and whether it is multiline, of the calls of `re` with a literal or an f-string."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and CALL.fullmatch(ast.unparse(call.func)) and call.args:
            first, flags = call.args[0], " ".join(map(ast.unparse, [*call.args[1:], *call.keywords]))
            parts = first.values if isinstance(first, ast.JoinedStr) else [first]
            texts = [part.value if isinstance(part, ast.Constant) else "x" for part in parts]
            if all(isinstance(text, str) for text in texts):
                yield call.lineno, "".join(texts), "re.M" in flags


def has_dollar(pattern: str) -> bool:
    """Return whether a pattern contains `$` outside re.MULTILINE, at any depth."""
    parsed = _parser.parse(pattern)

    def within(part: object) -> bool:
        """Return whether a part of a parsed expression contains `$`, at any depth."""
        if isinstance(part, tuple) and part[:1] == (_constants.AT,):
            return part[1] is _constants.AT_END
        return isinstance(part, (_parser.SubPattern, tuple, list)) and any(map(within, part))

    return not parsed.state.flags & re.MULTILINE and within(parsed)


def test_pip_runs_no_code_of_an_index() -> None:
    """Require wheels where pip resolves or downloads: it would run the build backend of a source archive."""
    found = 0
    for path in sorted(ROOT.glob("*/**/*.py")):
        if path.parts[len(ROOT.parts)] in ("build", "tests", ".venv") or "/lab/" in str(path):
            continue
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            words = [
                str(node.value)
                for node in ast.walk(function)
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            ]
            verbs = [word for word in words if word in ("install", "download")]
            if verbs and any(word in ("pip", "--no-deps", "--require-hashes") for word in words):
                found += 1
                assert any(word.startswith("--only-binary") for word in words), f"{path}: {function.name}"
    assert found >= 2


def test_no_page_or_hint_has_pip_build_a_package() -> None:
    """Require wheels in commands for users, too, except for files that they have."""
    paths = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", *(ROOT / "gpuprov").rglob("*.py")]
    lines = [(path, line) for path in paths for line in path.read_text().splitlines()]
    found = [(path, line) for path, line in lines if re.search(r"\bpip3? install ", line)]
    assert found
    wrong = [
        f"{path}: {line.strip()}" for path, line in found if not re.search("--only-binary|--no-index", line)
    ]
    assert not wrong

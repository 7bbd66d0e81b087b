"""Programs that run in a node's own Python, which is 3.6 on RHEL 8: /usr/libexec/platform-python."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from gpuprov.probe import payload
from gpuprov.probe.payload import Parameters
from gpuprov.verify.observers import tuning, user_files
from tests import ROOT
from tests.unit.programs import older_python

PROGRAMS = sorted(
    {
        *(ROOT / "plugins/module_utils").glob("*.py"),
        *(ROOT / "gpuprov/probe/node").glob("*.py"),
        ROOT / "gpuprov/access/node/keys.py",
        ROOT / "gpuprov/inventory/firstboot/node/first_boot.py",
    }
    - {ROOT / "gpuprov/probe/node/launcher.py"}  # of the health check, which needs Python 3.9
)
MODULES = {"dataclasses", "contextvars", "importlib.resources", "zoneinfo", "tomllib", "graphlib"}
ARGUMENTS = {"capture_output", "text", "missing_ok", "dirs_exist_ok"}
COLLECTOR = re.compile(r"(?m)^@collector.*\n+def (\w+)\(")
METHODS = {"removeprefix", "removesuffix", "isascii", "fromisoformat", "prod", "cache", "CLOCK_BOOTTIME"}


def source_of(module: str) -> str:
    """Return the source of a module by its full name."""
    return (ROOT / f"{module.replace('.', '/')}.py").read_text("utf-8")


def later(text: str) -> Iterator[str]:
    """Yield what a program has that Python 3.6 does not have, and `ast` does not refuse.

    Raises:
        SyntaxError: Python 3.6 would refuse its syntax.
    """
    for node in ast.walk(ast.parse(text, feature_version=(3, 6))):
        if isinstance(node, ast.NamedExpr):  # which `ast` accepts in an f-string
            yield ":="
        elif isinstance(node, ast.Import):
            yield from MODULES & {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            yield from (MODULES | {"__future__"}) & {node.module}
        elif isinstance(node, ast.Call):
            yield from ARGUMENTS & {word.arg for word in node.keywords}
        elif isinstance(node, ast.Attribute):
            yield from METHODS & {node.attr}


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_it_is_python_3_6(path: Path) -> None:
    assert [*later(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("text", [tuning.SESSION, user_files.PROGRAM], ids=["session", "user_files"])
def test_what_verify_runs_there_is_python_3_6(text: str) -> None:
    assert [*later(text)] == []


@pytest.mark.parametrize(
    "text",
    ["from __future__ import annotations", "from dataclasses import dataclass", "import tomllib",
     "run(['ls'], capture_output=True)", "run(['ls'], text=True)", "name.removeprefix('a')",
     "time.CLOCK_BOOTTIME"],
)  # fmt: skip
def test_what_python_3_6_does_not_have_is_found(text: str) -> None:
    assert len([*later(text)]) == 1


@pytest.mark.parametrize("modules", [payload.PROBE, payload.CLOSER_PROBE, payload.STATUS_PROBE])
def test_collectors_run_in_python_3_6(modules: tuple[str, ...]) -> None:
    """Read this machine, but for its shells: in Python 3.6 if it is there, else in this Python."""
    names = {name for module in modules for name in COLLECTOR.findall(source_of(module))}
    question = {**asdict(Parameters()), "collectors": sorted(names - {"variables", "unpackaged"})}
    asked = payload.pack(modules, question, become=False, python=older_python("3.6") or sys.executable)
    command = ["sh", "-c", asked.command]
    done = subprocess.run(command, input=asked.stdin, capture_output=True, check=False, timeout=60)
    found = asked.answer(done.stdout, done.stderr)["collectors"]
    assert found.keys() == set(question["collectors"])
    errors = {
        name: value["error"]
        for name, value in found.items()
        if isinstance(value, dict) and set(value) == {"error"}
    }
    assert [each for each in errors.items() if re.match(r"\w+(?:Error|Exception): ", each[1])] == []


@pytest.mark.parametrize("text", ["def f(a, /): pass", "if (a := 1): pass", "with (open(a) as b): pass"])
def test_later_syntax_is_found(text: str) -> None:
    with pytest.raises(SyntaxError):
        next(later(text), None)

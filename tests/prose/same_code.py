"""Comparison of Python files with a revision: only comments and docstrings may differ."""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def code(text: str) -> str:
    """Return the syntax tree of `text` without docstrings, comments and positions.

    Every statement that is only a string counts as a docstring: also the text after a constant.
    """
    tree = ast.parse(text, type_comments=True)
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                setattr(node, name, [each for each in statements if not _is_text(each)])
    for ignore in tree.type_ignores:
        ignore.lineno = 0
    return ast.dump(tree)


def _is_text(statement: ast.stmt) -> bool:
    """Return whether a statement is only a text, as a docstring is."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def differing(revision: str, paths: list[str]) -> tuple[int, list[str]]:
    """Return how many Python files changed since `revision`, and which of them differ in code."""
    status = _git("diff", "--name-status", "--no-renames", revision, "--", *(paths or ["*.py"]))
    rows = [line.split("\t") for line in status.splitlines() if line.endswith(".py")]
    wrong = [
        path
        for kind, path in rows
        if kind != "M" or code(_git("show", f"{revision}:{path}")) != code((ROOT / path).read_text("utf-8"))
    ]
    return len(rows), wrong


def _git(*arguments: str) -> str:
    """Run git in the repository; return its output."""
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True, encoding="utf-8"
    ).stdout


def main() -> int:
    """Print the files whose code differs from the revision; return 1 if there are any."""
    options = argparse.ArgumentParser(prog="scripts/same-code", description=__doc__)
    options.add_argument("revision", metavar="REVISION")
    options.add_argument("paths", metavar="PATH", nargs="*")
    chosen = options.parse_args()
    count, wrong = differing(chosen.revision, chosen.paths)
    for path in wrong:
        print(f"{path}: the code differs from {chosen.revision}", file=sys.stderr)
    print(f"{count - len(wrong)} of {count} changed files have the same code")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

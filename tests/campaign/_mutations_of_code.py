"""Mutants of Python code: one changed expression or statement in a function."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
NEGATED_BY_A_SWAP = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
NOT_RUN = ("annotation", "returns", "decorator_list", "type_params")
"""Fields of nodes that are not part of a function's body."""


@dataclass(frozen=True, order=True)
class Mutant:
    """A file's new text, and the lines that a test of the change must reach."""

    path: str
    first: int
    last: int
    new: str

    def diff(self, old: str) -> list[str]:
        """Return the lines of a diff, without its header."""
        lines = difflib.unified_diff(old.splitlines(), self.new.splitlines(), n=1, lineterm="")
        return list(lines)[2:]


def mutants(path: str, text: str) -> list[Mutant]:
    """Return all mutants of a file's functions, in the file's order."""
    source = text.encode()
    starts = [0, *accumulate(map(len, source.splitlines(keepends=True)))]
    found = set()
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for statement in function.body:
                for within, node in _inside(statement, statement):
                    for old, new in (*_changes(node), *_negations(node)):
                        begin = starts[old.lineno - 1] + old.col_offset
                        end = starts[(old.end_lineno or 0) - 1] + (old.end_col_offset or 0)
                        whole = (source[:begin] + new.encode() + source[end:]).decode()
                        found.add(Mutant(path, within.lineno, old.end_lineno or 0, whole))
    return sorted(found)


def _inside(node: ast.AST, within: ast.stmt) -> Iterator[tuple[ast.stmt, ast.AST]]:
    """Yield a node and the nodes below it with their statements; positions in f-strings are not exact."""
    within = node if isinstance(node, ast.stmt) else within
    yield within, node
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr) and name not in NOT_RUN:
                yield from _inside(child, within)


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield the expression or statement that a change replaces, and its new text."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=others):
            for index, each in enumerate(ops):
                changed = [*ops[:index], SWAPPED[type(each)](), *ops[index + 1 :]]
                yield node, f"({ast.unparse(ast.Compare(left, changed, others))})"
        case ast.BoolOp(op=op, values=values):
            other = ast.And() if isinstance(op, ast.Or) else ast.Or()
            yield node, f"({ast.unparse(ast.BoolOp(other, values))})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.Constant(value=bool() as value):
            yield node, str(not value)
        case ast.Constant(value=int() | float() as value):
            yield node, str(value + 1)
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield node, "return None"
        case ast.Raise() | ast.Expr(value=ast.Call() | ast.Await()):
            yield node, "pass"


def _negations(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Yield conditions and their negation, unless another change has the same effect."""
    tests: list[ast.expr] = []
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        tests = [node.test]
    elif isinstance(node, ast.comprehension):
        tests = node.ifs
    for test in tests:
        swapped = isinstance(test, ast.Compare) and isinstance(test.ops[-1], NEGATED_BY_A_SWAP)
        if not swapped and not isinstance(test, (ast.UnaryOp, ast.Constant)):
            yield test, f"(not ({ast.unparse(test)}))"

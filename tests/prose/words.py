"""Phrases that the prose of the code avoids, and their places in docstrings and comments."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PHRASES = {
    r"told|untold": "reported, shown, named",
    r"(?:is|are|was|be|been|it|he|they) said|said (?:of|so|nothing|anything)": "stated, printed",
    r"says? (?:of|so|nothing|anything)": "states, reports",
    r"(?:its|their|his|whose|own|last) words?|'s words?|the word (?:for|of)": "message, value, name",
    r"nobody|no one|nobody's": "no user, no node, none",
    r"somebody|anybody|whoever|whomever|a stranger|somebody else": "another user, the administrator",
    r"stands?(?! for)|stood": "is, are",
    r"what (?:became|becomes|will become|came) of": "the result of",
    r"of (?:theirs|ours|his own)": "their own",
    r"go(?:es)? by|went by": "uses, follows",
    r"anew|afresh": "again",
    r"beside(?! the point)": "next to, with, in addition to",
    r"takes? in|taken in|takes? up|taken up": "add, parse, accept",
    r"makes? of|made of (?:it|them)": "derives from",
    r"whatever|wherever": "any, in every case",
    r"asked for|asks for": "requested, requires",
    r"hangs? together": "are connected",
    r"the like|and the like": "name the others",
    r"in its way|by its own": "describe it",
}
"""Regular expression of a phrase → plain words in its place."""
NO_VERB = {"a", "all", "an", "as", "each", "every", "how", "if", "its", "no", "of", "one", "that", "the"}
NO_VERB |= {
    "their",
    "these",
    "this",
    "those",
    "what",
    "when",
    "where",
    "whether",
    "which",
    "who",
    "whose",
    "why",
}
"""First words of a docstring that is not in the imperative mood."""
NO_NOUN = {"of", "that", "what", "who", "whom", "why"}
"""First words of a text about a module, class or constant that is not a noun phrase."""
_PATTERN = re.compile("|".join(rf"\b(?:{phrase})\b" for phrase in PHRASES), re.IGNORECASE)
_CODE = re.compile(r"`[^`]*`|^ *\w+: ", re.MULTILINE)
_COMMANDS = ("noqa", "type:", "fmt:", "!", "pragma")


class Place(NamedTuple):
    """A phrase to replace."""

    line: int
    seen: str
    instead: str


def phrases(text: str) -> list[Place]:
    """Return the phrases of `PHRASES` in a file's docstrings and comments, and wrong first words."""
    places = []
    for line, prose, first in _prose(text):
        plain = _CODE.sub("``", prose)
        places += [Place(line, found[0], _instead(found[0])) for found in _PATTERN.finditer(plain)]
        opening = re.match(r"[A-Za-z]+", plain)
        if opening and opening[0].lower() in first:
            places.append(Place(line, opening[0], "a verb" if first is NO_VERB else "a noun"))
    return sorted(places)


def _instead(seen: str) -> str:
    """Return the plain words for a phrase that was found."""
    return next(plain for phrase, plain in PHRASES.items() if re.fullmatch(phrase, seen, re.IGNORECASE))


def _prose(text: str) -> Iterator[tuple[int, str, set[str]]]:
    """Yield line and text of each docstring and comment, and the first words that the text must not have."""
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(node, ast.ClassDef) and _printed(node):
            body = node.body[1:]
        for place, each in enumerate(body if isinstance(body, list) else ()):
            value = each.value if isinstance(each, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                of_function = place == 0 and function and not _property(node)
                yield each.lineno, value.value, NO_VERB if of_function else NO_NOUN
    if not any("#" in line and _PATTERN.search(line) for line in text.splitlines()):
        return  # reading the tokens takes most of the time
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        comment = token.string.lstrip("# ")
        if token.type == tokenize.COMMENT and not comment.startswith(_COMMANDS):
            yield token.start[0], comment, set()


def _printed(record: ast.ClassDef) -> bool:
    """Return whether a class's docstring is part of a JSON Schema, and therefore printed."""
    return bool({ast.unparse(base) for base in record.bases} & {"Strict", "Component"})


def _property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function is a property or fixture, whose docstring may begin with a noun."""
    called = [each.func if isinstance(each, ast.Call) else each for each in function.decorator_list]
    named = {ast.unparse(each).rpartition(".")[2] for each in called}
    return bool(named & {"property", "cached_property", "fixture", "part"})


def in_folder(folder: Path) -> Iterator[tuple[Path, Place]]:
    """Yield the phrases in the Python files of a folder, or in one file."""
    for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]:
        for place in phrases(path.read_text(encoding="utf-8")):
            yield path, place

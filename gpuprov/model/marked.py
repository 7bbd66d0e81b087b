"""YAML parser that keeps line numbers: plain data with the place of each key."""

from __future__ import annotations

import math
import re
from datetime import date
from types import NoneType
from typing import Any

import yaml

from gpuprov.errors import InFile, InvalidInput
from gpuprov.untrusted.gates import shown
from gpuprov.untrusted.parsing import LARGEST_NUMBER

Path_ = tuple[str | int, ...]


VALUES = 1 << 21
"""Maximum number of values of a document, shown by `SIGNS`; each takes 1 KB at most. A lock of 10,000 hosts
has 100,000.
"""
SIGNS = (*"\n\x85\u2028\u2029,[{:", "- ", "-\t", "? ", "?\t")
"""Texts at the end of a line or before a value: each value needs one, or shares it with its key."""
DEEPEST = 32
"""Maximum number of keys and indexes on the way to a value: each value takes memory for them."""
LONGEST_PATH = 512
"""Maximum length of these, joined by dots: each error contains them."""
SHORT = 1 << 18
"""Maximum length of a text that PyYAML parses again for its error messages, in a tenth of libyaml's speed."""
POSSIBLE_ALIAS = re.compile(r"\*\S")

TEXT, FLOAT = "tag:yaml.org,2002:str", "tag:yaml.org,2002:float"
NUMBER = "tag:yaml.org,2002:int"
NUMBERS = (FLOAT, NUMBER)
SMALL = re.compile(r"0|[1-9][0-9]{0,8}")
"""Numbers that can be keys, as those of VLANs in variables of a site; all of them have different hashes."""
LONGEST = 400
"""Maximum length of a number: the time of one with colons, YAML's base of 60, is the square of its length."""
UNFIT = re.compile("[\0\ud800-\udfff]")
"""Characters that no path and no file of text can have."""
MENDS = {
    "but found '<block": "indent the line as its neighbours are",
    "'\\t'": "indent with spaces: YAML allows no tabs there",
    "mapping values are not allowed": "indent the line as its neighbours are, or put the value in quotes",
}
"""Text in PyYAML's error → what to do about it."""


class Marked:
    """A YAML document: plain data, the line of each key and item, and each decimal number as written.

    Attributes:
        name: the file's name, for errors.
        data: plain data; None for an empty document.
        lines: path → line, from 1.
        written: path → text of a number with a decimal point or an exponent.
    """

    def __init__(self, text: str, name: str) -> None:
        """Parse YAML text.

        Raises:
            InvalidInput: it is not YAML, has more than `VALUES` values, an alias, a key twice, a key that is
                no text, or a value that JSON does not have or that cannot be read, or exceeds `DEEPEST` or
                `LONGEST_PATH`; InFile where the line is known.
        """
        self.name = name
        self.lines: dict[Path_, int] = {}
        self.written: dict[Path_, str] = {}
        if sum(map(text.count, SIGNS)) > VALUES:
            raise InvalidInput(f"{name}: more than {VALUES} values")
        try:
            node = _compose(text)
            self.data = self._plain(node, ()) if node is not None else None
        except RecursionError:
            raise InvalidInput(f"{name}: nested too deeply") from None
        except ValueError as error:  # a number of thousands of digits, an invalid date
            raise InvalidInput(f"{name}: not a value: {error}") from None
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            problem = getattr(error, "problem", None) or str(error)
            if mark is None:
                raise InvalidInput(f"{name}: not YAML: {problem}") from None
            do = next((each for sign, each in MENDS.items() if sign in problem), "")
            raise InFile("not-yaml", name, mark.line + 1, f"not YAML: {problem}", do=do) from None

    def _plain(self, node: yaml.Node, path: Path_) -> Any:
        """Return the plain data of a node; record the lines of all its elements, and decimal numbers as
        written.

        Raises:
            InFile: `path` is longer than `DEEPEST`, or as `_mapping` and `_scalar`.
        """
        self.lines.setdefault(path, node.start_mark.line + 1)
        if len(path) > DEEPEST:
            raise self.wrong("wrong-value", path, "nested too deeply", expected=f"at most {DEEPEST} levels")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(item, (*path, index)) for index, item in enumerate(node.value)]
        if node.tag == FLOAT:
            self.written[path] = node.value
        return self._scalar(node, path)

    def _scalar(self, node: yaml.Node, path: Path_) -> Any:
        """Return the value of a node that is no mapping and no list.

        Raises:
            InFile: a number is longer than `LONGEST`, not finite or has more than 64 bits, a text has a
                character of `UNFIT`, or the value is not of the type that its tag states, or of one that
                neither JSON has nor a date.
        """
        if node.tag in NUMBERS and len(node.value) > LONGEST:
            seen = f"a number of {len(node.value)} characters"
            raise self.wrong("wrong-value", path, seen, expected=f"at most {LONGEST}")
        self._refuse_unfit(node)
        try:
            value = CONSTRUCTORS.get(node.tag, CONSTRUCTORS[None])(_constructor, node)
        except (LookupError, TypeError, AttributeError, OverflowError):
            raise self.wrong("wrong-value", path, f"not a value of its type {node.tag!r}") from None
        if not isinstance(value, VALUE):
            seen = f"{dotted(path)} has the type {node.tag!r}"
            raise self.wrong("wrong-value", path, seen, expected="text, a number, true, false or a date")
        large = isinstance(value, int) and abs(value) > LARGEST_NUMBER
        if large or (isinstance(value, float) and not math.isfinite(value)):
            seen = f"{dotted(path)} is {shown(node.value)}"
            raise self.wrong("wrong-value", path, seen, expected="a number of at most 64 bits")
        return value

    def _refuse_unfit(self, node: yaml.Node) -> None:
        """Raise InFile if the text of a scalar has a character of `UNFIT`."""
        if UNFIT.search(node.value):
            seen = "a NUL or half of a surrogate pair in a text"
            raise InFile("wrong-value", self.name, node.start_mark.line + 1, seen)

    def _mapping(self, node: yaml.MappingNode, path: Path_) -> dict[str | int, Any]:
        """Return the plain data of a mapping; raise InFile if a key appears twice, and as `_key`."""
        plain: dict[str | int, Any] = {}
        above = len(dotted(path))
        for key_node, value_node in node.value:
            key = self._key(key_node, path, LONGEST_PATH - above)
            line = key_node.start_mark.line + 1
            if key in plain:
                raise InFile("key-twice", self.name, line, f"key {key!r} appears twice in {dotted(path)}")
            self.lines[(*path, key)] = line
            plain[key] = self._plain(value_node, (*path, key))
        return plain

    def _key(self, node: yaml.Node, path: Path_, longest: int) -> str | int:
        """Return a key of a mapping, a text or a small number.

        Larger numbers are no keys: those that another user chooses can have one hash, which makes a mapping
        slow.

        Args:
            path: that of the mapping.
            longest: maximum length of the key.

        Raises:
            InFile: it is no text, too long, or has a character of `UNFIT`.
        """
        line = node.start_mark.line + 1
        if node.tag == NUMBER and isinstance(node, yaml.ScalarNode) and SMALL.fullmatch(node.value):
            return int(node.value)
        if node.tag != TEXT or not isinstance(node, yaml.ScalarNode):
            is_scalar = isinstance(node, yaml.ScalarNode)
            seen = f"a key in {dotted(path)} is no text" + (f": {shown(node.value)}" if is_scalar else "")
            do = "write it in quotes" if is_scalar else ""
            raise InFile("wrong-value", self.name, line, seen, expected="text", do=do)
        if len(node.value) > longest:
            seen = f"the key {shown(node.value)} has {len(node.value)} characters"
            expected = f"at most {LONGEST_PATH} together with the keys above it"
            raise InFile("wrong-value", self.name, line, seen, expected=expected)
        self._refuse_unfit(node)
        return str(node.value)

    def line(self, path: Path_) -> int:
        """Return the line of the nearest element of `path` that is in the file, or 1."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def wrong(self, kind: str, path: Path_, seen: str, *, expected: str = "", do: str = "") -> InFile:
        """Return the error at `path` with file and line; `kind` is its name, such as `unknown-key`."""
        return InFile(kind, self.name, self.line(path), seen, expected=expected, do=do)


def _compose(text: str) -> yaml.Node | None:
    """Parse a document to nodes, by libyaml if available: ten times as fast on 10,000 lines.

    `SHORT` text that it cannot parse is parsed by PyYAML for its error messages. None for an empty document.
    """
    try:
        return _composed(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        if len(text) > SHORT:
            raise
    return _composed(text, yaml.SafeLoader)


def _composed(text: str, loader: Any) -> yaml.Node | None:
    """Parse a document to nodes by one of PyYAML's parsers.

    Raises:
        YAMLError: it is not YAML, or contains an alias: no document needs them, and nested ones expand
            without limit.
    """
    if POSSIBLE_ALIAS.search(text):
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.AliasEvent):
                problem = "aliases (*name) are not allowed here"
                mark: Any = event.start_mark
                raise yaml.composer.ComposerError(None, None, problem, mark)
    return yaml.compose(text, Loader=loader)


VALUE = (str, int, float, NoneType, date)
_constructor = yaml.constructor.SafeConstructor()
CONSTRUCTORS: dict[str | None, Any] = _constructor.yaml_constructors
"""Tag → what makes a node's value. `construct_object` would keep each node as long as the process runs."""


def dotted(path: Path_) -> str:
    """Return `groups.train.hosts` for a path; `the document` for the top."""
    return ".".join(map(str, path)) or "the document"

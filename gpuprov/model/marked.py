"""YAML parser that keeps line numbers: plain data with the place of each key."""

from __future__ import annotations

import re
from contextlib import suppress
from types import NoneType
from typing import Any

import yaml

from gpuprov.errors import InFile, InvalidInput

Path_ = tuple[str | int, ...]


FLOAT = "tag:yaml.org,2002:float"
NUMBERS = (FLOAT, "tag:yaml.org,2002:int")
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
                a list, or a value that cannot be read, or is nested too deeply; InFile where the line is
                known.
        """
        self.name = name
        self.lines: dict[Path_, int] = {}
        self.written: dict[Path_, str] = {}
        if sum(map(text.count, "\n,[{:")) > VALUES:
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
            InFile: as `_mapping` and `_scalar`.
        """
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(item, (*path, index)) for index, item in enumerate(node.value)]
        if node.tag == FLOAT:
            self.written[path] = node.value
        return self._scalar(node)

    def _scalar(self, node: yaml.Node) -> Any:
        """Return the value of a node that is no mapping and no list.

        Raises:
            InFile: a number is longer than `LONGEST`, a text has a character of `UNFIT`, or the value is not
                of the type that its tag states.
        """
        line = node.start_mark.line + 1
        if node.tag in NUMBERS and len(node.value) > LONGEST:
            seen = f"a number of {len(node.value)} characters"
            raise InFile("wrong-value", self.name, line, seen, expected=f"at most {LONGEST}")
        if UNFIT.search(str(node.value)):
            raise InFile("wrong-value", self.name, line, "a NUL or half of a surrogate pair in a text")
        try:
            return _constructor.construct_object(node)
        except (LookupError, TypeError, AttributeError, OverflowError):
            raise InFile("wrong-value", self.name, line, f"not a value of its type {node.tag!r}") from None

    def _mapping(self, node: yaml.MappingNode, path: Path_) -> dict[Any, Any]:
        """Return the plain data of a mapping; raise InFile if a key appears twice, and as `_key`."""
        plain: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            line = key_node.start_mark.line + 1
            if key in plain:
                raise InFile("key-twice", self.name, line, f"key {key!r} appears twice in {dotted(path)}")
            self.lines[(*path, key)] = line
            plain[key] = self._plain(value_node, (*path, key))
        return plain

    def _key(self, node: yaml.Node, path: Path_) -> Any:
        """Return a key of a mapping; raise InFile if it is no text or number, and as `_scalar`."""
        key = self._scalar(node) if isinstance(node, yaml.ScalarNode) else node
        if not isinstance(key, (str, int, float, NoneType)):
            line = node.start_mark.line + 1
            raise InFile("wrong-value", self.name, line, f"a key in {dotted(path)} is no text or number")
        return key

    def line(self, path: Path_) -> int:
        """Return the line of the nearest element of `path` that is in the file, or 1."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def wrong(self, kind: str, path: Path_, seen: str, *, expected: str = "", do: str = "") -> InFile:
        """Return the error at `path` with file and line; `kind` is its name, such as `unknown-key`."""
        return InFile(kind, self.name, self.line(path), seen, expected=expected, do=do)


class Loader(yaml.SafeLoader):
    """YAML without aliases: no document needs them, and nested ones expand without limit."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose one node; raise ComposerError for an alias."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(
                None,
                None,
                "aliases (*name) are not allowed here",
                self.peek_event().start_mark,  # type: ignore[no-untyped-call]
            )
        return super().compose_node(parent, index)


def _compose(text: str) -> yaml.Node | None:
    """Parse a document to nodes, by libyaml if available: ten times as fast on 10,000 lines.

    Text that it cannot parse, or that may contain an alias, is parsed by PyYAML for its error messages. None
    for an empty document.
    """
    fast = getattr(yaml, "CSafeLoader", None)
    if fast is not None and not POSSIBLE_ALIAS.search(text):
        with suppress(yaml.YAMLError):
            return yaml.compose(text, Loader=fast)
    return yaml.compose(text, Loader=Loader)


VALUES = 1 << 21
"""Maximum number of values of a document, shown by `,`, `[`, `{`, `:` and ends of lines; each takes
700 bytes. A lock of 10,000 hosts has 100,000.
"""
POSSIBLE_ALIAS = re.compile(r"(?:^|[\s,\[{:?-])[&*]\w", re.MULTILINE)

_constructor = yaml.constructor.SafeConstructor()


def dotted(path: Path_) -> str:
    """Return `groups.train.hosts` for a path; `the document` for the top."""
    return ".".join(map(str, path)) or "the document"

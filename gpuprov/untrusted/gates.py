"""One gate for each interpreter of text: a function whose result is data there, with any content.

    shell, shell_words        a line for a POSIX shell, run by a program or pasted by a user
    below                     one component of a path, inside a folder
    printable, on_one_line    a terminal, a log, a journal
    xml_text, html_text       text or an attribute of XML 1.0 and of HTML
    json_text, json_line      a JSON document for display; one line of a JSON Lines file
    LogFormatter              every log
    regex                     a literal part of a regular expression of Python
    ansible_json              Ansible's inventory and variables, as text that is not expanded as a template
    without_templates         a document for Ansible: refused if a string looks like a template

SQL needs no gate: statements are constants, and values are parameters. Pages of HTML are rendered by jinja2
with autoescape. `tests/unit/untrusted/test_sinks.py` has the table of sinks, and fails on plain strings
there.
"""

from __future__ import annotations

import html
import json
import logging
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NewType, TypeVar

from gpuprov.errors import NodeFailed

ShellLine = NewType("ShellLine", str)
PathBelow = NewType("PathBelow", Path)
Printable = NewType("Printable", str)
XmlText = NewType("XmlText", str)
HtmlText = NewType("HtmlText", str)
JsonLine = NewType("JsonLine", str)
AnsibleJson = NewType("AnsibleJson", str)
RegexText = NewType("RegexText", str)
Document = TypeVar("Document")

# Control characters except tab and newline, C1 control characters, line separators, characters that change
# the direction of writing, the byte order mark, and surrogates, which cannot be encoded.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_NOT_XML = re.compile("[^\t\n\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
COMPONENT = r"[A-Za-z0-9_+][A-Za-z0-9._+@=,:~-]{0,254}"
"""Pattern of one component of a path; `names.file_name` uses it, too."""
_TEMPLATE = re.compile(r"\{\{|\{%|\{#")
_SHOWN = 80
UNSAFE = "__ansible_unsafe"
"""Key that marks a string as text in JSON for Ansible (ansible-core 2.18 to 2.21)."""


class ShellWords(str):
    """Quoted words for a shell; only `shell_words` creates them."""

    __slots__ = ()


class AnsibleText(str):
    """A string in an inventory file that Ansible must not expand; only `as_text` and `marked` create it."""

    __slots__ = ()


def _spelled(found: re.Match[str]) -> str:
    """Return the found characters as Python's escape sequences."""
    return found[0].encode("unicode_escape").decode("ascii")


def printable(text: str) -> Printable:
    r"""Return the text with terminal control characters escaped, `\x1b[31m`; newlines are kept."""
    return Printable(_STEERING.sub(_spelled, text))


def on_one_line(text: str) -> Printable:
    r"""Return printable text with escaped newlines: it cannot look like a separate line of gpuprov's."""
    return Printable(printable(text).replace("\n", "\\n"))


def shown(text: object, most: int = _SHOWN) -> Printable:
    """Return a value for a message: quoted, printable, on one line, shortened to `most` characters."""
    whole = text if isinstance(text, str) else repr(text)
    cut = whole if len(whole) <= most else whole[:most] + "…"
    return Printable(f"'{on_one_line(cut)}'")


def shell_words(words: Iterable[str]) -> ShellWords:
    """Return words for `shell`, each quoted, with blanks between them.

    Raises:
        NodeFailed: a word begins with `-`, so that a program would take it for an option.
    """
    return ShellWords(" ".join(_quoted(word) for word in words))


def shell(line: str, /, *words: object) -> ShellLine:
    """Return a line for a shell, in which each `{}` is replaced by a word.

    Args:
        line: a literal of the source code; `{{` and `}}` stand for braces.
        words: text or numbers, which are quoted; results of `shell_words` are inserted unchanged. Control
            characters are escaped, since a user may paste the line into a terminal.

    Raises:
        NodeFailed: a word begins with `-` at the start of a word of the line.
    """
    pieces = re.split(r"(\{\{|\}\}|\{\})", line)
    if pieces.count("{}") != len(words):
        raise TypeError(f"{len(words)} words for {line!r}")
    rest, made = iter(words), ""
    for piece in pieces:
        if piece == "{}":
            made += _filled(next(rest), inside=not (made == "" or made[-1].isspace()))
        else:
            made += {"{{": "{", "}}": "}"}.get(piece, piece)
    return ShellLine(made)


def _filled(word: object, *, inside: bool) -> str:
    if isinstance(word, ShellWords):
        return str(word)
    return _quoted(str(word), inside=inside)


def _quoted(word: str, *, inside: bool = False) -> str:
    if word.startswith("-") and not inside:
        raise NodeFailed(f"{shown(word)} in a command", expected="no - in front")
    return shlex.quote(on_one_line(word))


def below(folder: Path, component: str) -> PathBelow:
    """Return the path of one file or folder directly inside a folder.

    Raises:
        NodeFailed: the name contains a `/`, a blank or another character that `COMPONENT` does not allow, or
            begins with `.` or `-`.
    """
    if not re.fullmatch(COMPONENT, component):
        expected = f"the name of one file in {folder}: letters, digits and . _ + @ = , : ~ -"
        raise NodeFailed(f"{shown(component)} as the name of a file", expected=expected)
    return PathBelow(folder / component)


def xml_text(text: str) -> XmlText:
    """Return the text with characters that XML 1.0 forbids escaped; an XML writer still escapes `<`."""
    return XmlText(_NOT_XML.sub(_spelled, printable(text)))


def html_text(text: str) -> HtmlText:
    """Return the text as content or a quoted attribute of HTML."""
    return HtmlText(html.escape(printable(text)))


def json_line(document: object) -> JsonLine:
    """Return a document as one line of JSON in ASCII, without the final newline."""
    return JsonLine(json.dumps(document))


def json_text(document: object, *, indent: int | None = 2) -> Printable:
    """Return a document as JSON for a terminal or a file, with terminal control characters as `\\u001b`."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    return Printable(_STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


class LogFormatter(logging.Formatter):
    """A log with one line per record: a node's text can neither look like a record nor control a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Return the line of the record; a traceback follows it."""
        record.message = on_one_line(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line and the traceback of the record."""
        return printable(super().format(record))


def regex(text: str) -> RegexText:
    """Return a pattern of `re` that matches only this text."""
    return RegexText(re.escape(text))


def is_template(text: str) -> bool:
    """Return whether Ansible could expand the text as a template."""
    return _TEMPLATE.search(text) is not None


def without_templates(document: Document, what: str) -> Document:
    """Return a document for Ansible unchanged.

    Args:
        document: mappings, lists and scalars; keys are checked, too.
        what: name of the document, for the message.

    Raises:
        NodeFailed: a string looks like a template; the message names its place.
    """
    for place, text in _strings(document, what):
        if is_template(text):
            raise NodeFailed(
                f"{place}: {shown(text)} looks like a template", expected="text without {{, {% or {#"
            )
    return document


def ansible_json(document: object) -> AnsibleJson:
    """Return JSON for an inventory or `--extra-vars` in which every string is marked as text.

    Names of groups, hosts and variables are keys, which Ansible does not expand.

    Raises:
        NodeFailed: a key begins with `__ansible`, which Ansible reserves.
    """
    return AnsibleJson(json.dumps(_unsafe(document), indent=1))


def as_text(document: object) -> Any:
    """Return a document for a readable inventory: strings that look like a template become `AnsibleText`.

    A mapping with `UNSAFE` as its only key, the form of such a string in JSON, becomes `AnsibleText`, too.
    """
    if isinstance(document, str):
        return AnsibleText(document) if is_template(document) else document
    if isinstance(document, Mapping):
        return marked(document) if set(document) == {UNSAFE} else {k: as_text(v) for k, v in document.items()}
    return [as_text(each) for each in document] if isinstance(document, (list, tuple)) else document


def marked(document: object) -> Any:
    """Return a document with `AnsibleText` in place of mappings whose only key is `UNSAFE`; keep the rest."""
    if isinstance(document, Mapping):
        if set(document) == {UNSAFE}:
            return AnsibleText(document[UNSAFE])
        return {key: marked(value) for key, value in document.items()}
    return [marked(each) for each in document] if isinstance(document, (list, tuple)) else document


def unmarked(document: object, *, mark: bool) -> Any:
    """Return a document converted back to plain strings and mappings.

    Args:
        mark: whether `AnsibleText` becomes a mapping with the key `UNSAFE`, as in JSON; otherwise it and such
            mappings become plain strings.
    """
    if isinstance(document, AnsibleText):
        return {UNSAFE: str(document)} if mark else str(document)
    if isinstance(document, Mapping):
        if not mark and set(document) == {UNSAFE}:
            return document[UNSAFE]
        return {key: unmarked(value, mark=mark) for key, value in document.items()}
    return (
        [unmarked(each, mark=mark) for each in document] if isinstance(document, (list, tuple)) else document
    )


def _unsafe(document: object) -> object:
    if isinstance(document, str):
        return {UNSAFE: document}
    if isinstance(document, Mapping):
        for key in document:
            if str(key).startswith("__ansible"):
                raise NodeFailed(f"{shown(key)} as a key", expected="no key that Ansible reserves")
        return {key: _unsafe(value) for key, value in document.items()}
    if isinstance(document, (list, tuple)):
        return [_unsafe(value) for value in document]
    return document


def _strings(document: object, place: str) -> Iterator[tuple[str, str]]:
    """Yield place and text of every string and key in a document."""
    if isinstance(document, str):
        yield place, document
    elif isinstance(document, Mapping):
        for key, value in document.items():
            yield place, str(key)
            yield from _strings(value, f"{place}.{on_one_line(str(key))[:_SHOWN]}")
    elif isinstance(document, (list, tuple, set, frozenset)):
        for value in document:
            yield from _strings(value, place)

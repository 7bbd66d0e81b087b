"""One gate for each interpreter of text: a function whose result is data there, with any content.

    shell, shell_words        a line for a POSIX shell, run by a program or pasted by a user
    below                     one component of a path, inside a folder
    path_line                 a path in a line of a unit or a crontab
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

from gpuprov.errors import InvalidInput, NodeFailed
from gpuprov.untrusted.parsing import with_json_numbers
from gpuprov.untrusted.urls import public_urls

ShellLine = NewType("ShellLine", str)
"""A line for a POSIX shell in which every inserted word is quoted; `shell` returns it."""
PathBelow = NewType("PathBelow", Path)
"""A path directly inside a known folder; `below` returns it."""
Printable = NewType("Printable", str)
"""Text without terminal control characters, from `printable`, `on_one_line`, `shown` or `json_text`."""
XmlText = NewType("XmlText", str)
"""Text that has only characters of XML 1.0, not yet escaped as markup; `xml_text` returns it."""
HtmlText = NewType("HtmlText", str)
"""Text with HTML's special characters escaped; `html_text` returns it."""
JsonLine = NewType("JsonLine", str)
"""A JSON document on one line of ASCII; `json_line` returns it."""
AnsibleJson = NewType("AnsibleJson", str)
"""JSON for Ansible in which every string is marked with `UNSAFE`; `ansible_json` returns it."""
RegexText = NewType("RegexText", str)
"""A pattern of `re` that matches one literal text; `regex` returns it."""
Document = TypeVar("Document")

# Control characters except tab and newline, C1 control characters, line separators, characters that change
# the direction of writing, the byte order mark, and surrogates, which cannot be encoded.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
# Commands in the log of a job: `##[…]` (GitHub Actions), `##vso[…]` (Azure Pipelines) and `##teamcity[…]`
# anywhere in a line, `::…::` at its start, also after blanks. GitHub's runner compares the second `::` by the
# rules of a language, which ignore characters without weight, such as a soft hyphen.
_COMMANDS = re.compile(
    r"(?<=#)#(?=(?:vso|teamcity)?\[)|^[^\S\n]*:(?=:[A-Za-z-]+(?:::|:?[^!-~\n]))", re.MULTILINE
)
_NOT_XML = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
COMPONENT = r"[A-Za-z0-9_+][A-Za-z0-9._+@=,:~-]{0,254}"
"""Pattern of one component of a path; `names.file_name` uses it, too."""
_TEMPLATE = re.compile(r"\{\{|\{%|\{#|#jinja2:")
"""Signs of a template for Ansible: Jinja's own, and the line that states others."""
_SHOWN = 80
"""Default maximum length of a value in a message, in characters."""
UNSAFE = "__ansible_unsafe"
"""Key that marks a string as text in JSON for Ansible (ansible-core 2.19 to 2.21)."""


class ShellWords(str):
    """Quoted words for a shell; only `shell_words` creates them."""

    __slots__ = ()


class AnsibleText(str):
    """A string in an inventory file that Ansible must not expand.

    Only `templates_as_text` and `with_marks_read` create it.
    """

    __slots__ = ()


def _spelled(found: re.Match[str]) -> str:
    r"""Return the found characters as Python's escape sequences, such as `\x1b` or `\u202e`."""
    return found[0].encode("unicode_escape").decode("ascii")


def _broken(found: re.Match[str]) -> str:
    r"""Return the found characters with the last one as Python's escape sequence, such as `\x23`."""
    return f"{found[0][:-1]}\\x{ord(found[0][-1]):02x}"


def printable(text: str) -> Printable:
    r"""Return the text with control characters escaped as in `\x1b[31m`; tabs and newlines are kept.

    Carriage returns, C1 control characters, Unicode's line separators and direction marks, the byte order
    mark and surrogates are escaped, too. So is one sign of each command that GitHub Actions, Azure Pipelines
    and TeamCity would read in a job's log: `#\x23[set-output …]`, `\x3a:set-output …::`.
    """
    return Printable(_COMMANDS.sub(_broken, _steered(text)))


def _steered(text: str) -> str:
    """Return the text with the characters of `_STEERING` escaped."""
    return _STEERING.sub(_spelled, text)


def on_one_line(text: str) -> Printable:
    r"""Return printable text with each newline as `\n`: it cannot look like a separate line of gpuprov's."""
    return Printable(printable(text).replace("\n", "\\n"))


def path_line(path: Path | str) -> str:
    """Return a path for a line of a systemd unit or a crontab, not yet quoted.

    Raises:
        InvalidInput: it has a control character; a newline would begin a line of its own.
    """
    text = str(path)
    if text != on_one_line(text):
        raise InvalidInput(f"control characters in the path {shown(text)}", do="use a folder without them")
    return text


def shown(text: object, most: int = _SHOWN) -> Printable:
    """Return a value for a message: in single quotes, printable, on one line.

    A value that is not a string is shown by its `repr`. After `most` characters, counted before escaping, the
    rest is replaced by `…`.
    """
    whole = text if isinstance(text, str) else repr(text)
    cut = whole if len(whole) <= most else whole[:most] + "…"
    return Printable(f"'{on_one_line(cut)}'")


def shell_words(words: Iterable[str]) -> ShellWords:
    """Return words for `shell`, each quoted and with control characters escaped, with blanks between them.

    Without words the result is empty; an empty word becomes `''`.

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
        NodeFailed: a word begins with `-` in place of a `{}` after a blank or at the start; `--name={}`
            accepts it.
        TypeError: the number of words is not that of `{}`.
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
    """Return the quoted word; words from `shell_words` are returned unchanged; raises as `_quoted`.

    Args:
        inside: whether text of the line precedes it without a blank, as in `--name={}`.
    """
    if isinstance(word, ShellWords):
        return str(word)
    return _quoted(str(word), inside=inside)


def _quoted(word: str, *, inside: bool = False) -> str:
    """Return a word quoted for a shell, with control characters escaped.

    Raises:
        NodeFailed: it begins with `-`, and is not `inside` another word.
    """
    if word.startswith("-") and not inside:
        raise NodeFailed(f"{shown(word)} in a command", expected="no - in front")
    return shlex.quote(_steered(word).replace("\n", "\\n"))


def below(folder: Path, component: str) -> PathBelow:
    """Return the path of one file or folder directly inside a folder; the disk is not accessed.

    Raises:
        NodeFailed: the name is empty, has more than 255 characters, contains a `/`, a blank or another
            character that `COMPONENT` does not allow, or begins with `.`, `-` or one of `@=,:~`.
    """
    if not re.fullmatch(COMPONENT, component):
        expected = f"the name of one file in {folder}: letters, digits and . _ + @ = , : ~ -"
        raise NodeFailed(f"{shown(component)} as the name of a file", expected=expected)
    return PathBelow(folder / component)


def xml_text(text: str) -> XmlText:
    r"""Return the text with control characters and all others that XML 1.0 forbids escaped as in `\x1b`.

    Tabs and newlines are kept. An XML writer still has to escape `<`, `&` and quotes.
    """
    return XmlText(_NOT_XML.sub(_spelled, printable(text)))


def html_text(text: str) -> HtmlText:
    """Return the text as content or a quoted attribute of HTML.

    The characters `&`, `<`, `>` and quotes become entities, and control characters are escaped as by
    `printable`.
    """
    return HtmlText(html.escape(printable(text)))


def json_line(document: object) -> JsonLine:
    """Return a document as one line of JSON in ASCII, without the final newline.

    Numbers that are not finite or exceed 64 bits become null.

    Raises:
        TypeError: it contains a value that JSON does not have, such as a set.
    """
    return JsonLine(json.dumps(with_json_numbers(document), allow_nan=False))


def json_text(document: object, *, indent: int | None = 2) -> Printable:
    r"""Return a document as JSON for a terminal or a file, with terminal control characters as `\u001b`.

    Numbers that are not finite or exceed 64 bits become null: a number of one node must not make the document
    of all nodes invalid.

    Args:
        indent: blanks for each level; None puts the document on one line. Other Unicode characters are kept.
    """
    numbered = with_json_numbers(document)
    text = json.dumps(numbered, indent=indent, ensure_ascii=False, allow_nan=False)
    text = _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return Printable(_COMMANDS.sub(lambda found: f"{found[0][:-1]}\\u{ord(found[0][-1]):04x}", text))


class LogFormatter(logging.Formatter):
    """A log with one line per record: a node's text can neither look like a record nor control a terminal.

    URLs have no user, password, query or token.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Return the line of the record, with newlines of its message escaped; `format` adds a traceback."""
        record.message = on_one_line(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line and, if the record has an exception, the lines of its traceback, all printable."""
        return printable(public_urls(super().format(record)))


def regex(text: str) -> RegexText:
    """Return a pattern of `re` that matches exactly this text, with special characters escaped."""
    return RegexText(re.escape(text))


def is_template(text: str) -> bool:
    """Return whether Ansible could expand the text as a template: it has `{{`, `{%`, `{#` or `#jinja2:`."""
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
                f"{place}: {shown(text)} looks like a template",
                expected="text without {{, {%, {# or #jinja2:",
            )
    return document


def ansible_json(document: object) -> AnsibleJson:
    """Return JSON for an inventory or `--extra-vars` in which every string is marked as text.

    Names of groups, hosts and variables are keys, which Ansible does not expand; keys are not marked.

    Raises:
        NodeFailed: a key begins with `__ansible`, which Ansible reserves.
    """
    return AnsibleJson(json.dumps(_unsafe(document), indent=1))


def templates_as_text(document: object) -> Any:
    """Return a document for a readable inventory: strings that look like a template become `AnsibleText`.

    A mapping with `UNSAFE` as its only key, the form of such a string in JSON, becomes `AnsibleText`, too.
    Keys and other values are kept; tuples become lists.
    """
    if isinstance(document, str):
        return AnsibleText(document) if is_template(document) else document
    if isinstance(document, Mapping):
        if set(document) == {UNSAFE}:
            return with_marks_read(document)
        return {key: templates_as_text(value) for key, value in document.items()}
    return [templates_as_text(each) for each in document] if isinstance(document, (list, tuple)) else document


def with_marks_read(document: object) -> Any:
    """Return a document with `AnsibleText` in place of mappings whose only key is `UNSAFE`; keep the rest.

    Strings that look like a template are not changed, see `templates_as_text`. Tuples become lists.
    """
    if isinstance(document, Mapping):
        if set(document) == {UNSAFE}:
            return AnsibleText(document[UNSAFE])
        return {key: with_marks_read(value) for key, value in document.items()}
    return [with_marks_read(each) for each in document] if isinstance(document, (list, tuple)) else document


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
    """Return a document with `{UNSAFE: text}` in place of every string that is not a key.

    Raises:
        NodeFailed: a key begins with `__ansible`.
    """
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
    """Yield place and text of every string and key in a document.

    The place is `place`, extended by `.KEY` for the value of a key; an item of a list has the list's place.
    """
    if isinstance(document, str):
        yield place, document
    elif isinstance(document, Mapping):
        for key, value in document.items():
            yield place, str(key)
            yield from _strings(value, f"{place}.{on_one_line(str(key))[:_SHOWN]}")
    elif isinstance(document, (list, tuple, set, frozenset)):
        for value in document:
            yield from _strings(value, place)

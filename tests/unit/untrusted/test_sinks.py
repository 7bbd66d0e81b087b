"""Table of sinks, applied to the source: each string goes through its gate before an interpreter gets it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[3]
GATES = "gpuprov/untrusted/gates.py"
QUOTING = {"shlex.quote", "shlex.join", "shell_words", "quote", "str", "int", "len"}
LITERALS = {"regex", "re.escape"}
RE = {
    f"re.{name}"
    for name in ("compile", "search", "match", "fullmatch", "sub", "split", "findall", "finditer")
}
PRINTING = {"click.echo", "click.secho", "print", "sys.stdout.write", "sys.stderr.write"}


@dataclass(frozen=True)
class Source:
    """A file: its path from the root, and its syntax tree."""

    path: str
    tree: ast.Module

    @cached_property
    def calls(self) -> dict[str, list[ast.Call]]:
        """Dotted name of a function → its calls."""
        found: dict[str, list[ast.Call]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                found.setdefault(name_of(node.func), []).append(node)
        return found


class Sink(NamedTuple):
    """Calls that pass text to an interpreter, and the condition for a correct call."""

    calls: set[str]
    right: Callable[[ast.Call, Source], bool]
    gate: str
    allowed: tuple[str, ...] = ()
    """Files that may call it in any case: the gate itself, and files without untrusted text."""


def name_of(node: ast.expr) -> str:
    """Return the dotted name of an expression, such as `re.escape`, without parts that are computed."""
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}".lstrip(".")
    return node.id if isinstance(node, ast.Name) else ""


def literal(node: ast.expr | None) -> bool:
    """Return whether an expression consists of string literals, also joined or selected by a condition."""
    match node:
        case ast.Constant(value=str()):
            return True
        case ast.BinOp(left=left, right=right):
            return literal(left) and literal(right)
        case ast.IfExp(body=body, orelse=orelse):
            return literal(body) and literal(orelse)
    return False


def made_of(node: ast.expr, source: Source, quoting: set[str]) -> bool:
    """Return whether each value in an f-string is a constant of the module or a result of `quoting`."""
    if not isinstance(node, ast.JoinedStr):
        return True
    values = (part.value for part in node.values if isinstance(part, ast.FormattedValue))
    return all(_fit(value, source, quoting) for value in values)


def _fit(value: ast.expr, source: Source, quoting: set[str]) -> bool:
    """Return whether an expression is quoted or constant, so that it may be part of a command."""
    if isinstance(value, ast.Call):
        return name_of(value.func) in quoting
    if isinstance(value, ast.Name):
        return value.id.isupper() or value.id.strip("_").isupper() or _quoted(value.id, source, quoting)
    return isinstance(value, ast.Constant)


def _quoted(name: str, source: Source, quoting: set[str]) -> bool:
    """Return whether all values assigned to the name are results of `quoting`."""
    assigned = [
        node.value
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign) and any(name_of(target) == name for target in node.targets)
    ]
    return bool(assigned) and all(
        isinstance(value, ast.Call) and name_of(value.func) in quoting for value in assigned
    )


def constant_sql(call: ast.Call, source: Source) -> bool:
    """Return whether an SQL statement has no variable part: only constants and names assigned from them."""

    def fixed(node: ast.expr) -> bool:
        """Return whether an expression is a constant text: literals, and names of constants."""
        match node:
            case ast.Constant():
                return True
            case ast.BinOp(left=left, right=right):
                return fixed(left) and fixed(right)
            case ast.JoinedStr(values=values):
                return all(fixed(part) for part in values)
            case ast.FormattedValue(value=value):
                return fixed(value)
            case ast.Name(id=name):
                return name.isupper() or _assigned_fixed(name)
        return False

    def _assigned_fixed(name: str) -> bool:
        """Return whether all values that a name gets in the file are constant."""
        found = [
            node.value
            for node in ast.walk(source.tree)
            if isinstance(node, ast.Assign) and any(name_of(target) == name for target in node.targets)
        ]
        loops = [
            node.iter
            for node in ast.walk(source.tree)
            if isinstance(node, ast.For) and name_of(node.target) == name
        ]
        names = {each.id for loop in loops for each in ast.walk(loop) if isinstance(each, ast.Name)}
        if loops:
            return all(each.isupper() or each in ("filter", "str") for each in names)
        return bool(found) and all(map(fixed, found))

    return fixed(call.args[0])


def no_part(call: ast.Call, source: Source) -> bool:
    """Return whether the argument is not a named value of a document: `row["x"]` or `row.get("x")`.

    The groups of a match have numbers.
    """
    value = call.args[0]
    match value.values[0] if isinstance(value, ast.BoolOp) else value:
        case ast.Subscript(slice=ast.Constant(value=int())):
            return True
        case ast.Subscript() | ast.Call(func=ast.Attribute(attr="get")):
            return False
    return True


def xml_values(call: ast.Call, source: Source) -> bool:
    """Return whether each attribute is a constant, a number or a result of `xml_text`."""
    values = [keyword.value for keyword in call.keywords]
    return all(
        literal(value)
        or (isinstance(value, ast.Call) and name_of(value.func) in {"xml_text", "str"})
        or (isinstance(value, ast.Name) and _quoted(value.id, source, {"xml_text"}))
        or (isinstance(value, ast.JoinedStr) and all(_figure(part) for part in value.values))
        for value in values
    )


def _figure(part: ast.expr) -> bool:
    """Return whether a part of an f-string is constant or formatted as a number."""
    return isinstance(part, ast.Constant) or (
        isinstance(part, ast.FormattedValue) and part.format_spec is not None
    )


SINKS = {
    "a terminal": Sink(
        PRINTING,
        lambda *_: False,
        "gpuprov.cli.common.terminal: say, show, tell",
        (
            "gpuprov/cli/common/terminal.py",  # and its line above an updated one
            "gpuprov/report/live.py",
            "gpuprov/cli/__init__.py",
            "gpuprov/nccl/allreduce.py",
            "gpuprov/health/command.py",  # on nodes, for systemd's journal
            "gpuprov/health/program.py",
        ),
    ),
    "a shell's line": Sink(
        {"shell"},
        lambda call, _: literal(call.args[0]) and fits(call.args[0]),
        "a literal with {} for each word, outside quotes",
    ),
    "a shell's line, made otherwise": Sink(
        {
            "ShellLine",
            "ShellWords",
            "Printable",
            "XmlText",
            "HtmlText",
            "PathBelow",
            "AnsibleJson",
            "RegexText",
        },
        lambda *_: False,
        "the function of gpuprov.untrusted that makes it",
        (GATES, "gpuprov/doctor/concerns/errors.py"),
    ),
    "a shell on a node": Sink(
        {"session.run", "self._session.run", "as_root", "_insist", "self._output_of", "self._printed"},
        lambda call, source: all(made_of(each, source, QUOTING) for each in call.args),
        "shlex.quote, shlex.join or shell_words for every value",
        ("gpuprov/access/deadman.py", "gpuprov/doctor/look.py", "gpuprov/nccl/shells.py"),
    ),
    "a regular expression": Sink(
        RE,
        lambda call, source: made_of(call.args[0], source, LITERALS),
        "regex",
        (),
    ),
    "SQL": Sink(
        {"database.execute", "database.executemany", "self._database.execute"},
        constant_sql,
        "constants, with ? or :name for each value",
    ),
    "XML": Sink({"ET.Element", "ET.SubElement", "Element", "SubElement"}, xml_values, "xml_text"),
    "HTML": Sink(
        {"Environment", "Markup", "html.escape", "escape"},
        lambda *_: False,
        "page_template, html_text",
        ("gpuprov/report/pages.py", GATES),
    ),
    "an SSH transport": Sink(
        {"paramiko.Transport", "Transport", "paramiko.SSHClient"},
        lambda *_: False,
        "LimitedTransport, which bounds packets, banners, prompts and windows",
    ),
    "a zip archive": Sink(
        {
            f"{archive}.{method}"
            for archive in ("archive", "wheel")
            for method in ("read", "open", "extract", "extractall", "infolist", "namelist")
        },
        lambda *_: False,
        "member_names, which refuses repeated names, and read_member, which unpacks within a limit",
        ("gpuprov/untrusted/archives.py",),
    ),
    "a number": Sink(
        {"float"},
        no_part,
        "gpuprov.untrusted.numbers.finite",
        (
            "gpuprov/accept/rates.py",  # rows of the catalog
            "gpuprov/accept/reference.py",
            "gpuprov/report/progress.py",  # seconds that gpuprov's own callback measured
            "gpuprov/drift/observations/hardware.py",
            "plugins/plugin_utils/leased.py",  # a file of gpuprov
        ),
    ),
    "a log": Sink({"logging.Formatter"}, lambda *_: False, "LogFormatter", (GATES,)),
}


PARSERS = {
    *("json.load", "json.loads", "json.JSONDecoder", "tomllib.load", "tomllib.loads"),
    *("yaml.load", "yaml.load_all", "yaml.safe_load", "yaml.safe_load_all", "yaml.compose", "yaml.parse"),
}
"""Functions that convert a document without limits, and raise more than one kind of error."""
PARSED_DIRECTLY = {
    "gpuprov/untrusted/parsing.py": "the gate",
    "gpuprov/accept/dcgm.py": "the document has other text around it; the same limits are checked before",
    "gpuprov/accept/reference.py": "a file of gpuprov",
    "gpuprov/access/sshd.py": "a file of gpuprov",
    "gpuprov/doctor/concerns/errors.py": "a file of gpuprov",
    "gpuprov/doctor/judge.py": "a file of gpuprov",
    "gpuprov/health/program.py": "files that the role and the program itself wrote, on the node",
    "gpuprov/inventory/schemas.py": "a file of gpuprov",
    "gpuprov/inventory/exports/sbom.py": "a text that the library wrote from the lock",
    "gpuprov/apply/jobs.py": "a file of gpuprov's roles",
    "gpuprov/apply/playbook.py": "events that gpuprov's callback wrote, within its limits",
    "gpuprov/verify/event_log.py": "events that this module wrote",
    "gpuprov/drift/majority.py": "values that this module converted to text",
    "gpuprov/history/store.py": "columns that this module wrote",
    "gpuprov/upgrade/steps.py": "a record of the same upgrade",
    "gpuprov/locking/repository/freshness.py": "a record of gpuprov's cache",
    "gpuprov/locking/repository/rpm.py": "modules.yaml, in the block of `stated_file`",
    "gpuprov/model/marked.py": "YAML with lines, with every error of PyYAML",
    "gpuprov/inventory/imports/files.py": "only the events of YAML, without its values",
}
"""Files that use `PARSERS`, each with the reason."""


def fits(line: ast.expr) -> bool:
    """Return whether a line's placeholders are outside quotes, as the inserted words have their own."""
    if not isinstance(line, ast.Constant):
        return True
    before = [line.value[: found.start()] for found in re.finditer(r"(?<!\{)\{\}", line.value)]
    commands = [re.sub(r"\w'(?=\w)", "", text) for text in before]  # not the one in "the GPU's"
    return all(text.count("'") % 2 == 0 and text.count('"') % 2 == 0 for text in commands)


@cache
def sources() -> tuple[Source, ...]:
    """Return the plugins, and all modules of gpuprov that run on the controller."""
    paths = [*(ROOT / "gpuprov").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")]
    kept = (
        path for path in paths if not {"node", "share", "module_utils"} & set(path.relative_to(ROOT).parts)
    )
    return tuple(Source(str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in sorted(kept))


def wrong(sink: Sink, source: Source) -> Iterator[str]:
    """Yield the calls in a file that pass unchecked text."""
    if source.path in sink.allowed:
        return
    for name in sink.calls & source.calls.keys():
        for node in source.calls[name]:
            if not sink.right(node, source):
                yield f"{source.path}:{node.lineno}: {ast.unparse(node)[:100]}"


@pytest.mark.parametrize("what", SINKS)
def test_a_plain_string_reaches_it_only_through_its_gate(what: str) -> None:
    found = [line for source in sources() for line in wrong(SINKS[what], source)]
    assert not found, f"text for {what} goes through {SINKS[what].gate}:\n" + "\n".join(found)


UNQUOTED = re.compile(r"\b(?:chmod|chown|cp|mv|rm) [^`'\";|]*\Z")
"""The beginning of a command that changes files, up to a value."""


def unquoted(source: Source) -> Iterator[str]:
    """Yield f-strings in which such a command has a value that is neither a constant nor quoted."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.JoinedStr):
            text = ""
            for part in node.values:
                value = part.value if isinstance(part, ast.FormattedValue) else part
                made = name_of(value.func if isinstance(value, ast.Call) else value)
                if UNQUOTED.search(text) and not (made.isupper() or made in QUOTING or literal(value)):
                    yield f"{source.path}:{node.lineno}: {ast.unparse(node)[:100]}"
                text += str(value.value) if isinstance(value, ast.Constant) else "x"


def test_a_command_to_copy_has_quoted_paths() -> None:
    quoted_before = "gpuprov/access/deadman.py"
    found = [line for source in sources() if source.path != quoted_before for line in unquoted(source)]
    assert not found, "use shlex.quote:\n" + "\n".join(found)
    assert list(unquoted(Source("x.py", ast.parse("f'look at it, then `chmod o-w {path}`'"))))


def test_documents_of_others_are_parsed_within_limits() -> None:
    found = {
        source.path
        for source in sources()
        if source.path.startswith("gpuprov/")
        and any(
            isinstance(node, ast.Attribute) and name_of(node) in PARSERS for node in ast.walk(source.tree)
        )
    }
    assert found - set(PARSED_DIRECTLY) == set(), (
        "use read_json, read_toml, read_stated_json or read_document"
    )
    assert set(PARSED_DIRECTLY) - found == set(), "remove the reason"


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("a terminal", "click.echo(said)"),
        ("a terminal", "print(said)"),
        ("a shell's line", "shell(f'rm {path}')"),
        ("a shell's line", "shell('rm ' + path)"),
        ("a shell's line", "shell(\"grep 'x{}'\", path)"),
        ("a shell's line, made otherwise", "ShellLine(f'rm {path}')"),
        ("a shell on a node", "session.run(f'rm {path}')"),
        ("a regular expression", "re.search(rf'^{name}$', text)"),
        ("SQL", "database.execute(f'SELECT {name}')"),
        ("SQL", "database.execute(query)"),
        ("XML", "SubElement(root, 'a', name=host)"),
        ("XML", "ET.Element('a', name=f'{host}')"),
        ("HTML", "Environment(autoescape=False)"),
        ("a number", "float(row['gpu'])"),
        ("a number", "float(row[name])"),
        ("a number", "float(facts.raw('gate')['awake_s'])"),
        ("a number", "float(row.get('seconds') or 0)"),
        ("a log", "logging.Formatter('%(message)s')"),
    ],
)
def test_the_check_sees_a_plain_string(what: str, text: str) -> None:
    assert list(wrong(SINKS[what], Source("x.py", ast.parse(text))))

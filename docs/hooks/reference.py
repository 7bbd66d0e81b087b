"""Generated pages of the site, and pages from files outside docs/."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402

from gpuprov.inventory.schemas import SHAPES, json_schema  # noqa: E402

BESIDE = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE")
MADE = "*`scripts/docs` generates this page from the code.*\n"
Cells = Iterable[str]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and files outside docs/ that pages link to."""
    for name, text in pages().items():
        files.append(File.generated(config, name, content=text))
    for name in BESIDE:
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(
            File.generated(config, name.replace("LICENSE", "LICENSE.txt"), content=_moved(text, "docs/"))
        )
    for path in sorted((ROOT / "examples").rglob("*.yml")):
        files.append(File.generated(config, str(path.relative_to(ROOT)), content=path.read_text("utf-8")))
    examples = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "guides/fleets.md", content=_moved(examples, "", "../examples/")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change links to files outside docs/ into links to their pages in the site."""
    depth = page.file.src_uri.count("/")
    for name in (*BESIDE, "README.md", "examples"):
        site = {"LICENSE": "LICENSE.txt", "README.md": "index.md"}.get(name, name)
        markdown = re.sub(
            rf"\]\((?:\.\./){{{depth + 1}}}{re.escape(name)}", f"]({'../' * depth}{site}", markdown
        )
    return markdown


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Remove click's internal value that mkdocs-click prints for options without a default."""
    return html.replace("<code>Sentinel.UNSET</code>", "")


def _moved(text: str, below: str, instead: str = "") -> str:
    """Return a page with its relative links changed for its place in the site."""
    if below:
        return text.replace(f"]({below}", "](").replace("](examples/README.md", "](guides/fleets.md")
    return re.sub(r"\]\((?!http|#|/)", f"]({instead}", text)


def pages() -> dict[str, str]:
    """Return path in the site → Markdown of the generated pages."""
    return {
        "reference/fleet.md": model(
            "fleet",
            "fleet.yml",
            "A fleet states what is wanted: hosts, profiles, stacks and settings.",
            "examples/h100-infiniband/fleet.yml",
        ),
        "reference/profile.md": model(
            "profile",
            "Profiles",
            "A profile states what one kind of server is and should be.",
            "inventory/profiles/hgx-h100-8.yml",
        ),
        "reference/lock.md": model(
            "lock", "The lock", "The lock states the exact meaning of a fleet. `gpuprov lock` writes it."
        ),
        "reference/commands.md": commands(),
        "reference/exit-codes.md": exit_codes(),
        "reference/checks.md": checks(),
        "reference/rules.md": rules(),
        "reference/faults.md": faults(),
        "reference/roles.md": roles(),
        "reference/systems.md": systems(),
        "reference/json.md": documents(),
        "reference/profiles.md": profiles(),
    }


def table(head: Cells, rows: Iterable[Cells]) -> str:
    """Return a table in Markdown."""
    lines = [list(head), ["---"] * len(list(head)), *(list(row) for row in rows)]
    return "".join(f"| {' | '.join(_cell(each) for each in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    """Return text for a cell of a Markdown table: on one line, with `|` escaped."""
    return re.sub(r"\s+", " ", str(text)).strip().replace("|", "\\|")


def model(what: str, title: str, about: str, example: str = "") -> str:
    """Return the page of a file's keys: a whole file, then a table for each record, in the order of writing."""
    schema = json_schema(what)
    parts = [
        f"# {title}\n\n{about} `gpuprov inventory schema {what}` prints the JSON Schema for editors.\n\n{MADE}\n"
    ]
    if example:
        text = (ROOT / example).read_text(encoding="utf-8")
        parts.append(f"## A whole file\n\n```yaml\n{text}```\n")
    for name in [SHAPES[what].__name__, *dict.fromkeys(_records_of(schema, schema["$defs"]))]:
        record = schema["$defs"].get(name, schema)
        record = next((each for each in record.get("anyOf", []) if "properties" in each), record)
        if "properties" not in record:
            continue
        heading = f"The file {{#{name.lower()}}}" if record is schema else f"{name} {{#{name.lower()}}}"
        said = record.get("description", "").split("\n\nAttributes:")[0]
        needed = set(record.get("required", ()))
        rows = [_key(key, each, key in needed) for key, each in record["properties"].items()]
        listed = table(["key", "meaning", "value"], rows)
        parts.append(f"## {heading}\n\n{said if record is not schema else ''}\n\n{listed}\n")
    return "\n".join(parts)


def _records_of(shape: Any, records: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the records that a schema refers to, each followed by those that it refers to
    itself.
    """
    if isinstance(shape, list):
        for each in shape:
            yield from _records_of(each, records)
    elif isinstance(shape, dict):
        if "$ref" in shape:
            name = shape["$ref"].rpartition("/")[2]
            yield name
            yield from _records_of(records[name], records)
        for key, each in shape.items():
            if key != "$defs":
                yield from _records_of(each, records)


def _key(key: str, each: dict[str, Any], needed: bool) -> list[str]:
    """Return the cells of a key's row: name, description with examples, type with default."""
    shown = " ".join(f"`{json.dumps(one, ensure_ascii=False)}`" for one in each.get("examples", []))
    default = "required" if needed else f"default: {_default(each)}"
    return [
        f"`{key}`",
        each["description"] + (f"<br>Example: {shown}" if shown else ""),
        f"{_kind(each)}<br>{default}",
    ]


def _default(each: dict[str, Any]) -> str:
    """Return a default as code, `not set` for None or without one, `as below` for a long one."""
    if "default" not in each or each["default"] is None:
        return "not set"
    shown = json.dumps(each["default"], ensure_ascii=False)
    return f"`{shown}`" if len(shown) < 60 else "as below"


def _kind(each: dict[str, Any]) -> str:
    """Return the type of a value with its bounds, or a link to its record."""
    if "$ref" in each:
        name = each["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in each:
        kinds = [_kind(one) for one in each["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in each:
        return ", ".join(f"`{value}`" for value in each["enum"])
    if "const" in each:
        return f"`{each['const']}`"
    kind = each.get("type", "anything")
    if kind == "array":
        inner = each.get("items") or {"anyOf": each.get("prefixItems", [{}])}
        return f"list of {_kind(inner)}"
    if kind == "object":
        inner = each.get("additionalProperties") or next(iter(each.get("patternProperties", {}).values()), {})
        return f"name → {_kind(inner)}" if isinstance(inner, dict) else "mapping"
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = [f"{sign} {each[key]}" for key, sign in bounds.items() if key in each]
    return " ".join([{"integer": "whole number", "string": "text"}.get(kind, kind), *limits])


def commands() -> str:
    """Return the page of all commands with their options, for mkdocs-click."""
    return (
        "# Commands\n\n"
        "Every command has the option `-h`. Node arguments are names, ranges (`gpu[01-64]`) or groups.\n\n"
        "::: mkdocs-click\n    :module: gpuprov.cli.common.group\n    :command: gpuprov\n"
        "    :prog_name: gpuprov\n    :depth: 1\n    :style: table\n    :list_subcommands: true\n"
    )


EXITS = {
    "OK": "Success; nothing differs.",
    "FAILED": "A node or a check failed. The output names the node and the task or check.",
    "USAGE": "An error on the command line or in a file. The message names file and line, and the expected value.",
    "DRIFT": "Something differs from the lock. `gpuprov plan` shows what apply would change.",
    "UNREACHABLE": "Some nodes could not be reached. The line of each contains the reason, and where its address is stated.",
    "REFUSED": "The stack is not possible, or a gate is closed. The message names the rule in brackets: see [Rules](rules.md).",
    "INTERRUPTED": "Ctrl-C, or a signal.",
}


def exit_codes() -> str:
    """Return the page of exit codes and their precedence."""
    from gpuprov.errors import Exit, worst

    rows = [[f"{int(code)}", code.name.lower(), EXITS[code.name]] for code in Exit]
    order = sorted(
        (code for code in Exit if code),
        key=lambda code: [worst(code, each) == code for each in Exit].count(False),
    )
    said = ", ".join(str(int(code)) for code in order)
    return f"# Exit codes\n\n{MADE}\n{table(['code', 'name', 'meaning'], rows)}\nIf several apply, the first in this order is used: {said}.\n"


def checks() -> str:
    """Return the page of all checks: their roles, and whether drift or verify runs them."""
    from gpuprov.drift.observations import OBSERVERS

    seen: dict[str, tuple[str, str]] = {}
    for path in sorted((ROOT / "gpuprov/verify/suite").glob("test_*.py")):
        for function in _functions(path):
            for check, *_ in _marks(function):
                words = function.name.removeprefix("test_").replace("_", " ")
                seen[check] = (words, path.stem.removeprefix("test_"))
    rows = []
    for check in sorted({*seen, *OBSERVERS}):
        words, of = seen.get(check, ("", "packages" if ".packages" in check else ""))
        who = " and ".join(
            [*(["drift"] if check in OBSERVERS else []), *(["verify"] if check in seen else [])]
        )
        rows.append([f"`{check}`", words, of, who or "drift"])
    about = (
        "A check has the same id in `plan`, `drift`, `verify`, reports and metrics. Drift reads it from the facts of one "
        "probe, verify with testinfra's commands. If both have a check and only one reports a fault, that is a bug. Checks "
        "that only verify has need a command on the node.\n"
    )
    return f"# Checks\n\n{about}\n{MADE}\n{table(['check', 'condition', 'role', 'in'], rows)}"


def _functions(path: Path) -> Iterator[ast.FunctionDef]:
    """Yield all functions of a Python file, also nested ones, from its syntax tree."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef))


def _marks(function: ast.FunctionDef) -> Iterator[list[str]]:
    """Yield the arguments of each `pytest.mark.check` decorator; an argument that is no constant is empty."""
    for each in function.decorator_list:
        if isinstance(each, ast.Call) and ast.unparse(each.func) == "pytest.mark.check":
            yield [arg.value if isinstance(arg, ast.Constant) else "" for arg in each.args]


def rules() -> str:
    """Return the page of the resolver's rules and the changes that satisfy them, and of other refusals."""
    from gpuprov.locking.resolve.checks.mends import documented, mends

    found: dict[str, str] = {}
    levels: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "gpuprov/locking/resolve/checks").glob("*.py")):
        functions = list(_functions(path))
        for function in functions:
            for level, rule in _ruled(function):
                found.setdefault(rule, _said(function, functions))
                levels[rule].add(level)
    refused = [rule for rule in sorted(found) if "violation" in levels[rule]]
    warned = [rule for rule in sorted(found) if "violation" not in levels[rule]]
    rows = [
        [f"`{rule}`", found[rule], ", ".join(sorted(mends(rule))) if documented(rule) else ""]
        for rule in refused
    ]
    return (
        "# Rules and refusals\n\nIf no stack is possible, `gpuprov lock` and `gpuprov resolve` end with exit code 5. The message names the "
        "rule in brackets, and which of the changes in the last column would satisfy it.\n\n"
        f"{MADE}\n## Rules that refuse a stack\n\n{table(['rule', 'condition', 'change one of'], rows)}\n"
        f"## Rules that only warn\n\n{table(['rule', 'about'], ([f'`{rule}`', found[rule]] for rule in warned))}\n"
        + preflight()
        + gate()
    )


def _ruled(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Yield kind (`violation`, `warning`, `reason`) and rule of each such call in a function whose rule is a
    constant.
    """
    for each in ast.walk(function):
        if isinstance(each, ast.Call) and ast.unparse(each.func) in ("violation", "warning", "reason"):
            named = each.args[1] if len(each.args) > 1 else None
            if isinstance(named, ast.Constant):
                yield ast.unparse(each.func), str(named.value)


def _said(function: ast.FunctionDef, functions: list[ast.FunctionDef]) -> str:
    """Return the first paragraph of a function's docstring, or of that of its caller."""
    if own := ast.get_docstring(function):
        return own.split("\n\n")[0]
    for other in functions:
        if other is not function and any(
            isinstance(each, ast.Name) and each.id == function.name for each in ast.walk(other)
        ):
            return _said(other, [each for each in functions if each is not function])
    return ""


CALLS = {
    "difference": "a difference from the old lock, as `gpuprov drift` prints it",
    "str": "the reason why the node did not answer",
    "lease": "leased by …, run …, since …, until …",
}
"""Functions and records in the gate's messages, and descriptions of their text."""


def gate() -> str:
    """Return the section of findings that stop an upgrade."""
    rows: list[list[str]] = []
    for function in _functions(ROOT / "gpuprov/upgrade/gate.py"):
        for each in ast.walk(function):
            if isinstance(each, ast.Call) and ast.unparse(each.func) == "Finding" and len(each.args) == 3:
                level, kind, text = each.args
                row = (
                    [f"`{ast.literal_eval(kind)}`", _in_words(text, function)]
                    if "bad" in ast.unparse(level)
                    else []
                )
                rows += [row] if row and row not in rows else []
    return f"\n## Findings that stop an upgrade\n\n{table(['gate', 'message'], sorted(rows))}"


def _in_words(text: ast.expr, function: ast.FunctionDef) -> str:
    """Return the text of a message's expression, with … for inserted values."""
    if isinstance(text, ast.Name):
        given = {
            target.id: each.value
            for each in ast.walk(function)
            if isinstance(each, ast.Assign)
            for target in each.targets
            if isinstance(target, ast.Name)
        }
        return _in_words(given[text.id], function)
    if isinstance(text, ast.Call):
        return CALLS[ast.unparse(text.func)]
    if ast.unparse(text).startswith("f'{lease}"):
        return CALLS["lease"]
    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
    return "".join(
        str(part.value) if isinstance(part, ast.Constant) else _filled(part, function) for part in parts
    )


def _filled(part: ast.expr, function: ast.FunctionDef) -> str:
    """Return … for a value, or the text of a variable that holds the start of the message."""
    value = part.value if isinstance(part, ast.FormattedValue) else part
    return _in_words(value, function) if isinstance(value, ast.Name) and value.id == "said" else "…"


def faults() -> str:
    """Return the page of the doctor's faults."""
    data = json.loads((ROOT / "gpuprov/doctor/data/faults.json").read_text(encoding="utf-8"))
    rows = (
        [f"`{key}`", text if isinstance(text, str) else json.dumps(text)]
        for key, text in data["faults"].items()
    )
    listed = f"# Faults known to the doctor\n\n`gpuprov doctor` finds these faults in the readings of a machine.\n\n{MADE}\n{table(['fault', 'description'], rows)}"
    return f"{listed}\n## Classes of the rules\n\n{_classes()}"


def _classes() -> str:
    """Return the table of rules whose faults have other classes than their severity gives, and the default."""
    from gpuprov.doctor.fault import CONSEQUENCES
    from gpuprov.doctor.judge import rules

    rows = [["all others", *CONSEQUENCES.values()]]
    rows += [
        [f"`{rule.name}`", *(rule.health[severity] for severity in CONSEQUENCES)]
        for rule in rules()
        if dict(rule.health) != dict(CONSEQUENCES)
    ]
    about = (
        "A fault's class is its consequence for a node with the role health. `errors.xid` and `errors.recovery` "
        "also have the class `reset` if the driver or NVIDIA's catalogue asks for a reset of the GPU.\n\n"
    )
    return about + table(["rule", *CONSEQUENCES], rows)


def roles() -> str:
    """Return the page of all roles with their variables."""
    from gpuprov.roles import ROLES

    parts = [f"# Roles\n\nThe roles are listed in the order in which apply runs them.\n\n{MADE}"]
    for role in ROLES:
        path = ROOT / "roles" / role.name / "meta/argument_specs.yml"
        if not path.exists():
            continue
        main = yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]["main"]
        rows = [
            [f"`{name}`", _prose(option.get("description", "")), option.get("type", "str"), _json(option)]
            for name, option in main.get("options", {}).items()
        ]
        settings = ", ".join(f"[`{each}`](fleet.md#settings)" for each in role.settings) or "none"
        guarded = "\n\nIt runs only while the dead man's switch is armed." if role.guarded else ""
        said = f"{_prose(main.get('description', ''))}{guarded}\n\nSettings: {settings}."
        parts.append(
            f"## {role.name}\n\n**{main['short_description']}.** {said}\n\n{table(['variable', 'meaning', 'type', 'default'], rows)}"
        )
    return "\n\n".join(parts)


SYSTEMS = {
    "package manager": "manager",
    "holds": "holds",
    "initramfs": "initramfs",
    "next kernel": "next_kernel",
    "sshd": "sshd_unit",
    "firewall": "firewall",
    "access control": "access_control",
    "Docker": "docker",
    "Ansible's Python": "python",
    "first logins": "logins",
}
"""Column of the page of systems → field of the table of platforms."""


def systems() -> str:
    """Return the page of systems: each release of the catalog with its row of the table of platforms."""
    from gpuprov.catalog import load
    from gpuprov.catalog.platforms import platform, platforms

    rows = []
    for name, system in load().systems.items():
        row = platform(name)
        values = (getattr(row, field) for field in SYSTEMS.values())
        cells = [", ".join(each) if isinstance(each, tuple) else each for each in values]
        roles = "yes" if row.id == name and row.tested else "no: preflight refuses it"
        rows.append([f"`{name}`", roles, "yes" if system.streams else "no", *(each or "" for each in cells)])
    notes = [[f"`{row.id}`", row.note] for row in platforms() if row.note]
    beside = [
        [f"`{row.id}`", each.package, each.repository, each.needs, f"`{each.enable}`"]
        for row in platforms()
        for each in row.beside
        if row.of is None or each not in platform(row.of).beside
    ]
    return (
        "# Systems\n\nOne table, `platforms` in `gpuprov/catalog/data/systems.json`, states how each system works. A release that the table "
        "does not name works as its system does; an empty cell is not known. `gpuprov lock` accepts every system of this page, and refuses "
        "any other with the nearest that works. The roles accept only those on which node tests have shown them.\n\n"
        f"{MADE}\n{table(['system', 'roles', 'module streams', *SYSTEMS], rows)}\n"
        f"## Notes\n\n{table(['system', 'note'], notes)}\n"
        "## Repositories that must be enabled first\n\nThe driver needs these packages. `gpuprov lock` names them, and the role preflight refuses "
        "a node whose repositories lack one, before anything is changed.\n\n"
        f"{table(['system', 'package', 'repository', 'which needs', 'commands'], beside)}"
    )


def _prose(said: str | list[str]) -> str:
    """Return a text, or several as one."""
    return said if isinstance(said, str) else " ".join(said)


def _json(option: dict[str, Any]) -> str:
    """Return the default of a role's option as JSON in code, or `required`."""
    return "required" if option.get("required") else f"`{json.dumps(option.get('default'))}`"


def documents() -> str:
    """Return the page of the JSON documents that commands print and store."""
    pattern = re.compile(r'"(gpuprov\.[a-z_.-]+/\d+)"')
    found: dict[str, set[str]] = defaultdict(set)
    for path in [*sorted((ROOT / "gpuprov").rglob("*.py")), ROOT / "lab/gpuprov_lab/cli.py"]:
        for name in pattern.findall(path.read_text(encoding="utf-8")):
            found[name].add(str(path.relative_to(ROOT)))
    rows = (
        [f"`{name}`", ", ".join(f"`{path}`" for path in sorted(paths))]
        for name, paths in sorted(found.items())
    )
    return (
        "# JSON documents\n\nWith `-o json` a command prints one document to stdout; its key `schema` names the format. Other messages "
        "go to stderr. The number after the slash changes if a key is removed or changes its meaning; keys may be added.\n\n"
        "Schemas of the files that you write: `gpuprov inventory schema fleet`, `profile`, `lock`.\n\n"
        f"{MADE}\n{table(['schema', 'source file'], rows)}"
    )


def profiles() -> str:
    """Return the page of the shipped profiles."""
    from gpuprov.model.profile import shipped_profiles

    rows = (
        [f"`{name}`", each.description, f"`{each.extends}`" if each.extends else ""]
        for name, each in shipped_profiles()
    )
    return f"# Shipped profiles\n\n{MADE}\n{table(['profile', 'description', 'extends'], rows)}"


def _sentences(template: str) -> list[str]:
    """Return the sentence of a template with … for inserted values, or all sentences that it selects from."""
    if re.fullmatch(r"\{\{.*\}\}", template.strip(), re.DOTALL) and template.count("{{") == 1:
        return [" ".join(words.split()) for words in re.findall(r"'([^']+)'", template)]
    return [re.sub(r"\{\{.*?\}\}", "…", template, flags=re.DOTALL)]


def preflight() -> str:
    """Return the section of reasons for which the role preflight refuses a node."""
    found = yaml.safe_load((ROOT / "roles/preflight/vars/main.yml").read_text(encoding="utf-8"))
    said = [words for each in found["__preflight_objections"] for words in _sentences(each["says"])]
    rows = ([seen, do] for seen, _, do in (each.partition(";") for each in said))
    return f"\n## Reasons to refuse a node before apply\n\n{table(['message', 'action'], rows)}"

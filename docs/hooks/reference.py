"""Pages of the site that are made from the code, and files of the repository that stand outside docs/."""

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
MADE = "*This page is made from the code by `scripts/docs`.*\n"
Cells = Iterable[str]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, and files beside docs/ that pages link to."""
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
    """Links to files that stand above docs/ in the repository, and beside its pages in the site."""
    depth = page.file.src_uri.count("/")
    for name in (*BESIDE, "README.md", "examples"):
        site = {"LICENSE": "LICENSE.txt", "README.md": "index.md"}.get(name, name)
        markdown = re.sub(
            rf"\]\((?:\.\./){{{depth + 1}}}{re.escape(name)}", f"]({'../' * depth}{site}", markdown
        )
    return markdown


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Options without a default say so: mkdocs-click prints click's own word for it."""
    return html.replace("<code>Sentinel.UNSET</code>", "")


def _moved(text: str, below: str, instead: str = "") -> str:
    """A page whose links go from elsewhere."""
    if below:
        return text.replace(f"]({below}", "](").replace("](examples/README.md", "](guides/fleets.md")
    return re.sub(r"\]\((?!http|#|/)", f"]({instead}", text)


def pages() -> dict[str, str]:
    """Path in the site → Markdown."""
    return {
        "reference/fleet.md": model("fleet", "fleet.yml", "What is wanted, in a person's words."),
        "reference/profile.md": model("profile", "Profiles", "What one kind of server is and must be."),
        "reference/lock.md": model(
            "lock", "The lock", "The exact meaning of a fleet; written by `gpuprov lock`."
        ),
        "reference/commands.md": commands(),
        "reference/exit-codes.md": exit_codes(),
        "reference/checks.md": checks(),
        "reference/rules.md": rules(),
        "reference/faults.md": faults(),
        "reference/roles.md": roles(),
        "reference/json.md": documents(),
        "reference/profiles.md": profiles(),
    }


def table(head: Cells, rows: Iterable[Cells]) -> str:
    """A table of Markdown."""
    lines = [list(head), ["---"] * len(list(head)), *(list(row) for row in rows)]
    return "".join(f"| {' | '.join(_cell(each) for each in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", str(text)).strip().replace("|", "\\|")


def model(what: str, title: str, about: str) -> str:
    """Every key of a file, a table for each record."""
    schema = json_schema(what)
    records = {SHAPES[what].__name__: schema, **schema["$defs"]}
    parts = [
        f"# {title}\n\n{about} `gpuprov inventory schema {what}` prints the JSON Schema for editors.\n\n{MADE}\n"
    ]
    for name, record in records.items():
        record = next((each for each in record.get("anyOf", []) if "properties" in each), record)
        if "properties" not in record:
            continue
        heading = f"The file {{#{name.lower()}}}" if record is schema else f"{name} {{#{name.lower()}}}"
        said = record.get("description", "").split("\n\nAttributes:")[0]
        needed = set(record.get("required", ()))
        rows = [_key(key, each, key in needed, what) for key, each in record["properties"].items()]
        head = ["key", "meaning", "value", "default"] + (["example"] if what != "lock" else [])
        parts.append(f"## {heading}\n\n{said if record is not schema else ''}\n\n{table(head, rows)}\n")
    return "\n".join(parts)


def _key(key: str, each: dict[str, Any], needed: bool, what: str) -> list[str]:
    default = "required" if needed else _default(each)
    row = [f"`{key}`", each["description"], _kind(each), default]
    if what != "lock":
        row.append(
            " ".join(f"`{json.dumps(shown, ensure_ascii=False)}`" for shown in each.get("examples", []))
        )
    return row


def _default(each: dict[str, Any]) -> str:
    if "default" not in each or each["default"] is None:
        return "not set"
    shown = json.dumps(each["default"], ensure_ascii=False)
    return f"`{shown}`" if len(shown) < 60 else "as below"


def _kind(each: dict[str, Any]) -> str:
    """What may stand there: a type with its bounds, or a record."""
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
    """Every verb with its options, by mkdocs-click."""
    return (
        "# Commands\n\n"
        "Every verb takes `-h`. Node arguments are names, ranges (`gpu[01-64]`) or groups.\n\n"
        "::: mkdocs-click\n    :module: gpuprov.cli.common.group\n    :command: gpuprov\n"
        "    :prog_name: gpuprov\n    :depth: 1\n    :style: table\n    :list_subcommands: true\n"
    )


EXITS = {
    "OK": "Done; nothing differs.",
    "FAILED": "A node failed, or a check did. The lines before say which node, which task or check.",
    "USAGE": "A mistake on the command line or in a file. The message names file and line, and what was expected.",
    "DRIFT": "Something differs from the lock. `gpuprov plan` says what apply would do about it.",
    "UNREACHABLE": "Some nodes could not be reached. The line of each says why, and where its address is stated.",
    "REFUSED": "No such stack can work, or a gate is shut. The message names the rule in brackets: see [Rules](rules.md).",
    "INTERRUPTED": "Ctrl-C, or a signal.",
}


def exit_codes() -> str:
    """The exit codes, and which one wins."""
    from gpuprov.errors import Exit, worst

    rows = [[f"{int(code)}", code.name.lower(), EXITS[code.name]] for code in Exit]
    order = sorted(
        (code for code in Exit if code),
        key=lambda code: [worst(code, each) == code for each in Exit].count(False),
    )
    said = ", ".join(str(int(code)) for code in order)
    return f"# Exit codes\n\n{MADE}\n{table(['code', 'name', 'means'], rows)}\nWhen several hold, the first of these wins: {said}.\n"


def checks() -> str:
    """Every check of the lock, who looks, and how it is mended."""
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
        "A check has one id everywhere: in `plan`, `drift`, `verify`, reports and metrics. Drift sees it in the facts of one "
        "probe, verify by testinfra's own commands; where both look, a fault that only one sees is a bug. Checks of one "
        "witness alone need a command on the node.\n"
    )
    return f"# Checks\n\n{about}\n{MADE}\n{table(['check', 'what must be so', 'role', 'seen by'], rows)}"


def _functions(path: Path) -> Iterator[ast.FunctionDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef))


def _marks(function: ast.FunctionDef) -> Iterator[list[str]]:
    for each in function.decorator_list:
        if isinstance(each, ast.Call) and ast.unparse(each.func) == "pytest.mark.check":
            yield [arg.value if isinstance(arg, ast.Constant) else "" for arg in each.args]


def rules() -> str:
    """Rules of the resolver: what each says, and what mends a refusal."""
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
    told = [rule for rule in sorted(found) if "violation" not in levels[rule]]
    rows = [
        [f"`{rule}`", found[rule], ", ".join(sorted(mends(rule))) if documented(rule) else ""]
        for rule in refused
    ]
    return (
        "# Rules and refusals\n\nWhere no stack can work, `gpuprov lock` and `gpuprov resolve` end with exit code 5 and name the rule in "
        "brackets, and what would work. Any one change of the last column may mend it; the message says which does.\n\n"
        f"{MADE}\n## What refuses\n\n{table(['rule', 'what must hold', 'change one of'], rows)}\n"
        f"## What only warns\n\n{table(['rule', 'about'], ([f'`{rule}`', found[rule]] for rule in told))}\n"
        + preflight()
        + gate()
    )


def _ruled(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    for each in ast.walk(function):
        if isinstance(each, ast.Call) and ast.unparse(each.func) in ("violation", "warning", "reason"):
            named = each.args[1] if len(each.args) > 1 else None
            if isinstance(named, ast.Constant):
                yield ast.unparse(each.func), str(named.value)


def _said(function: ast.FunctionDef, functions: list[ast.FunctionDef]) -> str:
    """A function's own words, or those of what calls it."""
    if own := ast.get_docstring(function):
        return own.split("\n\n")[0]
    for other in functions:
        if other is not function and any(
            isinstance(each, ast.Name) and each.id == function.name for each in ast.walk(other)
        ):
            return _said(other, [each for each in functions if each is not function])
    return ""


CALLS = {
    "difference": "what differs from the old lock, as `gpuprov drift` says it",
    "str": "why the node did not answer",
    "lease": "leased by …, run …, since …, until …",
}
"""What the gate says by a function or a record of its own, and what that is."""


def gate() -> str:
    """What shuts the gate of an upgrade."""
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
    return f"\n## What shuts the gate of an upgrade\n\n{table(['gate', 'as it is said'], sorted(rows))}"


def _in_words(text: ast.expr, function: ast.FunctionDef) -> str:
    """What an expression says to a person, with … for what is filled in."""
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
    """… for a value, and the words of a sentence that was begun before."""
    value = part.value if isinstance(part, ast.FormattedValue) else part
    return _in_words(value, function) if isinstance(value, ast.Name) and value.id == "said" else "…"


def faults() -> str:
    """What the doctor knows."""
    data = json.loads((ROOT / "gpuprov/doctor/data/faults.json").read_text(encoding="utf-8"))
    rows = (
        [f"`{key}`", text if isinstance(text, str) else json.dumps(text)]
        for key, text in data["faults"].items()
    )
    return f"# Faults that the doctor knows\n\n`gpuprov doctor` finds these by what a machine says of itself.\n\n{MADE}\n{table(['fault', 'what it is'], rows)}"


def roles() -> str:
    """Every role: what it does, and its variables."""
    from gpuprov.roles import ROLES

    parts = [f"# Roles\n\nIn the order in which a node is brought to its lock.\n\n{MADE}"]
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
        guarded = "\n\nRuns only while the dead man's switch is armed." if role.guarded else ""
        said = f"{_prose(main.get('description', ''))}{guarded}\n\nSettings: {settings}."
        parts.append(
            f"## {role.name}\n\n**{main['short_description']}.** {said}\n\n{table(['variable', 'meaning', 'type', 'default'], rows)}"
        )
    return "\n\n".join(parts)


def _prose(said: str | list[str]) -> str:
    return said if isinstance(said, str) else " ".join(said)


def _json(option: dict[str, Any]) -> str:
    return "required" if option.get("required") else f"`{json.dumps(option.get('default'))}`"


def documents() -> str:
    """The JSON documents that verbs print and keep."""
    pattern = re.compile(r'"(gpuprov\.[a-z_.-]+/\d+)"')
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "gpuprov").rglob("*.py")):
        if "lab" not in path.relative_to(ROOT).parts:
            for name in pattern.findall(path.read_text(encoding="utf-8")):
                found[name].add(str(path.relative_to(ROOT)))
    rows = (
        [f"`{name}`", ", ".join(f"`{path}`" for path in sorted(paths))]
        for name, paths in sorted(found.items())
    )
    return (
        "# JSON documents\n\nWith `-o json` a verb prints one document on stdout whose `schema` says what it is; people's text is on "
        "stderr. The number after the slash changes when a key goes or changes its meaning; keys may be added.\n\n"
        "Schemas of the files that people write: `gpuprov inventory schema fleet`, `profile`, `lock`.\n\n"
        f"{MADE}\n{table(['schema', 'where it is made'], rows)}"
    )


def profiles() -> str:
    """The profiles that are shipped."""
    from gpuprov.model.profile import shipped_profiles

    rows = (
        [f"`{name}`", each.description, f"`{each.extends}`" if each.extends else ""]
        for name, each in shipped_profiles()
    )
    return f"# Profiles that are shipped\n\n{MADE}\n{table(['profile', 'what it is', 'extends'], rows)}"


def _sentences(template: str) -> list[str]:
    """A sentence with … for what is filled in, or those between which a template chooses."""
    if re.fullmatch(r"\{\{.*\}\}", template.strip(), re.DOTALL) and template.count("{{") == 1:
        return [" ".join(words.split()) for words in re.findall(r"'([^']+)'", template)]
    return [re.sub(r"\{\{.*?\}\}", "…", template, flags=re.DOTALL)]


def preflight() -> str:
    """What refuses a node before anything is changed on it."""
    found = yaml.safe_load((ROOT / "roles/preflight/vars/main.yml").read_text(encoding="utf-8"))
    said = [words for each in found["__preflight_objections"] for words in _sentences(each["says"])]
    rows = ([seen, do] for seen, _, do in (each.partition(";") for each in said))
    return (
        f"\n## What refuses a node before apply changes it\n\n{table(['as it is said', 'what to do'], rows)}"
    )

"""Generator of each role's README.md and meta/main.yml from its meta/argument_specs.yml."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import yaml

from tests import ROOT
from tests.systems import CODENAMES, OF_DNF

TEMPLATE = Path(__file__).with_name("role_readme.md.j2")
MARKUP = re.compile(r"\b(?:C|M|O|V|E|P|RV)\(([^()]*(?:\([^()]*\))?[^()]*)\)")
"""Ansible's markup for code in descriptions."""
REQUIRED = "required"


class _Dumper(yaml.SafeDumper):
    """YAML writer that indents list items below their key, as ansible-lint requires."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent lists below their key too, as ansible-lint requires."""
        return super().increase_indent(flow, False)


def pages() -> dict[Path, str]:
    """Return file → text for all roles."""
    found: dict[Path, str] = {}
    for role in sorted(ROOT.glob("roles/*")):
        found[role / "README.md"] = readme(role)
        found[role / "meta/main.yml"] = meta(role)
    return found


def readme(role: Path) -> str:
    """Return a role's README.md: description, variables, and a playbook that uses the role."""
    entries = {
        name: {
            "title": plain(entry["short_description"]),
            "about": [plain(line) for line in lines(entry["description"])],
            "rows": list(rows(entry.get("options", {}))),
        }
        for name, entry in entries_of(role).items()
    }
    needed = [name for name, option in options_of(role).items() if option.get(REQUIRED)]
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)  # noqa: S701
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(role=role.name, entries=entries, needed=needed, runs="main" in entries) + "\n"


def meta(role: Path) -> str:
    """Return a role's meta/main.yml, which Galaxy shows."""
    [title, *_] = (entry["short_description"] for entry in entries_of(role).values())
    info = {
        "author": "gpuprov",
        "description": plain(title),
        "license": read(ROOT / "pyproject.toml", r'^license = "(.+)"$'),
        "min_ansible_version": read(ROOT / "meta/runtime.yml", r">=([\d.]+)\.0"),
        "platforms": platforms(),
        "galaxy_tags": ["nvidia", "gpu"],
    }
    text = yaml.dump({"galaxy_info": info, "dependencies": []}, Dumper=_Dumper, sort_keys=False, width=110)
    return "---\n# Written by `scripts/collection pages`.\n" + text


GALAXY = {"rhel": "EL", "amzn": "Amazon Linux"}
"""Family of systems with dnf → its name in Galaxy."""


def platforms() -> list[dict[str, Any]]:
    """Return the systems that the role preflight accepts, as Galaxy names them."""
    found: dict[str, list[str]] = {}
    for system, codename in CODENAMES.items():
        found.setdefault(system.rstrip("0123456789.").capitalize(), []).append(codename)
    for system in OF_DNF:
        family = system.rstrip("0123456789")
        found.setdefault(GALAXY[family], []).append(system.removeprefix(family))
    return [{"name": name, "versions": words} for name, words in found.items()]


def rows(options: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Yield name, type, default and meaning of each variable and of its nested keys."""
    for name, option in options.items():
        kind = option["type"] + (f" of {option['elements']}" if "elements" in option else "")
        about = [plain(line) for line in lines(option["description"])]
        if "choices" in option:
            about.append("One of " + ", ".join(f"`{json.dumps(each)}`" for each in option["choices"]) + ".")
        default = "null" if "default" not in option else json.dumps(option["default"])
        shown = REQUIRED if option.get(REQUIRED) else f"`{default}`"
        meaning = " ".join(about).replace("|", "\\|")
        yield prefix + name, kind, shown, meaning
        yield from rows(option.get("options", {}), f"{prefix}{name}[].")


def entries_of(role: Path) -> dict[str, Any]:
    """Return entry point → its specification."""
    text = (role / "meta/argument_specs.yml").read_text(encoding="utf-8")
    entries: dict[str, Any] = yaml.safe_load(text)["argument_specs"]
    return entries


def options_of(role: Path) -> dict[str, Any]:
    """Return the variables of a role's entry point `main`."""
    options: dict[str, Any] = entries_of(role).get("main", {}).get("options", {})
    return options


def lines(description: str | list[str]) -> list[str]:
    """Return a description's paragraphs."""
    return [description] if isinstance(description, str) else description


def plain(text: str) -> str:
    """Return the text with Ansible's markup for code replaced by Markdown's."""
    return MARKUP.sub(r"`\1`", text.strip())


def read(path: Path, pattern: str) -> str:
    """Return the first group of a pattern in a file."""
    found = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    assert found, path
    return found[1]

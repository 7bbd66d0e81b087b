"""The recipes of CONTRIBUTING: the files that they name are there, and the example was made by them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuprov.roles import ROLES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SETTING, ROLE = "profiling_counters", "profiling_tools"
CHECK, VARIABLE = "profiling.counters", "profiling_tools_counters"
PATH = re.compile(r"`((?:gpuprov|roles|tests|docs|playbooks|scripts)/[\w./-]*)")


def recipe(title: str) -> list[str]:
    """The numbered steps of a section."""
    section = re.search(rf"^## {title}\n(.*?)(?=^## )", TEXT, re.MULTILINE | re.DOTALL)
    assert section, title
    return re.split(r"^\d+\. ", section[1], flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("role", [role.name for role in ROLES if role.name not in ("hardware", "cudnn")])
def test_every_file_that_a_recipe_names_is_there_for_every_role(role: str) -> None:
    steps = [step for title in ("Add a setting", "Add a fact") for step in recipe(title)]
    named = {path.replace("ROLE", role) for step in steps for path in PATH.findall(step)}
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_the_example_setting_is_in_every_file_of_its_recipe() -> None:
    for number, step in enumerate(recipe("Add a setting"), start=1):
        for path in PATH.findall(step.partition(":")[0]):
            named = ROOT / path.replace("ROLE", ROLE)
            files = sorted(named.glob("*.py")) if named.is_dir() else [named]
            text = "".join(each.read_text(encoding="utf-8") for each in files)
            assert any(word in text for word in (SETTING, CHECK, VARIABLE, "profiling.*")), (number, path)


def test_paths_outside_the_recipes_are_there_too() -> None:
    for page in ("CONTRIBUTING.md", "docs/ARCHITECTURE.md", "README.md"):
        for path in PATH.findall((ROOT / page).read_text(encoding="utf-8")):
            if "ROLE" not in path:
                assert (ROOT / path).exists(), (page, path)

"""Recipes of CONTRIBUTING: the files that they name exist, and the example was added by following them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

from gpuprov.drift.observations import OBSERVERS
from gpuprov.roles import ROLES
from gpuprov.roles.components import ABSENT_CHECKS, PACKAGE_CHECKS, UNPACKAGED_CHECKS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SETTING, ROLE = "profiling_counters", "profiling_tools"
CHECK, VARIABLE = "profiling.counters", "profiling_tools_counters"
NO_CHECKS = {
    *("containerd.service", "docker.service", "firewalld.service", "gpuprov.prom", "kernel.numa_balancing"),
    *("lnet.networks", "sunrpc.tcp_max_slot_table_entries", "sunrpc.tcp_slot_table_entries"),
    *("ssh.service", "ssh.socket", "sshd.service", "sshd.socket"),
}
"""Strings in `gpuprov/roles` that look like the id of a check."""
STANDS_FOR_A_NAME = ("ROLE", "CONCERN")
PATH = re.compile(r"`((?:gpuprov|lab|roles|tests|docs|playbooks|scripts)/[\w./-]*)")


def recipe(title: str) -> list[str]:
    """Return the numbered steps of a section."""
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


def strings(role: str) -> set[str]:
    """Return the strings in a role's `gpuprov/roles/ROLE.py`."""
    nodes = ast.walk(ast.parse((ROOT / f"gpuprov/roles/{role}.py").read_text(encoding="utf-8")))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_what_a_role_expects_is_read_by_drift_and_checked_by_verify() -> None:
    said = {text for role in ROLES for text in strings(role.name)}
    expected = {text for text in said if re.fullmatch(r"[a-z_]+\.[a-z_]+", text)} - NO_CHECKS
    assert expected == set(OBSERVERS) - set(ABSENT_CHECKS)
    suite = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("gpuprov/verify/suite/test_*.py"))
    checked = set(re.findall(r'mark\.check\(\s*"([^"]+)"', suite))
    assert expected - set(PACKAGE_CHECKS) - set(UNPACKAGED_CHECKS) - checked == set()


@pytest.mark.parametrize("role", [role.name for role in ROLES if role.variables])
def test_a_variable_of_a_role_is_an_option_that_its_tasks_read(role: str) -> None:
    folder = ROOT / "roles" / role
    specs = yaml.safe_load((folder / "meta/argument_specs.yml").read_text(encoding="utf-8"))
    options = specs["argument_specs"]["main"]["options"]
    defaults = yaml.safe_load((folder / "defaults/main.yml").read_text(encoding="utf-8"))
    assert {text for text in strings(role) if re.fullmatch(rf"{role}_\w+", text)} <= set(options)
    assert {name for name in options if not options[name].get("required")} == set(defaults)
    files = [path for part in ("tasks", "vars", "templates") for path in folder.glob(f"{part}/*")]
    words = {word for path in files for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    assert set(options) <= words


def test_paths_outside_the_recipes_are_there_too() -> None:
    for page in ("CONTRIBUTING.md", "docs/architecture.md", "README.md"):
        for path in PATH.findall((ROOT / page).read_text(encoding="utf-8")):
            if not any(word in path for word in STANDS_FOR_A_NAME):
                assert (ROOT / path).exists(), (page, path)

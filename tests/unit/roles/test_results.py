"""Results of tasks: none is read that an inventory can state because the task did not run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT

ROLES = sorted(path.parent for path in ROOT.glob("roles/*/tasks"))
SECTIONS = ("block", "rescue", "always")
IMPORT, INCLUDE = "ansible.builtin.import_tasks", "ansible.builtin.include_tasks"
FACT = "ansible.builtin.set_fact"
PRIVATE = re.compile(r"\b__[a-z]\w*")


def read(path: Path) -> Any:
    """Return the content of a YAML file."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


class Role:
    """A role's tasks in their order, and its variables, which take precedence over an inventory's."""

    def __init__(self, folder: Path) -> None:
        self.files = {path.name: read(path) for path in folder.glob("tasks/*.yml")}
        self.variables = {
            name: value for path in folder.glob("vars/*.yml") for name, value in read(path).items()
        }
        self.templates = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("templates/*")}

    def astray(self) -> set[str]:
        """Return the results that are read where their task may not have run before."""
        used = {name for tasks in self.files.values() for name in self._included(tasks)}
        return {
            name
            for file in self.files.keys() - used
            for name in self._walk(self.files[file], set(), sure=True)
        }

    def _included(self, tasks: list[dict[str, Any]]) -> Iterator[str]:
        """Yield the files of tasks that tasks include, at any depth of blocks."""
        for task in tasks:
            if file := task.get(IMPORT) or task.get(INCLUDE):
                yield file
            for section in SECTIONS:
                yield from self._included(task.get(section, []))

    def _walk(self, tasks: list[dict[str, Any]], known: set[str], *, sure: bool) -> Iterator[str]:
        """Yield the results that are read before they are known, and add to `known` those of the tasks.

        Args:
            sure: whether no condition is on all tasks; under one, a registered result is set, and no fact.
        """
        for task in tasks:
            always = sure and "when" not in task
            given = {
                *task.get("vars", {}),
                task.get("loop_control", {}).get("loop_var"),
                task.get("register"),
            }
            facts = task.get(FACT, {})
            rest = {key: value for key, value in task.items() if key not in (*SECTIONS, "register", FACT)}
            yield from self._results(f"{rest} {[*facts.values()]}", set()) - known - given
            known.update({task["register"]} if "register" in task else ())
            known.update(facts if always else ())
            if file := task.get(IMPORT):
                yield from self._walk(self.files[file], known, sure=always)
            elif file := task.get(INCLUDE):
                inside = known | given
                yield from self._walk(self.files[file], inside, sure=True)
                known.update(inside - given if "when" not in task else ())
            elif "block" in task:
                inside = known | given
                yield from self._walk(task["block"], inside, sure=always)
                for section in SECTIONS[1:]:
                    yield from self._walk(task.get(section, []), known | given, sure=always)
                known.update(inside - given if "rescue" not in task else ())

    def _results(self, text: str, seen: set[str]) -> set[str]:
        """Return the results that a text reads, also through variables and templates of the role."""
        found = set()
        for name in {*PRIVATE.findall(text), *(each for each in self.templates if each in text)} - seen:
            seen.add(name)
            if name in self.variables or name in self.templates:
                found |= self._results(str(self.variables.get(name, self.templates.get(name))), seen)
            else:
                found.add(name)
        return found


@pytest.mark.parametrize("folder", ROLES, ids=lambda folder: folder.name)
def test_no_result_is_read_that_an_inventory_could_state(folder: Path) -> None:
    """Check that each has a value in the role's vars, or that its task always runs before.

    A role that fails before a task leaves the name of its result to the inventory, and a rescue would undo
    changes that the inventory states.
    """
    assert Role(folder).astray() == set()


def test_a_result_in_a_rescue_is_found(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "vars").mkdir()
    (tmp_path / "tasks/main.yml").write_text("""\
- {name: a, command: a, register: __r_always}
- name: b
  block: [{name: b, command: b, register: __r_late}, {name: c, debug: "{{ __r_late }}"}]
  rescue: [{name: d, ansible.builtin.include_tasks: restore.yml}]
- {name: e, ansible.builtin.set_fact: {__r_fact: 1}, when: a}
- {name: f, debug: "{{ __r_fact }}"}
""")
    (tmp_path / "tasks/restore.yml").write_text('[{name: g, debug: "{{ __r_former }} {{ __r_always }}"}]\n')
    (tmp_path / "vars/main.yml").write_text('__r_former: "{{ __r_late.former | default({}) }}"\n')
    assert Role(tmp_path).astray() == {"__r_late", "__r_fact"}

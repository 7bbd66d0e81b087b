"""Rules for every role: documented options, named tasks, only modules of ansible-core and of gpuprov."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import gpuprov
from gpuprov.roles import ROLES as TABLE
from tests import ROOT

ROLES = sorted(path.parents[1] for path in ROOT.glob("roles/*/tasks/main.yml"))
TASK_FILES = sorted([*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("roles/*/handlers/*.yml")])
MODULES = {f"gpuprov.gpuprov.{path.stem}" for path in ROOT.glob("plugins/modules/*.*")}
PLAYBOOKS = sorted(ROOT.glob("playbooks/*.yml"))
KEYWORDS = {
    "name", "when", "register", "changed_when", "failed_when", "check_mode", "loop", "loop_control", "vars",
    "environment", "until", "retries", "delay", "block", "rescue", "always", "notify", "become", "no_log",
    "timeout", "tags", "any_errors_fatal",
}  # fmt: skip


def read(path: Path) -> Any:
    """Return the content of a YAML file."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def tasks_of(listed: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield tasks and those in their blocks, at any depth."""
    for task in listed:
        yield task
        for section in ("block", "rescue", "always"):
            yield from tasks_of(task.get(section, []))


def all_tasks() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield file and name, and the task, of every task in roles and playbooks."""
    for path in TASK_FILES:
        for task in tasks_of(read(path)):
            yield f"{path.relative_to(ROOT)}: {task.get('name')}", task
    for path in PLAYBOOKS:
        for play in read(path):
            for task in tasks_of(play.get("tasks", [])):
                yield f"{path.relative_to(ROOT)}: {task.get('name')}", task


TASKS = list(all_tasks())


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_every_default_is_a_documented_option(role: Path) -> None:
    options = read(role / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    defaults = read(role / "defaults/main.yml")
    assert set(defaults) <= set(options)
    assert {name for name, option in options.items() if "default" in option} <= set(defaults)
    for name, option in options.items():
        assert option.get("description"), name
        assert option.get("type"), name
        if "default" in option:
            assert option["default"] == defaults[name], name


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_public_names_start_with_the_role_and_private_ones_with_underscores(role: Path) -> None:
    assert all(name.startswith(f"{role.name}_") for name in read(role / "defaults/main.yml"))
    for path in role.glob("vars/*.yml"):
        assert all(name.startswith(f"__{role.name}_") for name in read(path)), path


@pytest.mark.parametrize(("place", "task"), TASKS, ids=[place for place, _ in TASKS])
def test_every_task_has_a_name_and_a_module_of_ansible_core_or_ours(place: str, task: dict[str, Any]) -> None:
    assert task.get("name"), place
    actions = set(task) - KEYWORDS
    assert all(action.startswith("ansible.builtin.") or action in MODULES for action in actions), actions
    assert len(actions) == (0 if "block" in task else 1), actions


@pytest.mark.parametrize(("place", "task"), TASKS, ids=[place for place, _ in TASKS])
def test_no_task_hides_a_failure(place: str, task: dict[str, Any]) -> None:
    assert task.get("failed_when") is not False, place
    assert "ignore_errors" not in task, place


@pytest.mark.parametrize(("place", "task"), TASKS, ids=[place for place, _ in TASKS])
def test_no_loop_over_a_nodes_answer_includes_tasks(place: str, task: dict[str, Any]) -> None:
    """Reject loops whose items all hosts wait for: the controller includes them one by one."""
    if any(f"ansible.builtin.include_{what}" in task for what in ("tasks", "role", "vars")):
        assert not re.search(r"_look(ed)?\b", str(task.get("loop", "")))


def test_a_role_looks_up_just_the_templates_and_files_that_it_has() -> None:
    for role in ROLES:
        text = "".join(path.read_text() for path in [*role.glob("tasks/*.yml"), *role.glob("vars/*.yml")])
        named = set(re.findall(r"lookup\('ansible.builtin.(template|file)', '([^']+)'", text))
        named |= {("file", name) for name in re.findall(r"(?:role_path }}/files/|script: )([\w.]+)", text)}
        there = {("template", path.name) for path in role.glob("templates/*")}
        there |= {("file", path.name) for path in role.glob("files/*") if path.is_file()}
        assert named == there, role.name


def test_the_collection_has_the_version_of_the_package() -> None:
    assert read(ROOT / "galaxy.yml")["version"] == gpuprov.__version__


def test_site_runs_a_role_only_when_the_plan_names_it() -> None:
    tasks = read(ROOT / "playbooks/site.yml")[0]["tasks"]
    included = [task for task in tasks if "ansible.builtin.include_role" in task]
    for task in included:
        role = task["ansible.builtin.include_role"]["name"].removeprefix("gpuprov.gpuprov.")
        if role != "packages":
            [first, *_more] = [task["when"]] if isinstance(task["when"], str) else task["when"]
            assert first == f"'{role}' in __gpuprov_roles"
            assert task["tags"] == role
    assert len(included) > len(ROLES)


def test_site_runs_all_where_nothing_is_named_but_what_can_lock_everybody_out() -> None:
    stated = read(ROOT / "playbooks/site.yml")[0]["vars"]
    assert stated["__gpuprov_roles"] == "{{ gpuprov_roles | default(__gpuprov_unguarded) }}"
    assert stated["__gpuprov_unguarded"] == [
        role.name for role in TABLE if role.variables and not role.guarded
    ]
    assert stated["__gpuprov_guarded"] == [role.name for role in TABLE if role.guarded]
    assert stated["__gpuprov_known"] == "{{ __gpuprov_unguarded + __gpuprov_guarded }}"


def test_the_controller_is_ruled_out_before_anything_reboots() -> None:
    [checks, *tasks] = read(ROOT / "playbooks/reboot.yml")[1]["tasks"]
    tasks = checks["block"] + tasks
    modules = [next(key for key in task if "." in key or key in MODULES) for task in tasks]
    assert modules.index("ansible.builtin.assert") < modules.index("ansible.builtin.reboot")
    conditions = str(tasks[modules.index("ansible.builtin.assert")])
    assert "boot_id" in conditions
    assert "'local'" in conditions


OF_OTHERS = ("/etc/docker/", "/etc/sysconfig/", "/etc/containerd/config", "{{ __imex_nodes_file }}")
"""Beginnings of the paths of files that the administrator or a package writes, too."""
FOR_LOGINS = "{{ ssh_hardening_files | dict2items }}"
EDITORS = ("ansible.builtin.lineinfile", "ansible.builtin.blockinfile", "ansible.builtin.replace")


def test_files_that_decide_who_may_log_in_become_root_s() -> None:
    """Check those of authorities and principals: sshd reads them also if others can write them."""
    [task] = (task for _, task in TASKS if task.get("loop") == FOR_LOGINS)
    [file] = task["gpuprov.gpuprov.gpuprov_files"]["files"]
    assert "keep_mode" not in file


def test_files_of_others_keep_their_owner_and_mode() -> None:
    """Keep them: the administrator may have made one readable by root only, for the password of a proxy."""
    checked = 0
    for name, task in TASKS:
        for file in task.get("gpuprov.gpuprov.gpuprov_files", {}).get("files", ()):
            if isinstance(file, dict) and file["path"].startswith(OF_OTHERS):
                assert file.get("keep_mode") is True or file.get("block") is True, name
                assert "mode" not in file, name
                checked += 1
        for options in (task[module] for module in EDITORS if module in task):
            assert not {"owner", "group"} & options.keys(), name
            assert options.get("mode", "{{ omit if ").startswith("{{ omit if "), name
            checked += 1
    assert checked > 8

"""The table of roles, and everything that must agree with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpuprov.drift.observations import OBSERVERS
from gpuprov.model.components import COMPONENTS
from gpuprov.model.lock import Components, read_lock
from gpuprov.model.settings import Settings
from gpuprov.model.stack import StackPolicy
from gpuprov.roles import ROLES, Role, first_packages, variables
from gpuprov.roles.components import ABSENT_CHECKS, PACKAGE_CHECKS, UNPACKAGED_CHECKS
from gpuprov.roles.table import ASKED_OF_SERVICES, BY_NAME, role_of

ROOT = Path(__file__).parents[3]
PINS_OF_DNF = "roles/package_pins/tasks/dnf.yml"
RUN = [role.name for role in ROLES if role.variables]
HELPERS = {"packages"}
"""Roles that other roles include, and that do nothing by themselves."""
WITHOUT_READINGS = {"cudnn"}
"""Roles that only expect packages, which are read by common code."""


def test_the_playbook_runs_the_roles_in_the_order_of_the_table() -> None:
    tasks = yaml.safe_load((ROOT / "playbooks/site.yml").read_text())[0]["tasks"]
    included = [task.get("ansible.builtin.include_role", {}) for task in tasks]
    names = [role["name"] for role in included if role and "tasks_from" not in role]
    assert names == [f"gpuprov.gpuprov.{name}" for name in RUN]


def test_every_folder_of_a_role_has_a_row() -> None:
    folders = {path.name for path in (ROOT / "roles").iterdir()}
    assert folders - HELPERS == set(RUN)


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_every_row_has_its_files_under_one_stem(role: Role) -> None:
    name = role.name
    mirrored = [f"gpuprov/roles/{name}.py", f"gpuprov/verify/suite/test_{name}.py"]
    if name not in WITHOUT_READINGS:
        mirrored.append(f"gpuprov/drift/observations/{name}.py")
    if name in RUN:
        mirrored.append(f"roles/{name}/tasks/main.yml")
    assert [path for path in mirrored if not (ROOT / path).is_file()] == []


def test_no_file_stands_for_a_role_that_is_not_there() -> None:
    names = {role.name for role in ROLES} | {"components"}
    assert {path.stem for path in (ROOT / "gpuprov/verify/suite").glob("test_*.py")} == {
        f"test_{name}" for name in names
    }


def test_every_setting_is_carried_out_by_one_role() -> None:
    assert sorted(name for role in ROLES for name in role.settings) == sorted(Settings.model_fields)


def test_every_stated_component_is_installed_by_one_role() -> None:
    installed = sorted(name for role in ROLES for name in role.components)
    assert installed == sorted(each.name for each in COMPONENTS if each.stated)


def test_the_table_of_components_is_what_a_lock_can_hold() -> None:
    fields = Components.model_fields
    assert [each.name for each in COMPONENTS] == [name for name in fields if name != "absent"]
    assert {each.name for each in COMPONENTS if each.stated} <= set(StackPolicy.model_fields)


def test_checks_of_packages_and_of_absence_are_observed() -> None:
    assert set(PACKAGE_CHECKS) | set(ABSENT_CHECKS) <= set(OBSERVERS)
    assert {f"{name}.absent" for role in ROLES for name in role.components if name != "driver"} == set(
        ABSENT_CHECKS
    )


def test_first_packages_are_those_of_roles_that_run_and_have_some() -> None:
    [group] = read_lock(ROOT / "tests/recorded/verify/debian12-a100x4.lock.yml").groups.values()
    stated = {**variables(group), "cudnn_packages": {"libcudnn9": "9"}, "nccl_packages": {"libnccl2": "2"}}
    assert {variable for role in ROLES for variable in role.first.values()} <= stated.keys()
    assert first_packages(stated, ["cudnn", "cuda_toolkit", "system_tuning", "monitoring", "firewall"]) == {
        "packages_together": {"cudnn": {"libcudnn9": "9"}},
        "packages_together_beside": ["dbus", "nftables"],
    }
    guarded = ["ssh_hardening", "firewall"]
    found = {by: first_packages(stated, guarded, by)["packages_together_beside"] for by in ("apt", "dnf")}
    assert found == {"apt": ["iproute2", "nftables"], "dnf": ["iproute", "nftables"]}


def test_the_plugin_of_version_locks_comes_with_the_first_packages_of_nodes_with_dnf() -> None:
    [tasks] = [task for task in yaml.safe_load((ROOT / PINS_OF_DNF).read_text()) if "vars" in task]
    found = {
        by: first_packages({}, ["package_pins"], by)["packages_together_beside"] for by in ("apt", "dnf")
    }
    assert found == {
        "apt": [],
        "dnf": tasks["vars"]["packages_beside"],
    }


def test_units_are_observed_where_a_role_has_one() -> None:
    assert {check for role in ROLES for check in role.units} <= set(OBSERVERS)


@pytest.mark.parametrize("check", [*UNPACKAGED_CHECKS, "tuning.service_limits"])
def test_what_asks_a_service_brings_what_starts_one(check: str) -> None:
    name = "system_tuning" if check.startswith("tuning.") else role_of(check.partition(".")[0])
    assert set(ASKED_OF_SERVICES) <= set(BY_NAME[name].beside)

"""Limits of what a node answers to Ansible itself; `test_script.py` has them in plays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

LOADED = f"""
import importlib.util, json
from types import SimpleNamespace
from ansible.errors import AnsibleError
spec = importlib.util.spec_from_file_location("results", {str(ROOT / "plugins/plugin_utils/results.py")!r})
results = importlib.util.module_from_spec(spec)
spec.loader.exec_module(results)

def refusal(function, *arguments):
    try:
        function(*arguments)
    except AnsibleError as error:
        return str(error)
    return ""

asked = json.loads(input())
"""
"""Begin of a program of its own: the module changes functions of Ansible."""


def answered(program: str, asked: Any = None, before: str = "") -> Any:
    """Return the value of an expression, which has the module as `results` and a value as `asked`.

    Args:
        before: statements that are run before it.
    """
    done = subprocess.run(
        [sys.executable, "-c", f"{LOADED}{before}\nprint(json.dumps({program}))"],
        input=json.dumps(asked),
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


SOUND = [
    "/root/.ansible/tmp/ansible-tmp-1764531372.13-4321-104000000000001",
    "/home/jörg müller/.ansible/tmp/x",
    "C:\\Users\\Some One (2)\\AppData\\Local\\Temp\\x",
]
HOSTILE = ["/x\\'\"" + " " * 2100 + "!id #", "/x'", '/x"', "/x\n!id", "/x!id", "/" + "é" * 128, "", "/x\n"]


def test_a_folder_for_temporary_files_is_no_command_of_sftp() -> None:
    action = "SimpleNamespace(_connection=SimpleNamespace(_shell=SimpleNamespace()))"
    made = f"[refusal(results.with_safe_folder(lambda action: path), {action}) for path in asked]"
    assert answered(made, SOUND) == [""] * len(SOUND)
    refused = answered(made, HOSTILE)
    assert all("the node names a folder for temporary files" in each for each in refused), refused


def test_statistics_of_a_module_are_left_out() -> None:
    """They are a key of a result, since ansible-core 2.21 an attribute."""
    old = "results.without_statistics(lambda action, said: dict(said))(None, asked)"
    assert answered(old, {"rc": 0, "ansible_stats": 5}) == {"rc": 0}
    new = "results.without_statistics(lambda action, said: SimpleNamespace(stats=said))(None, asked).stats"
    assert answered(new, 5) is None


def test_facts_of_setup_are_variables() -> None:
    """Ask this machine for its facts; those of network interfaces are left out."""
    program = [Path(sys.executable).with_name("ansible"), "localhost", "-m", "setup", "--one-line"]
    said = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    facts = json.loads(said.partition("=>")[2])["ansible_facts"]
    assert len(facts) > 50
    others = answered("[name for name in asked if not results.is_fact(name)]", facts)
    assert [name for name in others if "device" not in facts[name]] == []


@pytest.mark.parametrize(
    "name",
    [
        "ansible_host", "ansible_eth0", "ansible_control_path", "ansible_sudo_exe", "ansible_user",
        "ansible_python_interpreter", "ansible_remote_tmp", "ansible_distribution!", "ansible_system_x\n",
        "nvidia_driver_builds", "inventory_hostname", "environment", "delegated_vars['ansible_host']",
    ],
)  # fmt: skip
def test_other_facts_are_no_variables(name: str) -> None:
    assert not answered("results.is_fact(asked)", name)


def test_no_option_of_ansible_is_a_fact() -> None:
    """Ask Ansible for the variables of its plugins, and of its own settings."""
    plugins = """
from ansible import constants
from ansible.plugins import loader
from ansible.plugins.loader import fragment_loader
from ansible.utils.plugin_docs import get_docstring
names = {name for each in constants.MAGIC_VARIABLE_MAPPING.values() for name in each}
for kind in ("become", "callback", "connection", "inventory", "shell", "strategy"):
    for path in getattr(loader, kind + "_loader").all(path_only=True):
        documented = get_docstring(path, fragment_loader)[0] or {}
        for option in (documented.get("options") or {}).values():
            names |= {each["name"] for each in option.get("vars") or ()}
for option in constants.config.get_configuration_definitions().values():
    names |= {each["name"] for each in option.get("vars") or ()}
"""
    program = "(len(names), 'ansible_host_key_checking' in names, sorted(filter(results.is_fact, names)))"
    count, listed, facts = answered(program, before=plugins)
    assert (count > 100, listed, facts) == (True, True, [])


@pytest.mark.parametrize(("release", "old"), [("2.18.19", True), ("2.19.0b1", False), ("2.21.5", False)])
def test_a_release_that_takes_text_of_a_node_for_a_template_is_refused(release: str, old: bool) -> None:
    said = answered("[setattr(results, '__version__', asked), refusal(results.require_release)][1]", release)
    assert ("expected 2.19 or later" in said) == old


def test_long_diffs_of_a_node_are_not_compared() -> None:
    """Compare short texts, long ones, and short ones before and after long ones."""
    callback = (ROOT / "plugins/callback/gpuprov_jsonl.py").read_text("utf-8")
    assert f"COMPARED_LINES = {answered('results.COMPARED_LINES')}\n" in callback, "of both callbacks"
    shown = "results.CallbackBase._get_diff(results.CallbackBase(), asked)"
    short, long = {"before": "a\n", "after": "b\n"}, {"before": "a\n" * 2000, "after": "b\n" * 2001}
    assert "-a" in answered(shown, short)
    assert '-    "a": 1' in answered(shown, {"before": {"a": 1}, "after": {"a": 2}})
    assert answered(shown, long) == "no diff of more than 4000 lines\n"
    assert answered(shown, [short, long, short]).count("-a") == 1
    assert answered(shown, {"before": {str(each): 1 for each in range(4001)}, "after": ""}) == answered(
        shown, long
    )


def test_lines_are_counted_as_they_are_split() -> None:
    """Count at least the lines of `str.splitlines`, with which Ansible splits a module's output."""
    ends = [each for each in map(chr, range(0x110000)) if len(f"a{each}a".splitlines()) == 2]
    assert sorted(answered("list(results.LINE_ENDS)")) == ends

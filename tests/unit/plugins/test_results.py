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


def answered(program: str, asked: Any = None) -> Any:
    """Return the JSON that a program prints, which has the module as `results` and a value as `asked`."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED + f"print(json.dumps({program}))"],
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
    made = "[refusal(results.with_safe_folder(lambda action: path), None) for path in asked]"
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
    """Ask this machine for its facts, with those of its network interfaces."""
    program = [Path(sys.executable).with_name("ansible"), "localhost", "-m", "setup", "--one-line"]
    said = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    facts = json.loads(said.partition("=>")[2])["ansible_facts"]
    assert len(facts) > 50
    others = answered("[name for name, value in asked.items() if not results.is_fact(name, value)]", facts)
    assert others == []


@pytest.mark.parametrize(
    "name",
    [
        "ansible_host", "ansible_control_path", "ansible_sudo_exe", "ansible_user",
        "ansible_python_interpreter", "ansible_remote_tmp", "ansible_distribution!", "ansible_system_x\n",
        "nvidia_driver_builds", "inventory_hostname", "environment", "delegated_vars['ansible_host']",
    ],
)  # fmt: skip
def test_other_facts_are_no_variables(name: str) -> None:
    assert not answered("results.is_fact(asked, 'x')", name)
    assert not answered("results.is_fact(asked, {'device': 'eth0'})", name)


@pytest.mark.parametrize(
    ("known", "says"),
    [
        ({"ansible_facts": {"distribution": "Debian"}, "ansible_distribution": "Debian"}, ""),
        ({"ansible_facts": {"control_path": "x"}, "ansible_control_path": "y"}, ""),
        ({"ansible_facts": {"control_path": "x"}, "ansible_control_path": "x"}, "ansible_control_path"),
        ({"ansible_facts": {"docker_look": {}}, "docker_look": {}}, "docker_look"),
        ({"ansible_facts": []}, ""),
        ({}, ""),
    ],
)
def test_facts_that_were_gathered_before_are_refused(known: dict[str, Any], says: str) -> None:
    """Ansible computes the variables of a play's first task before it loads an action of the collection."""
    said = answered("refusal(results.require_no_others, asked)", known)
    assert (f"are variables: {says};" in said) if says else not said
    later = "(results.without_others(dict)({}), refusal(results.require_no_others, asked))[1]"
    assert not answered(later, known)


@pytest.mark.parametrize(("release", "old"), [("2.18.19", True), ("2.19.0b1", False), ("2.21.5", False)])
def test_a_release_that_takes_text_of_a_node_for_a_template_is_refused(release: str, old: bool) -> None:
    said = answered("[setattr(results, '__version__', asked), refusal(results.require_release)][1]", release)
    assert ("expected 2.19 or later" in said) == old


def test_long_diffs_of_a_node_are_not_compared() -> None:
    """Compare texts of which each has as many lines as both may have, and short ones before them."""
    shown = "results.CallbackBase._get_diff(results.CallbackBase(), asked)"
    short, long = {"before": "a\n", "after": "b\n"}, {"before": "a\n" * 2000, "after": "b\n" * 2001}
    assert "-a" in answered(shown, short)
    assert '-    "a": 1' in answered(shown, {"before": {"a": 1}, "after": {"a": 2}})
    assert answered(shown, long) == "no diff of more than 4000 lines\n"
    assert answered(shown, [short, long, short]).count("-a") == 1
    assert answered(shown, {"before": {str(each): 1 for each in range(4001)}, "after": ""}) == answered(
        shown, long
    )

"""Ansible's behaviour on nodes that are not leased to its run; the tasks run on this machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import ChainMap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov.apply.lease_manager import uptime
from gpuprov.files.resources import link_collection
from tests import ROOT
from tests.unit.plugins.test_script import SCRIPT, run
from tests.unit.samples import sample

NODES = ("ours", "taken", "stale", "never")
DONE = "import json, sys; open(json.loads(sys.argv[1]), 'w'); print('{\"changed\": true}')"


def _kept(text: str) -> dict[str, Any]:
    """Return a node's name with its registered result, from the JSON of a message."""
    found: dict[str, Any] = json.loads(json.loads(text).removeprefix("KEPT "))
    return found


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Function that runs tasks on all nodes and returns node → registered results, without stopped nodes."""

    def play(leases: str | None, tasks: list[dict[str, Any]], **keywords: Any) -> dict[str, Any]:
        """Run tasks with a file of leases and further keywords of a play; return node → registered result."""
        (tmp_path / "roles/asking/files").mkdir(parents=True)
        (tmp_path / "roles/asking/tasks").mkdir()
        (tmp_path / "roles/asking/files/do.py").write_text(DONE)
        kept = "{{ {inventory_hostname: said | default({})} | to_json }}"
        tasks = [*tasks, {"name": "Keep", "ansible.builtin.debug": {"msg": f"KEPT {kept}"}}]
        (tmp_path / "roles/asking/tasks/main.yml").write_text(yaml.safe_dump(tasks))
        python = {"ansible_python_interpreter": sys.executable}
        play = {
            "hosts": "all",
            "connection": "local",
            "gather_facts": False,
            "vars": python,
            "roles": ["asking"],
            **keywords,
        }
        (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
        more = {"ANSIBLE_COLLECTIONS_PATH": str(link_collection(tmp_path / "collections"))}
        if leases is not None:
            (tmp_path / "leases.json").write_text(leases)
            more["GPUPROV_LEASES"] = str(tmp_path / "leases.json")
        hosts = ",".join([*NODES, ""])
        try:
            said = run("ansible-playbook", "--inventory", hosts, "play.yml", folder=tmp_path, **more).stdout
        except subprocess.CalledProcessError as failed:
            said = failed.stdout
        return dict(ChainMap(*map(_kept, re.findall(r'"msg": ("KEPT .*")', said))))

    return play


def leases() -> str:
    """Return the text of a file of leases: one is valid, one has ended, one was lost."""
    now = uptime()
    until = {"ours": now + 60, "stale": now - 1}
    return json.dumps({"resumable": False, "until": until, "lost": {"taken": "leased by x@y"}})


def script(folder: Path) -> list[dict[str, Any]]:
    """Return the tasks of a play: one that runs the script, which writes a file."""
    asked = {"script": "do.py", "question": f"{folder}/{{{{ inventory_hostname }}}}.done"}
    return [{"name": "Do", SCRIPT: asked, "register": "said", "ignore_errors": True}]


def test_no_script_runs_on_a_node_that_is_not_the_runs(
    play: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    said = play(leases(), script(tmp_path))
    assert [path.stem for path in tmp_path.glob("*.done")] == ["ours"]
    assert {name: each.get("msg") for name, each in said.items()} == {
        "ours": None,
        "taken": "leased by x@y",
        "stale": "the node's lease was not renewed in time: gpuprov was killed, or lost the connection",
        "never": "the node is not leased to this run",
    }


@pytest.mark.parametrize(
    "text", sample(["7", "", "{}", '{"lost": {}, "until": {"ours": "x"}}'], 4, "no leases")
)
def test_nothing_is_done_by_a_file_that_is_none(
    play: Callable[..., dict[str, Any]], tmp_path: Path, text: str
) -> None:
    said = play(text, script(tmp_path))
    assert list(tmp_path.glob("*.done")) == []
    assert {each["msg"] for each in said.values()} == {"the node is not leased to this run"}


@pytest.mark.thorough
def test_where_no_run_has_leases_all_is_done(play: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    play(None, script(tmp_path))
    assert len(list(tmp_path.glob("*.done"))) == len(NODES)


@pytest.mark.thorough
def test_a_node_that_is_not_the_runs_leaves_a_play_of_reboots_without_ending_it(
    play: Callable[..., dict[str, Any]],
) -> None:
    asked = before_reboot()
    asked["block"] = asked["block"][:2]
    assert [task["name"] for task in asked["block"]] == [
        "Check that the node is still leased to this run",
        "End the play for a node that is not leased",
    ]
    assert list(play(leases(), [asked], any_errors_fatal=True)) == ["ours"]


def before_reboot() -> dict[str, Any]:
    """Return the block of tasks before a reboot, of a play that an error on any node ends."""
    [_, reboots] = yaml.safe_load((ROOT / "playbooks/reboot.yml").read_text())
    assert reboots["any_errors_fatal"]
    found: dict[str, Any] = reboots["tasks"][0]
    return found


@pytest.mark.parametrize("fault", ["fails", "is silent"])
def test_a_node_that_fails_before_a_reboot_does_not_end_the_play_for_others(
    play: Callable[..., dict[str, Any]], fault: str
) -> None:
    asked = before_reboot()
    leased, _, read, *_ = asked["block"]
    if fault == "fails":
        read["ansible.builtin.slurp"]["src"] = (
            "/proc/{{ 'none' if inventory_hostname == 'taken' else 'uptime' }}"
        )
    else:
        connection = "{{ 'ssh' if inventory_hostname == 'taken' else 'local' }}"
        read["vars"] = {"ansible_connection": connection, "ansible_host": "127.0.0.1", "ansible_port": 1}
    asked["block"] = [leased, read]
    valid = json.dumps({"resumable": False, "until": dict.fromkeys(NODES, uptime() + 60), "lost": {}})
    assert sorted(play(valid, [asked], any_errors_fatal=True)) == ["never", "ours", "stale"]

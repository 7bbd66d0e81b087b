"""Actions of the collection that work on a node or refuse it, run by Ansible on this machine."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from gpuprov.files.resources import link_collection
from tests import ROOT

SCRIPT, REFUSE, FILES, COMMAND, UNIT, CONTROLLER = (
    f"gpuprov.gpuprov.gpuprov_{name}"
    for name in ("script", "refuse", "files", "command", "unit", "controller")
)
SCRIPTS = {
    "share.py": "from gpuprov_node import output\nprint('{\"said\": \"%s\"}' % output('echo', '-n', 'hi'))",
    "echo.py": "import json, sys; print('a banner'); print(json.dumps({'asked': json.loads(sys.argv[1])}))",
    "change.py": "print('{\"changed\": true}')",
    "refuse.py": 'print(\'{"failure": {"says": "the disk is full", "do": "delete something"}}\')',
    "misspell.py": "pint 'a'",
    "break.py": "raise KeyError('lock')",
    "babble.py": "print('nothing of use')",
    "leave.py": "import sys; sys.exit(3)",
    "feed.py": r"print('\f' * 20_000); print('{}')",
    "fill.py": "print('{\"many\": [' + '[],' * 100_000 + '[]]}')",
    "list.py": "print('{\"deep\": {\"many\": [' + '[],' * 1_000 + '[]]}}')",
    "count.py": "print('{\"texts\": [' + '\"a\",' * 8_192 + '\"a\"]}')",
    "name.py": "print('{\"texts\": [' + '\"a\",' * 8_000 + '\"a\"]}')",
}
OBJECTIONS = [
    {"holds": "{{ 1 > 0 }}", "says": "  the disk is full;\n  delete something "},
    {"holds": "{{ 1 < 0 }}", "says": "there is no GPU"},
    {"holds": True, "says": "it is late"},
]
QUESTION = {"name": "it's {{ 'templated' }}", "number": 3, "list": [True, None]}


def run(program: str, *words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program of this Python's environment in a folder, without Ansible's variables."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    return subprocess.run(
        [Path(sys.executable).with_name(program), *words],
        cwd=folder,
        env={**plain, "ANSIBLE_LOCAL_TEMP": str(folder / "tmp"), **environment},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Script → the result of its task, from a role in check mode that runs all scripts."""
    folder = tmp_path_factory.mktemp("play")
    (folder / "roles/asking/files").mkdir(parents=True)
    (folder / "roles/asking/tasks").mkdir()
    tasks: list[dict[str, Any]] = []
    for name, text in SCRIPTS.items():
        (folder / "roles/asking/files" / name).write_text(text)
        asked = {"script": name, "question": QUESTION}
        task = {SCRIPT: asked, "register": name.partition(".")[0], "ignore_errors": True}
        tasks.append({"name": name, **task})
    for name, objections in {"refused": OBJECTIONS, "let_in": OBJECTIONS[1:2]}.items():
        task = {REFUSE: {"objections": objections}, "register": name, "ignore_errors": True}
        tasks.append({"name": name, **task})
    said = (
        "{{ {'refused': refused, 'let_in': let_in, "
        + ", ".join(f"'{name}': {name.partition('.')[0]}" for name in SCRIPTS)
        + "} | to_json }}"
    )
    tasks.append(
        {
            "name": "Keep them",
            "ansible.builtin.copy": {"content": said, "dest": str(folder / "said.json")},
            "check_mode": False,
        }
    )
    (folder / "roles/asking/tasks/main.yml").write_text(yaml.safe_dump(tasks))
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "roles": ["asking"]}
    (folder / "play.yml").write_text(yaml.safe_dump([play]))
    run(
        "ansible-playbook", "--check", "play.yml", folder=folder,
        ANSIBLE_COLLECTIONS_PATH=str(link_collection(folder / "collections")),
    )  # fmt: skip
    found: dict[str, Any] = json.loads((folder / "said.json").read_text())
    return found


def test_the_last_line_is_the_answer_and_the_question_arrives_as_it_is(answers: dict[str, Any]) -> None:
    asked = {**QUESTION, "name": "it's templated"}
    said = answers["echo.py"]
    assert (said["document"], said["output"], said["changed"]) == ({"asked": asked}, ["a banner"], False)


def test_a_script_may_import_what_scripts_share(answers: dict[str, Any]) -> None:
    assert answers["share.py"]["document"] == {"said": "hi"}


def test_many_names_are_an_answer(answers: dict[str, Any]) -> None:
    assert len(answers["name.py"]["document"]["texts"]) == 8001


def test_a_script_says_itself_whether_it_changed_anything(answers: dict[str, Any]) -> None:
    assert answers["change.py"]["changed"] is True


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("refuse.py", "the disk is full; delete something"),
        ("misspell.py", "misspell.py gave no answer: SyntaxError: invalid syntax"),
        ("break.py", "break.py gave no answer: KeyError: 'lock'"),
        ("babble.py", "babble.py gave no answer: nothing of use"),
        ("leave.py", "leave.py gave no answer: it exited with 3"),
        ("feed.py", f"the output of {sys.executable} is too large"),
        ("fill.py", "fill.py gave no answer: its document is too large"),
        ("list.py", "list.py gave no answer: a list in its document is too long"),
        ("count.py", "count.py gave no answer: a list in its document is too long"),
    ],
)
def test_a_failure_has_the_scripts_own_words(answers: dict[str, Any], script: str, words: str) -> None:
    assert (answers[script]["failed"], answers[script]["msg"]) == (True, words)


def test_everything_that_speaks_against_a_node_is_said_at_once(answers: dict[str, Any]) -> None:
    said = "the disk is full;\n  delete something. Also: it is late"
    assert (answers["refused"]["failed"], answers["refused"]["msg"]) == (True, said)
    assert answers["let_in"]["failed"] is False


STRANGE = {
    "changed": True,
    "acts": ["start"],
    "add_host": {"host_name": "other", "host_vars": {"ansible_ssh_common_args": "-o ProxyCommand=id"}},
    "add_group": {"group_name": "x"},
    "ansible_facts": {"ansible_host": "evil"},
    "ansible_stats": {"data": {"x": 1}},
    "_ansible_notify": 5,
    "_ansible_no_log": True,
    "results": 5,
    "exception": "x",
    "skipped": True,
    "unreachable": True,
    "failed": False,
}


def on_node(answer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return an `OnNode` whose node answers with this document, and the module it is from."""
    monkeypatch.syspath_prepend(str(link_collection(tmp_path / "linked")))
    module = importlib.import_module("ansible_collections.gpuprov.gpuprov.plugins.plugin_utils.on_node")
    kind = type("Action", (module.OnNode,), {"run": lambda *_: {}})
    action = kind.__new__(kind)
    action._task = SimpleNamespace(check_mode=False)
    said = {"rc": 0, "stdout": json.dumps(answer), "stderr": ""}
    monkeypatch.setattr(module.OnNode, "execute", lambda *_: said)
    monkeypatch.setattr(module.node_program, "script", lambda *_: "")
    return action, module


def test_a_node_sets_no_key_of_a_result_but_those_of_the_module(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ansible follows `add_host` and others in the result of any action: they would change other hosts."""
    action, module = on_node(STRANGE, monkeypatch, tmp_path)
    result = action.settle("gpuprov_unit", {"acts": module.are_texts}, {}, {})
    assert result == {"changed": True, "acts": ["start"], "output": []}


FACTS = {
    "nvidia_driver_builds": [{"archive": "/etc/shadow"}],
    "__docker_look": {},
    "gpuprov_roles": [],
    "ansible_sftp_executable": "/bin/sh",
    "ansible_control_path": "x",
    "ansible_sudo_exe": "touch /x; sudo",
    "ansible_remote_tmp": "/tmp/$(touch /x)",
    "inventory_hostname": "other",
    "delegated_vars['ansible_host']": "192.0.2.7",
    "ansible_host_key_checking": {"device": "host_key_checking"},
    "control_path": float("inf"),
    "ansible_distribution": "Debian",
    "own": 1,
}
"""Facts in the result of a node's module, also those of interfaces and of a site's own modules."""
NODE = f"""#!/usr/bin/python3
import json
inf = float("inf")
print(json.dumps({{"ansible_facts": {FACTS}, "ansible_stats": 5}}))
"""


@pytest.mark.parametrize(
    ("injected", "known"),
    [("1", ["ansible_distribution"]), ("0", [])],
)
def test_facts_of_a_node_set_no_variable_of_a_role(tmp_path: Path, injected: str, known: list[str]) -> None:
    """With Ansible's default, facts precede the inventory; gpuprov turns that off, a collection cannot."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library/ask.py").write_text(NODE)
    said = (
        "{{ vars.keys() | intersect(names) | sort }} {{ ansible_facts.own }}"
        " {{ asked.results | selectattr('ansible_facts', 'defined') | length }}"
    )
    tasks = [
        {"name": "Before", REFUSE: {"objections": []}},
        {
            "name": "Ask",
            "ask": {},
            "loop": [1, 2],
            "when": "gpuprov_roles is not defined",
            "register": "asked",
        },
        {"name": "Keep it", COMMAND: {"argv": ["tee", str(tmp_path / "said")], "stdin": said}},
    ]
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": tasks}
    play["vars"] = {"names": sorted({*FACTS} - {"inventory_hostname"})}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    run(
        "ansible-playbook", "play.yml", folder=tmp_path, ANSIBLE_INJECT_FACT_VARS=injected,
        ANSIBLE_COLLECTIONS_PATH=str(link_collection(tmp_path / "collections")),
    )  # fmt: skip
    assert (tmp_path / "said").read_text() == f"{known} 1 2"


def test_facts_that_were_gathered_before_set_no_variable_of_a_plays_first_task(tmp_path: Path) -> None:
    """Ansible computes the variables of this task before it loads an action of the collection."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library/ask.py").write_text(NODE.replace(', "ansible_stats": 5', ""))
    said = "{{ vars.keys() | intersect(names) | sort }} {{ ansible_facts.own }}"
    keep = {"name": "Keep it", COMMAND: {"argv": ["tee", str(tmp_path / "said")], "stdin": said}}
    tasks = [{"name": "Ask", "ask": {}}, keep]
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": tasks}
    play["vars"] = {"names": sorted({*FACTS} - {"inventory_hostname"})}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    run(
        "ansible-playbook", "play.yml", folder=tmp_path, ANSIBLE_INJECT_FACT_VARS="1",
        ANSIBLE_COLLECTIONS_PATH=str(link_collection(tmp_path / "collections")),
    )  # fmt: skip
    assert (tmp_path / "said").read_text() == "['ansible_distribution'] 1"


@pytest.mark.parametrize("python", ["/usr/bin/python3.12", None])
def test_a_python_that_is_not_there_is_named(
    python: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    action, module = on_node({}, monkeypatch, tmp_path)
    said = {"rc": 127, "stdout": "", "stderr": "/bin/sh: 1: /usr/bin/python3.12: not found"}
    monkeypatch.setattr(module.OnNode, "execute", lambda *_: said)
    words = f"{python or 'python3'}, in which the scripts of roles run, is not on the node;"
    with pytest.raises(module.AnsibleActionFail, match=f"{re.escape(words)} run `gpuprov bootstrap`"):
        action.ask("look.py", "", {}, {"ansible_python_interpreter": python} if python else {})


@pytest.mark.parametrize("wrong", [5, ["start", 5], {"a": 1}, None])
def test_a_key_of_a_wrong_type_is_a_failure(
    wrong: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    action, module = on_node({"acts": wrong}, monkeypatch, tmp_path)
    with pytest.raises(module.AnsibleActionFail, match="acts of its document has a wrong type"):
        action.settle("gpuprov_unit", {"acts": module.are_texts}, {}, {})


def test_every_action_states_the_keys_that_it_takes() -> None:
    """Check that each takes keys of a node's document by `settle` only, with stated types."""
    for path in sorted((ROOT / "plugins/action").glob("*.py")):
        text = path.read_text()
        assert "**document" not in text, path
        assert text.count("self.settle(") == text.count(", RESULT, "), path


@pytest.mark.parametrize("failure", [5, {"says": 5}, {"do": "x"}, ["x"]])
def test_a_failure_of_another_form_is_a_failure(
    failure: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    action, _module = on_node({"failure": failure}, monkeypatch, tmp_path)
    result = action.ask("x", "", {}, {})
    assert (result["failed"], result["msg"]) == (True, json.dumps(failure))


@pytest.mark.thorough
def test_roles_of_the_collection_find_it_too(tmp_path: Path) -> None:
    run("ansible-galaxy", "collection", "build", "--output-path", str(tmp_path), str(ROOT), folder=tmp_path)
    [archive] = tmp_path.glob("gpuprov-gpuprov-*.tar.gz")
    run(
        "ansible-galaxy",
        "collection",
        "install",
        "--force",
        "-p",
        str(tmp_path),
        str(archive),
        folder=tmp_path,
    )
    play = {
        "hosts": "localhost", "connection": "local", "gather_facts": False,
        "roles": ["gpuprov.gpuprov.container_toolkit"],
    }  # fmt: skip
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    said = run(
        "ansible-playbook", "--check", "play.yml", folder=tmp_path, ANSIBLE_COLLECTIONS_PATH=str(tmp_path)
    )
    assert "failed=0" in said.stdout
    assert "Read the state of the toolkit and its predecessors" in said.stdout


@pytest.mark.thorough
def test_files_are_written_by_the_same_way(tmp_path: Path) -> None:
    there, other = tmp_path / "system/our.service", tmp_path / "other"
    files = {"files": [{"path": str(there), "content": "[Unit]\n", "mode": "0640"}], "remove": [str(other)]}
    broken = {"files": [{"path": str(there), "content": "x", "validate": "sh -c 'echo no >&2; exit 3' %s"}]}
    said = {
        "dest": str(tmp_path / "said.json"),
        "content": "{{ {'done': done, 'failed': failed} | to_json }}",
    }
    play = {
        "hosts": "localhost", "connection": "local", "gather_facts": False,
        "tasks": [
            {FILES: files, "register": "done"},
            {FILES: broken, "register": "failed", "ignore_errors": True},
            {"ansible.builtin.copy": said, "check_mode": False},
        ],
    }  # fmt: skip
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    other.touch()
    collections = {"ANSIBLE_COLLECTIONS_PATH": str(link_collection(tmp_path / "linked"))}
    run("ansible-playbook", "--check", "play.yml", folder=tmp_path, **collections)
    answer = json.loads((tmp_path / "said.json").read_text())
    assert (answer["done"]["changed"], answer["done"]["removed"]) == (True, [str(other)])
    assert answer["done"]["diff"][0]["after"] == "[Unit]\n"
    assert (there.exists(), other.exists()) == (False, True)
    if os.geteuid():
        return  # only root can set root as owner
    run("ansible-playbook", "play.yml", folder=tmp_path, **collections)
    answer = json.loads((tmp_path / "said.json").read_text())
    assert (there.read_text(), there.stat().st_mode & 0o777, other.exists()) == ("[Unit]\n", 0o640, False)
    assert answer["failed"]["msg"] == f"{there} would not be valid: no"
    assert answer["failed"]["rc"] == 3


@pytest.mark.thorough
def test_programs_and_units_have_no_library_of_ansibles(tmp_path: Path) -> None:
    echo = {"argv": ["sh", "-c", "cat; echo $WORD; echo no >&2; exit $0", "3"], "stdin": "it's\n"}
    (tmp_path / "systemctl").write_text(
        '#!/bin/sh\ntest "$1" = is-enabled && echo disabled\ntest "$1" != enable\n'
    )
    (tmp_path / "systemctl").chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    said = {
        "dest": str(tmp_path / "said.json"),
        "content": "{{ {'looked': looked, 'ran': ran, 'silent': silent, 'unit': unit} | to_json }}",
    }
    unit, lost = {"name": "docker.service", "enabled": True}, {"argv": ["sh", "-c", "exit 255"]}
    play = {
        "hosts": "localhost", "connection": "local", "gather_facts": False,
        "tasks": [
            {COMMAND: {"argv": ["cat"]}, "register": "looked", "check_mode": False, "changed_when": False},
            {COMMAND: echo, "environment": {"WORD": "two"}, "register": "ran", "ignore_errors": True},
            {COMMAND: {"argv": ["true"]}, "register": "silent"},
            {COMMAND: lost, "register": "lost", "failed_when": "lost.rc != 254"},
            {UNIT: unit, "environment": path, "register": "unit", "ignore_errors": True},
            {"ansible.builtin.copy": said, "check_mode": False},
        ],
    }  # fmt: skip
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    collections = {"ANSIBLE_COLLECTIONS_PATH": str(link_collection(tmp_path / "linked"))}

    def answers(*words: str) -> dict[str, Any]:
        """Run the play with these options; return what it has written."""
        run("ansible-playbook", *words, "play.yml", folder=tmp_path, **collections)
        found: dict[str, Any] = json.loads((tmp_path / "said.json").read_text())
        return found

    found = answers()
    assert (found["looked"]["stdout"], found["looked"]["changed"]) == ("", False)
    result = {key: found["ran"][key] for key in ("rc", "stdout_lines", "stderr_lines", "msg", "failed")}
    assert result == {
        "rc": 3,
        "stdout_lines": ["it's", "two"],
        "stderr_lines": ["no"],
        "msg": "non-zero return code",
        "failed": True,
    }
    assert found["silent"]["changed"]
    assert found["unit"]["msg"] == (
        "docker.service could not be enabled: 1; see `journalctl --unit=docker.service` on the node"
    )
    found = answers("--check")
    assert ("skipped" in found["looked"], found["ran"]["skipped"], found["silent"]["skipped"]) == (
        False,
        True,
        True,
    )
    assert (found["unit"]["changed"], found["unit"]["acts"]) == (True, ["enable"])


HERE = """
import json, os, sys
print("a banner"); print(json.dumps({"asked": json.load(sys.stdin), "here": os.getcwd()}))
"""


def test_a_script_on_the_controller_is_not_run_on_a_node_of_its_name(tmp_path: Path) -> None:
    """Have a host `localhost` in the inventory, which would get what is delegated there."""
    files, tasks = tmp_path / "roles/asking/files", tmp_path / "roles/asking/tasks"
    files.mkdir(parents=True)
    tasks.mkdir()
    (files / "echo.py").write_text(HERE)
    (files / "leave.py").write_text("import sys; sys.exit('no such table')")
    listed = [
        {"name": "Ask", CONTROLLER: {"script": "echo.py", "question": QUESTION}, "register": "mapping"},
        {"name": "Ask", CONTROLLER: {"script": "echo.py", "question": "{{ [1, none] | to_json }}"},
         "register": "text"},
        {"name": "Ask", CONTROLLER: {"script": "leave.py"}, "register": "left", "ignore_errors": True},
        {"name": "Keep", "ansible.builtin.debug":
         {"msg": "{{ mapping.document.asked == question and text.document.asked == [1, none]"
                 " and left.msg == 'leave.py gave no answer: no such table' }}"}},
    ]  # fmt: skip
    (tasks / "main.yml").write_text(yaml.safe_dump(listed))
    question = {**QUESTION, "name": "it's templated"}
    play = {"hosts": "all", "gather_facts": False, "roles": ["asking"], "vars": {"question": question}}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    hosts = {"localhost": {"ansible_host": "192.0.2.1", "ansible_connection": "ssh"}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {"gpu1": {}, **hosts}}}))
    done = run(
        "ansible-playbook", "-i", "hosts.yml", "play.yml", folder=tmp_path,
        ANSIBLE_COLLECTIONS_PATH=str(link_collection(tmp_path / "collections")),
    )  # fmt: skip
    assert done.stdout.count('"msg": true') == 2, done.stdout

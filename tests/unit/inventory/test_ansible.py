"""Fleet as an inventory that Ansible itself reads without warnings, and the conversion back."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuprov.cli.common.group import run
from gpuprov.files.resources import link_collection, share
from gpuprov.inventory.ansible import group_name, inventory_of
from gpuprov.inventory.imports import ImportHints, import_fleet
from gpuprov.model.documents import render_plain
from gpuprov.model.fleet import Fleet, parse_fleet, read_fleet
from gpuprov.model.lock import write_lock
from tests.unit.inventory.conftest import MakeLock
from tests.unit.inventory.test_profiles import NAMES, of_the_mirror
from tests.unit.programs import write_program

FLEET = """\
plugin: gpuprov
groups:
  train-a:
    profile: hgx-h100-8
    hosts: {gpu01: 10.0.0.1, gpu02: '2001:db8::2'}
    os: ubuntu24.04
    site: fra1
    stack: {driver: 580}
    settings: {clocks: {graphics: 1500, memory: 2619}}
    hardware: {cpu_cores: null, memory_gib: 1900}
    vars: {rack: r1, nested: {a: [1, yes, null]}, template: '{{ rack }}-x'}
  infer:
    profile: inference-l4
    hosts: l[1-3]
    os: ubuntu24.04
also:
  all: {vars: {ntp: 10.0.0.1}}
  pilot: {hosts: 'gpu01,l2', vars: {pilot: true}}
  both: {children: [train-a, pilot]}
host_vars:
  l3: {rack: r9}
ssh: {user: ops, port: 2222}
reboot: {batch: 2}
"""
AWKWARD = """\
groups:
  8xH100: {profile: hgx-h100-8, hosts: [infer, web-1.example.org], os: ubuntu24.04}
  infer: {profile: inference-l4, hosts: 'all1', os: ubuntu24.04}
  arch_x86_64: {profile: inference-l4, hosts: 'n[08-11]', os: ubuntu24.04}
"""

PLUGIN = {"ANSIBLE_INVENTORY_PLUGINS": str(share("plugins") / "inventory")}
"""Environment for a fleet that only names the plugin."""


def ansible(folder: Path, *words: str, **environment: str) -> str:
    """Return the output of ansible-inventory; fail on a warning."""
    program = Path(sys.executable).with_name("ansible-inventory")
    plain = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    done = subprocess.run(
        [str(program), *words],
        cwd=folder,
        env={**plain, **(environment or PLUGIN), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "fleet.yml").write_text(FLEET)
    return tmp_path


def generated(folder: Path) -> Path:
    assert run(["inventory", "generate", str(folder / "out"), "-F", str(folder / "fleet.yml")]) == 0
    return folder / "out"


@pytest.mark.thorough
def test_ansible_reads_the_folder_and_the_fleet_alike(folder: Path) -> None:
    generated(folder)
    from_folder = json.loads(ansible(folder, "-i", "out", "--list"))
    assert from_folder == json.loads(ansible(folder, "-i", "fleet.yml", "--list"))
    graph = ansible(folder, "-i", "fleet.yml", "--graph", "gpu_h100_sxm5_80gb")
    assert graph.split() == ["@gpu_h100_sxm5_80gb:", "|--@train_a:", "|", "|--gpu01", "|", "|--gpu02"]
    hosts = from_folder["_meta"]["hostvars"]
    assert hosts["gpu02"]["ansible_host"] == "2001:db8::2"
    assert (hosts["gpu01"]["ansible_user"], hosts["gpu01"]["ntp"]) == ("ops", "10.0.0.1")
    assert hosts["l3"]["rack"] == "r9"


def came_back(folder: Path) -> dict[str, Any]:
    """Return the fleet that is imported from a folder, whose repositories the user must state again."""
    lines: list[str] = []
    back = parse_fleet(render_plain(import_fleet([folder], ImportHints(), narrate=lines.append)), "back")
    assert [line.partition(": ")[2].partition(";")[0] for line in lines] == ["repositories"]
    return back.model_dump()


def whole(path: Path) -> dict[str, Any]:
    """Return a fleet without its repositories."""
    return {**read_fleet(path).model_dump(), "repositories": {}}


def test_a_group_that_ansible_calls_otherwise_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generated(folder)
    assert "renamed for Ansible: train-a is train_a\n" in capsys.readouterr().err
    (folder / "fleet.yml").write_text(FLEET.replace("train-a", "train"))
    generated(folder)
    assert "renamed for Ansible" not in capsys.readouterr().err


def test_a_fleet_as_init_writes_it_is_an_inventory_where_the_collection_is_installed(tmp_path: Path) -> None:
    fleet = ["-F", str(tmp_path / "fleet.yml")]
    assert run(["init", "--profile", "hgx-h100-8", "--hosts", "gpu[01-02]", "--os", "debian12", *fleet]) == 0
    installed = link_collection(tmp_path / "collections")
    graph = ansible(tmp_path, "-i", "fleet.yml", "--graph", "gpu", ANSIBLE_COLLECTIONS_PATH=str(installed))
    assert graph.split() == ["@gpu:", "|--gpu01", "|--gpu02"]


@pytest.mark.thorough
def test_an_inventory_script_answers_as_ansible_asks(folder: Path) -> None:
    program = Path(sys.executable).with_name("gpuprov")
    write_program(folder / "inventory.sh", f'exec {program} inventory list -F {folder}/fleet.yml "$@"')
    listed = json.loads(ansible(folder, "-i", "inventory.sh", "--list"))
    assert listed["_meta"]["hostvars"]["gpu01"]["rack"] == "r1"
    assert json.loads(ansible(folder, "-i", "inventory.sh", "--host", "l3"))["rack"] == "r9"


@pytest.mark.parametrize("text", [FLEET, AWKWARD], ids=["full", "awkward"])
def test_a_fleet_comes_back_whole(tmp_path: Path, text: str) -> None:
    (tmp_path / "fleet.yml").write_text(text)
    lines: list[str] = []
    back = import_fleet([generated(tmp_path)], ImportHints(), narrate=lines.append)
    wanted = (tmp_path / "fleet.yml").read_text().replace(", template: '{{ rack }}-x'", "")
    assert parse_fleet(render_plain(back), "back") == parse_fleet(wanted, "fleet.yml")
    assert [line.partition(";")[0] for line in lines] == [
        "left out, because they are templates, which Ansible expands: template (group train-a)"
    ] * (wanted != text)


def test_a_locked_fleet_tells_roles_what_to_do_and_comes_back_whole(tmp_path: Path, locked: MakeLock) -> None:
    groups = AWKWARD + "also: {odd: {hosts: 'n08'}}\n"
    lock = locked(groups)
    write_lock(lock, tmp_path / "fleet.lock.yml")
    out = generated(tmp_path)
    listed = json.loads(ansible(tmp_path, "-i", "out", "--list"))
    driver = lock.groups["infer"].components.driver
    assert listed["_meta"]["hostvars"]["all1"]["nvidia_driver_packages"] == driver.closure
    assert came_back(out) == whole(tmp_path / "fleet.yml")


def test_what_the_lock_decides_is_not_said_twice(tmp_path: Path, locked: MakeLock, capsys: Any) -> None:
    text = AWKWARD.replace("hosts: 'all1'", "hosts: 'all1', vars: {nvidia_driver_version: '1'}")
    write_lock(locked(text), tmp_path / "fleet.lock.yml")
    assert run(["inventory", "list", "-F", str(tmp_path / "fleet.yml")]) == 2
    assert "groups.infer.vars states nvidia_driver_version, which the lock decides" in capsys.readouterr().err


def test_a_second_writing_removes_what_is_gone_and_touches_nobody_elses(folder: Path, capsys: Any) -> None:
    out = generated(folder)
    (folder / "fleet.yml").write_text(AWKWARD)
    generated(folder)
    assert not (out / "group_vars/train_a.yml").exists()
    (out / "host_vars/mine.yml").write_text("a: 1\n")
    assert run(["inventory", "generate", str(out), "-F", str(folder / "fleet.yml")]) == 2
    assert "mine.yml was not written by gpuprov" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_named(
    folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a file in the folder whose writer is not known stays, and the usage error names it."""
    out = generated(folder)

    def refuse(path: Path, *_: Any, **__: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    (out / "host_vars/theirs.yml").write_text("a: 1\n")
    known = Path.open
    monkeypatch.setattr(
        Path, "open", lambda path, *a, **k: (refuse if path.name == "theirs.yml" else known)(path, *a, **k)
    )
    assert run(["inventory", "generate", str(out), "-F", str(folder / "fleet.yml")]) == 2
    assert f"{out}/host_vars/theirs.yml cannot be used: Permission denied" in capsys.readouterr().err
    assert (out / "host_vars/theirs.yml").exists()


def test_hosts_keep_names_that_groups_have() -> None:
    fleet = Fleet.model_validate(parse_fleet(AWKWARD, "x").model_dump())
    names = inventory_of(fleet, {}).groups
    assert {"_8xh100", "infer_hosts", "arch_x86_64", "arch_x86_64_hosts"} <= names.keys()


@pytest.mark.parametrize(
    ("text", "name"),
    [("train", "train"), ("Train_A", "Train_A"), ("HGX H200-8", "hgx_h200_8"), ("8x", "_8x"), ("ü", "group")],
)
def test_group_names_are_ansibles(text: str, name: str) -> None:
    assert group_name(text) == name


@pytest.mark.parametrize(
    ("also", "words"),
    [
        ("also: {x: {hosts: nobody}}", "also.x.hosts names nobody"),
        ("also: {x: {children: [y]}}", "also.x.children names y"),
        ("also: {infer: {}}", "infer is already a group"),
        ("host_vars: {nobody: {a: 1}}", "host_vars names nobody"),
    ],
)
def test_what_further_groups_speak_of_must_be_there(
    also: str, words: str, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "fleet.yml").write_text(AWKWARD + also + "\n")
    assert run(["inventory", "list", "-F", str(tmp_path / "fleet.yml")]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.thorough
def test_every_shipped_profile_goes_to_ansible_and_back(tmp_path: Path, locked: MakeLock) -> None:
    rows = [
        f"  {name}: {{profile: {name}, hosts: 'n{number}-[1-2]', os: ubuntu24.04, {of_the_mirror(name)}}}"
        for number, name in enumerate(NAMES)
    ]
    write_lock(locked("groups:\n" + "\n".join(rows) + "\n"), tmp_path / "fleet.lock.yml")
    out = generated(tmp_path)
    listed = json.loads(ansible(tmp_path, "-i", "out", "--list"))
    assert len(listed["_meta"]["hostvars"]) == 2 * len(NAMES)
    assert all(own["nvidia_driver_packages"] for own in listed["_meta"]["hostvars"].values())
    assert came_back(out) == whole(tmp_path / "fleet.yml")


@pytest.mark.parametrize("how", ["folder", "plugin", "script"])
def test_ansible_evaluates_the_sites_own_templates_and_no_text_of_gpuprovs(folder: Path, how: str) -> None:
    """Do not evaluate text from gpuprov: `inventory discover` writes text from nodes into fleet.yml."""
    hostile = f"/k/{{{{ lookup('pipe', 'touch {folder}/touched') }}}}"
    fleet = FLEET.replace("ssh: {user: ops,", f"ssh: {{user: ops, identity_file: {json.dumps(hostile)},")
    (folder / "fleet.yml").write_text(fleet)
    inventory = "fleet.yml"
    if how == "folder":
        assert run(["inventory", "generate", str(folder / "made"), "-F", str(folder / "fleet.yml")]) == 0
        inventory = "made"
    elif how == "script":
        command = f"exec {sys.executable} -m gpuprov inventory list --fleet {folder}/fleet.yml"
        inventory = str(write_program(folder / "list.sh", command))
    shown = "{{ [ansible_ssh_private_key_file, gpuprov_fleet.ssh.identity_file, template | default('')] }}"
    program = Path(sys.executable).with_name("ansible")
    done = subprocess.run(
        [str(program), "gpu01", "-i", inventory, "-c", "local", "-m", "debug", "-a", f'msg="{shown}"'],
        cwd=folder, env={**os.environ, **PLUGIN, "NO_COLOR": "1"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (folder / "touched").exists()
    [key, stated, template] = json.loads(done.stdout.partition("=> ")[2])["msg"]
    assert (key, stated) == (hostile, hostile)
    assert template == ("r1-x" if how != "script" else template)


def test_the_mark_of_text_goes_and_comes_back(folder: Path) -> None:
    text = {"__ansible_unsafe": "{{ x }}"}
    fleet = FLEET.replace("vars: {rack: r1,", f"vars: {{rack: {json.dumps(text)},")
    (folder / "fleet.yml").write_text(fleet)
    assert run(["inventory", "generate", str(folder / "made"), "-F", str(folder / "fleet.yml")]) == 0
    assert "rack: !unsafe '{{ x }}'" in (folder / "made/group_vars/train_a.yml").read_text()
    found = import_fleet([folder / "made"], ImportHints({}, {}))
    assert found["groups"]["train-a"]["vars"] == {"rack": text, "nested": {"a": [1, True, None]}}


@pytest.mark.parametrize("link", ["out/hosts.yml", "out/group_vars"])
def test_no_link_leads_a_file_of_the_inventory_elsewhere(folder: Path, capsys: Any, link: str) -> None:
    """Check a folder that came with a repository of another person."""
    home = folder / "home"
    home.mkdir()
    (home / "train_a.yml").write_text("mine\n")
    (folder / "out").mkdir()
    (folder / link).symlink_to(home / "new.yml" if link.endswith(".yml") else home)
    assert run(["inventory", "generate", str(folder / "out"), "-F", str(folder / "fleet.yml")]) == 2
    assert f"{link} was not written by gpuprov" in capsys.readouterr().err
    assert [path.name for path in home.iterdir()] == ["train_a.yml"]
    assert (home / "train_a.yml").read_text() == "mine\n"


def test_no_link_leads_the_schema_or_the_fleet_of_init_elsewhere(tmp_path: Path, capsys: Any) -> None:
    mine, fleet, schema = tmp_path / "mine", tmp_path / "fleet.yml", tmp_path / ".fleet.schema.json"
    mine.write_text("mine\n")
    schema.symlink_to(mine)
    words = ["init", "--profile", "hgx-h200-8", "--hosts", "gpu01", "--os", "debian12", "-F", str(fleet)]
    fleet.symlink_to(tmp_path / "new")
    assert run(words) == 2
    assert "is a link to a file that does not exist" in capsys.readouterr().err
    fleet.unlink()
    assert run(words) == 0
    assert (mine.read_text(), schema.is_symlink()) == ("mine\n", False)

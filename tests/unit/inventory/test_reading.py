"""Reading of hostile Ansible inventories: wrong types, aliases, and limits of Ansible's answer."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpuprov.errors import InvalidInput
from gpuprov.inventory.imports import ImportHints, import_fleet, reading
from gpuprov.untrusted.programs import Answer
from tests.unit.samples import sample

ALL = ImportHints({"": "hgx-h100-8"}, {"": "debian12"})
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "group, text": ({"g": {"gpuprov_group": "x"}}, "group g: gpuprov_group is 'x'; expected a mapping"),
    "group, list": ({"g": {"gpuprov_group": [1]}}, "group g: gpuprov_group is '[1]'; expected a mapping"),
    "group, null": ({"g": {"gpuprov_group": None}}, "group g: gpuprov_group is 'None'; expected a mapping"),
    "its name": ({"g": {"gpuprov_group": {"name": [1]}}}, "gpuprov_group.name is '[1]'; expected text"),
    "name": ({"g": {"gpuprov_name": [1, 2]}}, "group g: gpuprov_name is '[1, 2]'; expected text"),
    "host": ({"n1": {"gpuprov_host": 5}}, "host n1: gpuprov_host is '5'; expected a mapping"),
    "its ssh": ({"n1": {"gpuprov_host": {"ssh": 5}}}, "host n1: gpuprov_host.ssh is '5'; expected a mapping"),
    "its variables": (
        {"n1": {"gpuprov_host": {"variables": 5}}}, "host.variables is '5'; expected a list of names"),
    "items": (
        {"n1": {"gpuprov_host": {"variables": [{}]}}},
        "gpuprov_host.variables is '[{}]'; expected a list of names"),
    "fleet, list": ({"all": {"gpuprov_fleet": [1]}}, "group all: gpuprov_fleet is '[1]'; expected a mapping"),
    "fleet, text": ({"all": {"gpuprov_fleet": "x"}}, "group all: gpuprov_fleet is 'x'; expected a mapping"),
    "kinds": ({"all": {"gpuprov_kinds": 5}}, "group all: gpuprov_kinds is '5'; expected a list of names"),
    "groups": ({"all": {"gpuprov_fleet": {"groups": {}}}}, "group all: gpuprov_fleet has the key groups"),
}  # fmt: skip


def inventory(path: Path, variables: dict[str, Any]) -> Path:
    """Write an inventory of the group `g` with the host `n1`, and variables of a host or group."""
    group = {"hosts": {"n1": variables.get("n1", {})}, "vars": variables.get("g", {})}
    whole = {"all": {"children": {"g": group}, "vars": variables.get("all", {})}}
    path.write_text(json.dumps(whole))
    return path


@pytest.mark.thorough
@pytest.mark.parametrize("name", sample(WRONG, 3, "wrong"))
def test_a_variable_of_another_type_is_named(tmp_path: Path, name: str) -> None:
    variables, words = WRONG[name]
    path = inventory(tmp_path / "hosts.json", variables)
    with pytest.raises(InvalidInput) as raised:
        import_fleet([path], ALL, "ansible")
    assert str(raised.value).startswith(str(path))
    assert words in str(raised.value)


def test_a_port_of_many_digits_is_no_number(tmp_path: Path) -> None:
    found = import_fleet(
        [inventory(tmp_path / "h.json", {"n1": {"ansible_port": "9" * 5000}})], ALL, "ansible"
    )
    assert found["ssh"] == {"port": "9" * 5000}


def nested(depth: int) -> str:
    """Return YAML whose aliases add about `10 ** depth` values."""
    text = "all:\n  vars:\n    v0: &v0 [x,x,x,x,x,x,x,x,x,x]\n"
    for number in range(1, depth):
        text += f"    v{number}: &v{number} [{','.join([f'*v{number - 1}'] * 10)}]\n"
    return text + "  children: {g: {hosts: {a: }}}\n"


@pytest.mark.parametrize("depth", [5, 30])
@pytest.mark.parametrize("place", ["hosts.yml", "group_vars/all.yml", "group_vars/all"])
def test_nested_aliases_are_refused_before_ansible_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int, place: str
) -> None:
    monkeypatch.setattr("gpuprov.inventory.imports.ansible.run_bounded", None)
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "hosts.yml").write_text("g: {hosts: {a: }}\n")
    (tmp_path / place).write_text(nested(depth))
    for path in (tmp_path, tmp_path / "hosts.yml"):
        with pytest.raises(InvalidInput, match=r"aliases \(\*name\) add more than 20000 values"):
            import_fleet([path], ALL, "ansible")


def test_some_aliases_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(
        "g:\n  hosts:\n    a: &common {rack: r1, deep: [1, 2]}\n    b: *common\n    c: {<<: *common, k: 1}\n"
    )
    found = import_fleet([tmp_path / "hosts.yml"], ALL, "ansible")
    assert found["host_vars"]["c"] == {"rack": "r1", "deep": [1, 2], "k": 1}


def run(program: str) -> Answer:
    """Run a Python program with the limits of Ansible's answer."""
    return reading.run_bounded([sys.executable, "-c", program], {})


def test_a_command_ends_at_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of output, memory and time; children are ended too."""
    assert run("import sys; print(1); sys.exit('no')") == Answer(1, b"1\n", b"no\n")
    monkeypatch.setattr(reading, "ANSWER_BYTES", 1 << 20)
    with pytest.raises(InvalidInput, match="more than 1 MB"):
        run("while True: print('x' * 4096)")
    done = run("bytearray(8 << 30)")
    assert (done.code, b"MemoryError" in done.stderr) == (1, True)
    monkeypatch.setattr(reading, "TIMEOUT_S", 1)
    begun = time.monotonic()
    with pytest.raises(InvalidInput, match="within 1 s"):
        run("import os, time; os.fork(); time.sleep(60)")
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("group_vars/all.yml", "secret.yml"),
        ("group_vars", "vars"),
        ("host_vars/n1/deep.yml", "secret.yml"),
        ("group_vars/loop.yml", "inventory/group_vars/loop.yml"),
    ],
)
@pytest.mark.parametrize("whole", [False, True])
def test_a_link_out_of_the_inventory_is_refused(tmp_path: Path, link: str, target: str, whole: bool) -> None:
    (tmp_path / "secret.yml").write_text("token: hidden\n")
    (tmp_path / "vars").mkdir()
    (tmp_path / "vars/all.yml").write_text("token: hidden\n")
    path = tmp_path / "inventory" / link
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path / target)
    (tmp_path / "inventory/hosts").write_text("[g]\nn1\n")
    stated = tmp_path / "inventory" if whole else tmp_path / "inventory/hosts"
    with pytest.raises(InvalidInput) as raised:
        import_fleet([stated], ALL, "ansible")
    assert str(raised.value).startswith(f"{path} is a link that leads out of {tmp_path}/inventory; expected")


def test_links_inside_of_the_inventory_and_to_it_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real/group_vars").mkdir(parents=True)
    (tmp_path / "real/.git").mkdir()
    (tmp_path / "real/.git/link").symlink_to("/nowhere")
    (tmp_path / "real/hosts").write_text("[g]\nn1\n")
    (tmp_path / "real/group_vars/all.yml").write_text("rack: r1\n")
    (tmp_path / "real/group_vars/g.yml").symlink_to("all.yml")
    (tmp_path / "link").symlink_to("real")
    assert import_fleet([tmp_path / "link"], ALL)["groups"]["g"]["vars"] == {"rack": "r1"}

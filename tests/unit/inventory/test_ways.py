"""Connection settings of hosts: from a fleet to an Ansible inventory, and from an inventory to a fleet."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from time import process_time
from typing import Any

import pytest
import yaml

from gpuprov.errors import InvalidInput
from gpuprov.inventory.ansible import AnsibleGroup, AnsibleInventory, dynamic, inventory_of
from gpuprov.inventory.imports import ImportHints, import_fleet
from gpuprov.inventory.imports.ansible import fleet_of
from gpuprov.inventory.imports.ways import ways_of
from gpuprov.model.documents import render_plain
from gpuprov.model.fleet import Fleet, parse_fleet
from gpuprov.model.lock import render_lock
from gpuprov.ssh.transport import targets
from tests.unit.inventory.conftest import MakeLock
from tests.unit.programs import write_program

FLEET = """\
groups:
  train:
    profile: hgx-h100-8
    os: ubuntu24.04
    hosts:
      gpu01: 203.0.113.7:40022
      gpu02: {address: 203.0.113.7, ssh: {port: 40023, user: root}}
      gpu03: {ssh: {jump: none, identity_file: ~/own}}
    ssh: {user: ubuntu, identity_file: ~/fleet, known_hosts: known, jump: 'ops@gate:2222'}
  infer: {profile: inference-l4, os: ubuntu24.04, hosts: 'l[1-2]'}
host_vars: {gpu01: {ansible_port: 41000, rack: r1}}
ssh: {port: 2200}
"""


def imported(tmp_path: Path, text: str, name: str = "hosts") -> Fleet:
    """Write an inventory or outputs of Terraform to a file, import it, and return the parsed fleet."""
    (tmp_path / name).write_text(text)
    hints = ImportHints({"": "hgx-h100-8"}, {"": "ubuntu24.04"})
    found = import_fleet([tmp_path / name], hints, "ansible" if name == "hosts" else None)
    return parse_fleet(render_plain(found), name)


def stated(fleet: Fleet) -> dict[str, dict[str, Any]]:
    """Return host → its connection settings that are set."""
    return {
        host: fleet.connection_of(name, host).model_dump(exclude_none=True)
        for name, group in fleet.groups.items()
        for host in group.hosts
    }


def test_what_hosts_share_is_said_once_and_the_rest_of_each() -> None:
    listed = dynamic(inventory_of(parse_fleet(FLEET, "fleet.yml"), {}))
    shared, own = listed["train"]["vars"], listed["_meta"]["hostvars"]
    assert "ansible_user" not in shared
    assert [own[f"gpu0{n}"]["ansible_user"] for n in (1, 2, 3)] == ["ubuntu", "root", "ubuntu"]
    assert [own[f"gpu0{n}"]["ansible_become"] for n in (1, 2, 3)] == [True, False, True]
    assert own["gpu02"]["ansible_port"] == 40023
    assert own["gpu01"]["ansible_port"] == 41000, "the site's own variable counts"
    assert own["gpu03"]["ansible_port"] == 2200
    assert own["gpu03"]["ansible_ssh_private_key_file"] == "~/own"
    assert listed["infer"]["vars"]["ansible_port"] == 2200
    assert "l1" not in own
    words = shlex.split(own["gpu02"]["ansible_ssh_common_args"])
    through = next(word for word in words if word.startswith("ProxyCommand="))
    assert through.endswith("-W '[203.0.113.7]:40023' -- gate")
    assert "ProxyJump=none" in own["gpu03"]["ansible_ssh_common_args"]


def test_all_of_it_comes_back() -> None:
    """Check that a fleet that became an inventory and a fleet again is the same."""
    fleet = parse_fleet(FLEET, "fleet.yml")
    back = parse_fleet(render_plain(fleet_of(inventory_of(fleet, {}), ImportHints())), "back")
    assert back == fleet


def test_a_fleet_says_what_an_inventory_says_of_each_host(tmp_path: Path) -> None:
    """Apply Ansible's precedence: the closer group first, and a host's own variable before all groups."""
    text = """\
[train]
gpu01 ansible_host=203.0.113.7 ansible_port=40022
gpu02 ansible_ssh_host=203.0.113.7 ansible_ssh_port=40023
[infer]
l[1:2]
[gpu:children]
train
infer
[gpu:vars]
ansible_user=ubuntu
ansible_ssh_common_args='-o ProxyCommand="ssh -W %h:%p -q -p 2222 ops@gate"'
[infer:vars]
ansible_user=admin
ansible_ssh_common_args=-J edge
rack=r1
"""
    fleet = imported(tmp_path, text)
    train = {"user": "ubuntu", "jump": "ops@gate:2222"}
    assert stated(fleet) == {
        "gpu01": {"port": 40022, **train},
        "gpu02": {"port": 40023, **train},
        "l1": {"user": "admin", "jump": "edge"},
        "l2": {"user": "admin", "jump": "edge"},
    }
    assert fleet.groups["infer"].vars == {"rack": "r1"}
    assert "ansible" not in json.dumps(fleet.model_dump(mode="json"))


def test_what_only_ansible_can_work_out_is_left_out(tmp_path: Path) -> None:
    text = "[a]\nx ansible_port=22\n[a:vars]\nansible_user={{ lookup('env', 'ME') }}\n"
    text += "ansible_ssh_common_args=-C\n"
    fleet = imported(tmp_path, text)
    assert stated(fleet) == {"x": {"port": 22}}
    assert fleet.groups["a"].vars == {}


@pytest.mark.parametrize("port", ["70000", "22x"])
def test_a_port_that_is_none_is_said_in_one_line(tmp_path: Path, port: str) -> None:
    with pytest.raises(Exception, match=r"^hosts:\d+: .*port is .*expected") as raised:
        imported(tmp_path, f"[a]\nx ansible_port={port}\n")
    assert "\n" not in str(raised.value)


def test_the_lock_states_what_the_fleet_states_and_no_more(locked: MakeLock) -> None:
    lock = locked(FLEET)
    written = yaml.safe_load(render_lock(lock))["groups"]
    assert "connections" not in written["infer"]
    assert written["infer"]["connection"] == {"port": 2200}
    assert written["train"]["connection"] == {
        "user": "ubuntu",
        "port": 2200,
        "identity_file": "~/fleet",
        "known_hosts": "known",
        "jump": "ops@gate:2222",
    }
    assert written["train"]["connections"] == {
        "gpu01": {"port": 40022},
        "gpu02": {"user": "root", "port": 40023},
        "gpu03": {"identity_file": "~/own", "jump": "none"},
    }
    assert written["train"]["hosts"] == {"gpu01": "203.0.113.7", "gpu02": "203.0.113.7", "gpu03": "gpu03"}
    ways = {target.name: target.connection for target in targets(lock)}
    assert (ways["gpu02"].user, ways["gpu02"].port, ways["gpu02"].identity_file) == ("root", 40023, "~/fleet")


def test_a_list_of_addresses_with_ports(tmp_path: Path) -> None:
    text = "gpu01 203.0.113.7:40022\ngpu02 ubuntu@203.0.113.7:40023\nroot@203.0.113.8:22 n[1-2]\n"
    fleet = imported(tmp_path, text, "list.txt")
    assert fleet.groups["gpu"].hosts == {
        "gpu01": "203.0.113.7",
        "gpu02": "203.0.113.7",
        "203.0.113.8-22": "203.0.113.8",
        "n1": "n1",
        "n2": "n2",
    }
    assert [stated(fleet)[host] for host in ("gpu01", "gpu02", "n1")] == [
        {"port": 40022},
        {"user": "ubuntu", "port": 40023},
        {},
    ]


OUTPUTS: dict[str, Any] = {
    "gpu_public_ips": ["203.0.113.7", "203.0.113.8:40022"],
    "gpu_private_ips": ["10.0.0.1", "10.0.0.2"],
    "by_name": {"t0": "203.0.113.9"},
    "nodes": [
        {"name": "u0", "public_ip": "203.0.113.10", "ssh_user": "ubuntu", "ssh_port": 2222},
        {"name": "u1", "public_ip": "203.0.113.11", "ssh_user": "ubuntu", "ssh_port": "2223"},
    ],
    "bastion_dns": "gate.example.org",
    "count": 4,
}


def output(values: dict[str, Any]) -> str:
    """Return outputs of Terraform with these values, as text."""
    return json.dumps(
        {name: {"sensitive": False, "type": "x", "value": each} for name, each in values.items()}
    )


def test_terraforms_outputs_in_the_shapes_that_people_give_them(tmp_path: Path) -> None:
    fleet = imported(tmp_path, output(OUTPUTS), "outputs.json")
    assert {name: group.hosts for name, group in fleet.groups.items()} == {
        "gpu_public_ips": {"gpu_public_ips-0": "203.0.113.7", "gpu_public_ips-1": "203.0.113.8"},
        "by_name": {"t0": "203.0.113.9"},
        "nodes": {"u0": "203.0.113.10", "u1": "203.0.113.11"},
    }
    ways = stated(fleet)
    assert ways["gpu_public_ips-1"] == {"port": 40022}
    assert ways["u1"] == {"user": "ubuntu", "port": 2223}
    assert fleet.groups["nodes"].ssh is not None
    private = imported(tmp_path, output({"gpu_private_ips": ["10.0.0.1"]}), "private.json")
    assert list(private.groups["gpu_private_ips"].hosts.values()) == ["10.0.0.1"]


def test_outputs_without_a_machine_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match=r"^none of the outputs names a machine: vpc, count; expected addresses"
    ):
        imported(tmp_path, output({"vpc": "vpc-1", "count": 3}), "outputs.json")
    wrong = {"nodes": [{"public_ip": "203.0.113.7", "port": "x"}]}
    with pytest.raises(InvalidInput, match=r"^output nodes: nodes-0\.port is .x.; expected") as raised:
        imported(tmp_path, output(wrong), "outputs.json")
    assert "\n" not in str(raised.value)


SCRIPT = "echo 'boto: no credentials found' >&2\nexit 3"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("aws_ec2.yml", "plugin: amazon.aws.aws_ec2\n", "Plugin configuration YAML file, not YAML inventory"),
        ("script.sh", SCRIPT, "Failed to parse inventory"),
        ("broken.yml", "all: {hosts: [a\n", "YAML parsing failed"),
        ("broken.ini", "[a:hosts\nx\n", "Failed to parse inventory"),
    ],
)
def test_why_ansible_cannot_read_an_inventory_is_passed_on(
    tmp_path: Path, name: str, text: str, words: str
) -> None:
    write_program(tmp_path / name, text) if name == "script.sh" else (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInput) as raised:
        import_fleet([tmp_path / name], ImportHints({"": "hgx-h100-8"}, {"": "ubuntu24.04"}), "ansible")
    assert str(raised.value).startswith(f"{tmp_path / name}: Ansible cannot read it as an inventory: ")
    assert words in str(raised.value)
    written = f"`ansible-inventory -i {tmp_path / name} --list --export --yaml --output hosts.yml`"
    assert str(raised.value).endswith(f"or names a plugin: {written}, then import hosts.yml")
    assert "\n" not in str(raised.value)
    assert "No inventory was parsed" not in str(raised.value)


def test_long_options_of_many_hosts_take_linear_time() -> None:
    """They are parsed once, and not at all if they are longer than any with jump hosts."""
    hosts = tuple(f"n{number}" for number in range(3000))
    for length in (4_000, 3_000_000):
        stated = {"ansible_ssh_common_args": "-o ProxyJump=" + "b" * length}
        groups = {"g": AnsibleGroup(hosts, (), stated), "all": AnsibleGroup()}
        start = process_time()
        ways_of(AnsibleInventory(groups, {}), {"g": hosts})
        assert process_time() - start < 5


def test_deep_groups_take_precedence_and_many_take_linear_time() -> None:
    """Read groups that each contain the next, in an order in which none follows those that contain it."""
    many = 3000
    groups = {
        f"g{number}": AnsibleGroup(
            (f"n{number}",), (f"g{number + 1}",) * (number < many - 1), {"ansible_user": f"u{number}"}
        )
        for number in reversed(range(many))
    }
    inventory = AnsibleInventory(groups | {"all": AnsibleGroup(vars={"ansible_port": 2200})}, {})
    start = process_time()
    ways = ways_of(inventory, {f"g{number}": [f"n{number}"] for number in range(many)})
    assert process_time() - start < 5
    assert ways.fleet == {"port": 2200}
    assert ways.groups["g2999"] == {"user": "u2999"}
    assert ways.groups["g7"] == {"user": "u7"}


def test_groups_that_contain_each_other_are_refused() -> None:
    groups = {"a": AnsibleGroup(("n1",), ("b",)), "b": AnsibleGroup((), ("a",))}
    with pytest.raises(InvalidInput, match=r"groups contain each other: [ab], [ab], [ab]"):
        ways_of(AnsibleInventory(groups, {}), {"a": ["n1"]})

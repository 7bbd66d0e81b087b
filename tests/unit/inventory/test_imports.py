"""Import of existing inventories as a fleet: no information is lost, and missing information is requested."""

from __future__ import annotations

import json
import re
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpuprov.catalog import load
from gpuprov.catalog.identity import find_system
from gpuprov.cli.common.group import run
from gpuprov.errors import InvalidInput
from gpuprov.inventory.ansible import inventory_of
from gpuprov.inventory.imports import (
    Format,
    ImportHints,
    import_fleet,
    left_out,
    machine,
    recognise,
    this_machine,
)
from gpuprov.inventory.imports.machine import Machine, groups_of
from gpuprov.inventory.instances import find_instance
from gpuprov.model.connection import Connection
from gpuprov.model.documents import render_plain
from gpuprov.model.fleet import Fleet, Group, parse_fleet
from gpuprov.model.hardware import GpuHardware, HardwareProfile, NvmeHardware
from gpuprov.model.settings import Containers, Settings, Tuning
from gpuprov.model.stack import StackPolicy
from tests.unit.hostile.timing import cost_of
from tests.unit.samples import sample

ALL = ImportHints({"": "hgx-h100-8"}, {"": "ubuntu24.04"})


def imported(path: Path, text: str, said: ImportHints = ALL, **more: Any) -> Fleet:
    """Write a text to a file, import it, and return the parsed fleet."""
    path.write_text(text)
    return parse_fleet(render_plain(import_fleet([path], said, **more)), "imported")


INI = """\
[login]
login1 ansible_host=10.0.0.9

[train]
gpu[01:03] rack=r1
gpu04 ansible_host=10.0.0.4

[train:vars]
queue=long

[infer]
l1
l2

[cluster:children]
train
infer

[cluster:vars]
ntp=10.0.0.1

[all:vars]
ansible_user=ops
"""


def test_an_ini_inventory_keeps_groups_addresses_and_variables(tmp_path: Path) -> None:
    said = ImportHints({"": "hgx-h100-8", "infer": "inference-l4"}, {"": "ubuntu24.04"})
    fleet = imported(tmp_path / "hosts.ini", INI, said, form="ansible")
    assert fleet.groups["infer"].profile == "inference-l4"
    assert fleet.groups["train"].hosts["gpu04"] == "10.0.0.4"
    assert fleet.groups["train"].vars == {"queue": "long"}
    assert fleet.host_vars["gpu02"] == {"rack": "r1"}
    assert set(fleet.also["cluster"].children) == {"train", "infer"}
    assert fleet.also["cluster"].vars == {"ntp": "10.0.0.1"}
    assert fleet.ssh.user == "ops"


def test_a_yaml_inventory_with_its_folders_is_the_same_to_ansible_afterwards(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/a.yml").write_text("deep: {x: [1, 2]}\nansible_user: root\n")
    (tmp_path / "hosts.yml").write_text(
        "a: {hosts: {n1: {ansible_host: 10.1.1.1}, n2: {}}}\nb: {hosts: {n2: {}, n3: {k: v}}}\n"
    )
    found = import_fleet([tmp_path], ALL)
    fleet = parse_fleet(render_plain(found), "imported")
    inventory = inventory_of(fleet, {})
    assert set(inventory.groups["a"].hosts) == {"n1", "n2"}
    assert set(inventory.groups["b"].hosts) == {"n2", "n3"}
    assert inventory.groups["a"].vars["deep"] == {"x": [1, 2]}
    assert inventory.groups["a"].vars["ansible_user"] == "root"
    assert inventory.host_vars == {"n1": {"ansible_host": "10.1.1.1"}, "n3": {"k": "v"}}


SAME = {
    "kinds": ("a: {hosts: {n1: , n2: }, vars: {gpuprov_name: train}}\n"
              "b: {hosts: {n3: }, vars: {gpuprov_name: train}}\n", "a and b have the name train"),
    "a name": ("train: {hosts: {n1: }}\n"
               "b: {hosts: {n3: }, vars: {gpuprov_name: train}}\n", "b and train have"),
    "further groups": (
        "a: {hosts: {n1: }}\nx: {children: {a: }, vars: {gpuprov_name: c, k: 1}}\n"
        "y: {children: {a: }, vars: {gpuprov_name: c}}\n", "x and y have the name c in the fleet; expected"),
    "without a group": (
        "a: {hosts: {n1: }, vars: {gpuprov_name: hosts}}\nungrouped: {hosts: {n2: }}\n", "a and hosts have"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), SAME.values(), ids=SAME)
def test_two_groups_with_one_name_are_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        imported(tmp_path / "hosts.yml", text, form="ansible")


def test_hosts_without_a_group_get_a_name_that_no_group_has(tmp_path: Path) -> None:
    text = "hosts: {hosts: {n1: }}\nother_hosts: {hosts: {n2: }}\nungrouped: {hosts: {n3: }}\n"
    fleet = imported(tmp_path / "hosts.yml", text, form="ansible")
    assert {name: list(group.hosts) for name, group in fleet.groups.items()} == {
        "hosts": ["n1"], "other_hosts": ["n2"], "other_hosts2": ["n3"]}  # fmt: skip


def test_a_partition_with_the_name_of_a_group_replaces_no_other(tmp_path: Path) -> None:
    text = "NodeName=n[1-3] Gres=gpu:l4:1\nPartitionName=partition_l4 Nodes=n1\nPartitionName=l4 Nodes=n2\n"
    fleet = imported(tmp_path / "slurm.conf", text)
    assert {name: group.hosts for name, group in fleet.also.items()} == {
        "partition_l4": ["n1"], "partition_partition_l4": ["n2"]}  # fmt: skip


def test_the_group_that_is_a_kind_can_be_named(tmp_path: Path) -> None:
    text = "[a]\nn1\nn2\n[b]\nn2\nn3\n"
    fleet = imported(tmp_path / "hosts", text, form="ansible", wanted=["b"])
    assert {name: list(group.hosts) for name, group in fleet.groups.items()} == {"b": ["n2", "n3"]}
    assert fleet.also["a"].hosts == ["n2"]


def test_groups_that_one_profile_makes_gpu_servers_are_named(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "hosts"
    path.write_text("[gpu]\nn1\n[monitoring]\nmon1\n")
    words = ["inventory", "import", str(path), "--from", "ansible", "--profile", "dev-t4", "--os", "debian12"]
    assert run(words) == 0
    said = capsys.readouterr().err
    assert (
        said.count("the groups gpu, monitoring get the profile dev-t4; to import only some: --group NAME")
        == 1
    )
    assert run([*words, "--group", "gpu"]) == 0
    assert "get the profile" not in capsys.readouterr().err


def test_hosts_of_no_named_group_are_named_and_left_out(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "hosts"
    path.write_text("[a]\nn1\n[b]\nn2\n[monitoring]\nmon1 k=v\nmon2\n[all:children]\na\nb\nmonitoring\n")
    words = ["inventory", "import", str(path), "--from", "ansible", "--group", "a", "--group", "b"]
    assert run([*words, "--profile", "dev-t4", "--os", "debian12"]) == 0
    said = capsys.readouterr()
    fleet = parse_fleet(said.out, "imported")
    assert {name: list(group.hosts) for name, group in fleet.groups.items()} == {"a": ["n1"], "b": ["n2"]}
    assert "mon" not in str(fleet.host_vars)
    assert "left out, as they are in none of the groups a, b: mon[1-2]" in said.err
    assert run([*words, "--profile", "dev-t4", "--profile", "hosts=dev-rtx3080", "--os", "debian12"]) == 0
    kept = parse_fleet(capsys.readouterr().out, "imported")
    assert (list(kept.groups["hosts"].hosts), kept.groups["hosts"].profile) == (
        ["mon1", "mon2"],
        "dev-rtx3080",
    )


def test_what_is_no_inventory_is_said_by_ansible(tmp_path: Path) -> None:
    (tmp_path / "x.yml").write_text("- just\n- a list\n")
    with pytest.raises(InvalidInput, match="Ansible cannot read it"):
        import_fleet([tmp_path / "x.yml"], ALL, "ansible")


def test_a_host_list(tmp_path: Path) -> None:
    """Check that a list of names, ranges and addresses becomes hosts of one group."""
    fleet = imported(tmp_path / "hosts.txt", "gpu[01-03], gpu07  # rack 1\nlogin 10.0.0.9\n")
    assert fleet.groups["gpu"].hosts == {
        **{name: name for name in ("gpu01", "gpu02", "gpu03", "gpu07")},
        "login": "10.0.0.9",
    }


SLURM = """\
GresTypes=gpu
NodeName=DEFAULT CPUs=128
NodeName=gpu[01-02] NodeAddr=10.0.0.[1-2] \\
  Gres=gpu:h100_sxm5_80gb:8 State=UNKNOWN
NodeName=l[1-3] Gres=gpu:l4:1
NodeName=login1 CPUs=8
PartitionName=train Nodes=gpu[01-02] Default=YES
PartitionName=everything Nodes=ALL
"""


def test_slurm_tells_nodes_gpus_and_partitions(tmp_path: Path) -> None:
    """Check groups, profiles and hosts that are read from slurm.conf."""
    said = ImportHints({"nodes": "base"}, {"": "debian12"})
    fleet = imported(tmp_path / "slurm.conf", SLURM, said)
    assert {group.profile: list(group.hosts) for group in fleet.groups.values()} == {
        "hgx-h100-8": ["gpu01", "gpu02"],
        "inference-l4": ["l1", "l2", "l3"],
        "base": ["login1"],
    }
    assert fleet.groups["h100_sxm5_80gb"].hosts["gpu02"] == "10.0.0.2"
    assert fleet.also["train"].hosts == ["gpu01", "gpu02"]
    assert len(fleet.also["everything"].hosts) == 6


def test_slurms_names_alone(tmp_path: Path) -> None:
    """Check that the output of `sinfo` gives each node once."""
    text = "NODELIST NODES PARTITION STATE\ngpu01 1 train* idle\ngpu01 1 all idle\ngpu02 1 train* idle\n"
    assert list(imported(tmp_path / "sinfo", text).groups["gpu"].hosts) == ["gpu01", "gpu02"]


def resource(kind: str, name: str, *instances: dict[str, Any]) -> dict[str, Any]:
    """Return a resource of a Terraform state with its instances' attributes."""
    rows = [{"index_key": index, "attributes": each} for index, each in enumerate(instances)]
    return {"mode": "managed", "type": kind, "name": name, "instances": rows}


STATE = {
    "version": 4,
    "terraform_version": "1.9.0",
    "resources": [
        {"mode": "data", "type": "aws_instance", "name": "other", "instances": [{"attributes": {}}]},
        resource(
            "aws_instance", "train",
            {"instance_type": "p5.48xlarge", "private_ip": "10.0.0.1", "tags": {"Name": "t0"},
             "availability_zone": "us-east-1a"},
            {"instance_type": "p5.48xlarge", "private_ip": "10.0.0.2", "availability_zone": "us-east-1a"},
            {"instance_type": "g6.xlarge", "private_ip": "10.0.0.3", "availability_zone": "us-east-1a"},
        ),
        resource(
            "google_compute_instance", "ultra",
            {"name": "u1", "machine_type": "zones/x/machineTypes/a3-ultragpu-8g",
             "network_interface": [{"network_ip": "10.2.0.1", "access_config": [{"nat_ip": "192.0.2.1"}]}],
             "zone": "europe-west1-b"},
        ),
        resource("azurerm_linux_virtual_machine", "nd",
                 {"name": "z1", "size": "Standard_ND96isr_H100_v5", "private_ip_address": "10.3.0.1"}),
        resource("oci_core_instance", "bm",
                 {"display_name": "o1", "shape": "BM.GPU4.8", "private_ip": "10.4.0.1"}),
        resource("lambdalabs_instance", "lam",
                 {"name": "m1", "instance_type_name": "gpu_1x_a10", "ip": "192.0.2.7"}),
        resource("aws_vpc", "net", {"cidr": "10.0.0.0/8"}),
    ],
}  # fmt: skip


def test_terraforms_state_tells_profiles_by_machine_type(tmp_path: Path) -> None:
    fleet = imported(tmp_path / "terraform.tfstate", json.dumps(STATE), ImportHints({}, {"": "ubuntu24.04"}))
    result = {name: (group.profile, group.hosts) for name, group in fleet.groups.items()}
    assert result == {
        "train": ("hgx-h100-8", {"t0": "10.0.0.1", "train-1": "10.0.0.2"}),
        "train-2": ("inference-l4", {"train-2": "10.0.0.3"}),
        "ultra": ("hgx-h200-8", {"u1": "192.0.2.1"}),
        "nd": ("hgx-h100-8", {"z1": "10.3.0.1"}),
        "bm": ("hgx-a100-8-40gb", {"o1": "10.4.0.1"}),
        "lam": ("inference-a10", {"m1": "192.0.2.7"}),
    }
    assert (fleet.groups["ultra"].site, fleet.groups["bm"].hardware.memory_gib) == ("europe-west1-b", 2048)


def test_machines_without_gpus_are_named_and_left_out(tmp_path: Path, capsys: Any) -> None:
    small = resource("aws_instance", "web", {"instance_type": "t3.small", "private_ip": "10.9.0.1"})
    path = tmp_path / "terraform.tfstate"
    path.write_text(json.dumps({**STATE, "resources": [*STATE["resources"], small]}))
    assert run(["inventory", "import", str(path), "--os", "ubuntu24.04"]) == 0
    said = capsys.readouterr()
    assert "web" not in parse_fleet(said.out, "imported").groups
    assert "no machine type with GPUs aws:t3.small: web-0; to import them: --profile GROUP=NAME" in said.err
    assert run(["inventory", "import", str(path), "--os", "ubuntu24.04", "--profile", "web=dev-t4"]) == 0
    assert parse_fleet(capsys.readouterr().out, "imported").groups["web"].profile == "dev-t4"
    path.write_text(json.dumps({**STATE, "resources": [small]}))
    assert run(["inventory", "import", str(path), "--os", "ubuntu24.04"]) == 2
    assert "machine type 'aws:t3.small' is not in the catalog" in capsys.readouterr().err


def test_an_output_that_is_no_server_can_be_left_out(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "outputs.json"
    outputs = {
        "gpu": {"value": ["10.0.0.1", "10.0.0.2"], "type": []},
        "lb": {"value": "10.0.0.9", "type": "string"},
    }
    path.write_text(json.dumps(outputs))
    words = ["inventory", "import", str(path), "--profile", "dev-t4", "--os", "debian12"]
    assert run(words) == 0
    said = capsys.readouterr()
    assert set(parse_fleet(said.out, "imported").groups) == {"gpu", "lb"}
    assert said.err.count("the groups gpu, lb get the profile dev-t4; to import only some: --group NAME") == 1
    assert run([*words, "--group", "gpu"]) == 0
    said = capsys.readouterr()
    assert set(parse_fleet(said.out, "imported").groups) == {"gpu"}
    assert "--group" not in said.err
    assert run([*words, "--group", "gpus"]) == 2
    assert "no machine is of gpus; expected one of gpu, lb" in capsys.readouterr().err


def test_terraforms_show_in_modules(tmp_path: Path) -> None:
    leaf = {"mode": "managed", "type": "aws_instance", "name": "n", "index": "a",
            "values": {"instance_type": "p4d.24xlarge", "public_ip": "192.0.2.9"}}  # fmt: skip
    shown = {
        "terraform_version": "1.9.0",
        "values": {"root_module": {"child_modules": [{"resources": [leaf]}]}},
    }
    fleet = imported(tmp_path / "show.json", json.dumps(shown), ImportHints({}, {"": "ubuntu24.04"}))
    assert fleet.groups["n"].hosts == {"n-a": "192.0.2.9"}


CLOUD_INIT = {
    "v1": {"cloud_name": "aws", "local_hostname": "ip-10-0-0-1", "distro": "ubuntu",
           "distro_version": "24.04",
           "machine": "x86_64", "availability_zone": "us-east-1a"},
    "ds": {"meta_data": {"instance-type": "p5.48xlarge", "local-ipv4": "10.0.0.1"}},
}  # fmt: skip
METADATA = {
    "cloud-init": (CLOUD_INIT, "ip-10-0-0-1", "hgx-h100-8"),
    "aws": ({"instanceId": "i-1", "instanceType": "g6e.12xlarge", "privateIp": "10.0.0.5",
             "architecture": "x86_64", "availabilityZone": "b"}, "i-1", "l40s-4"),
    "azure": ({"compute": {"name": "vm1", "vmSize": "Standard_ND96asr_v4", "location": "westeurope"}},
              "vm1", "hgx-a100-8-40gb"),
    "google": ({"instance": {"name": "g1", "machineType": "projects/1/machineTypes/a3-highgpu-8g",
                             "zone": "projects/1/zones/z"}}, "g1", "hgx-h100-8"),
    "oracle": ({"displayName": "bm1", "shape": "BM.GPU.H200.8", "region": "fra"}, "bm1", "hgx-h200-8"),
}  # fmt: skip


@pytest.mark.parametrize(("document", "name", "profile"), METADATA.values(), ids=METADATA)
def test_a_machines_own_metadata(tmp_path: Path, document: object, name: str, profile: str) -> None:
    fleet = imported(tmp_path / "metadata.json", json.dumps(document), ImportHints({}, {"": "ubuntu24.04"}))
    [group] = fleet.groups.values()
    assert (list(group.hosts), group.profile) == ([name], profile)


def test_metadata_of_many_machines_is_one_fleet(tmp_path: Path) -> None:
    paths = []
    for number in (1, 2):
        v1 = {**CLOUD_INIT["v1"], "local_hostname": f"n{number}"}
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(json.dumps({**CLOUD_INIT, "v1": v1}))
    fleet = parse_fleet(render_plain(import_fleet(paths, ImportHints())), "imported")
    [group] = fleet.groups.values()
    assert (list(group.hosts), group.os) == (["n1", "n2"], "ubuntu24.04")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.txt", "n1\n", "the kind of server of n1 is not stated"),
        ("a.txt", "n1 n1\n", "n1 appears twice"),
        ("a.txt", "\n", "names no machine"),
        ("a.txt", "n[1-\n", "not a set of nodes"),
        ("a.ini", "[g]\nn1\n", "give --from ansible if it is an Ansible inventory"),
        ("a.json", "{}", "not a machine's metadata"),
        ("a.json", '{"compute": {"vmSize": "x"}, "network": "x"}', "network is 'x'; expected an object"),
        ("a.json", '{"shape": "x", "hostname": "a[\\u001bK"}', "as a host name"),
        ("a.json", '{"terraform_version": "1", "resources": []}', "the state holds no machine"),
        ("slurm.conf", "NodeName=a[1-2] NodeAddr=b\n", "2 names and 1 addresses"),
    ],
)
def test_what_is_missing_is_asked_for(tmp_path: Path, capsys: Any, name: str, text: str, words: str) -> None:
    """Check that an import without a value that a fleet must state is refused, and names the option."""
    (tmp_path / name).write_text(text)
    said = ["--os", "debian12"] if name != "a.json" else []
    assert run(["inventory", "import", str(tmp_path / name), *said]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("hosts.ini", "[gpu_train]\nn1\n[lb]\nn2\n", "one of gpu_train, lb; did you mean 'gpu_train'?"),
        (
            "outputs.json",
            '{"gpu_train": {"value": ["10.0.0.1"], "type": ["list", "string"]}}',
            "one of gpu_train; did you mean 'gpu_train'?",
        ),
        ("hosts", "n[1-2]\n", "no group: there are none; --profile NAME is for all groups"),
    ],
)
def test_a_profile_of_no_group_is_named(
    tmp_path: Path, capsys: Any, name: str, text: str, words: str
) -> None:
    (tmp_path / name).write_text(text)
    form = ["--from", "ansible"] if name == "hosts.ini" else []
    said = ["--os", "debian12", "--profile", "train=dev-t4"]
    assert run(["inventory", "import", str(tmp_path / name), *form, *said]) == 2
    assert (
        f"--profile train=dev-t4 names no group of the inventory; expected {words}" in capsys.readouterr().err
    )


def test_a_fleet_is_written_once(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "hosts").write_text("n[1-2]\n")
    words = ["inventory", "import", str(tmp_path / "hosts"), "--os", "debian12", "--profile", "dev-t4"]
    words += ["--user", "ops", "-F", str(tmp_path / "fleet.yml")]
    assert run(words) == 0
    fleet = parse_fleet((tmp_path / "fleet.yml").read_text(), "fleet.yml")
    assert (fleet.ssh.user, fleet.groups["gpu"].profile) == ("ops", "dev-t4")
    assert run(words) == 2
    assert "already exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "form"),
    [("x", "gpu01\n", "hosts"),
     ("x", SLURM, "slurm"), ("x", json.dumps(STATE), "terraform"), ("x", json.dumps(CLOUD_INIT), "metadata")],
)  # fmt: skip
def test_formats_are_recognised(tmp_path: Path, name: str, text: str, form: str) -> None:
    """Check the format that is recognised for a file's content."""
    (tmp_path / name).write_text(text)
    assert recognise(tmp_path / name) == form


@pytest.mark.parametrize(("name", "text"), [("x", "[a]\ngpu01\n"), ("x.yml", "all:\n"), ("x", "gpu01 a=b\n")])
def test_an_ansible_inventory_is_never_recognised_by_content(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    said = f"{tmp_path / name} is INI or YAML; expected JSON, a list of hosts, or slurm.conf; give --from"
    with pytest.raises(InvalidInput, match=f"^{re.escape(said)} ansible if it is an Ansible inventory$"):
        recognise(tmp_path / name)
    assert recognise(tmp_path) == "ansible"


PROGRAMS = {
    "generator.yml": "plugin: ansible.builtin.generator\nlayers: {{a: [b]}}\n"
    "hosts: {{name: '{{{{ {lookup} }}}}'}}\n",
    "constructed.yml": 'plugin: ansible.builtin.constructed\nstrict: true\ncompose: {{x: "{lookup}"}}\n',
    "script.sh": "#!/bin/sh\ntouch {mark}\necho '{{}}'\n",
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("whole", [False, True])
def test_an_inventory_runs_nothing(tmp_path: Path, name: str, whole: bool) -> None:
    """Plugins expand templates, and scripts are programs: neither is used, also inside a folder."""
    folder, mark = tmp_path / "inventory", tmp_path / "ran"
    folder.mkdir()
    (folder / "hosts.ini").write_text("[g]\nn1\n")
    lookup = f"lookup('pipe', 'touch {mark}')"
    (folder / name).write_text(PROGRAMS[name].format(lookup=lookup, mark=mark))
    (folder / name).chmod(0o755)
    with pytest.raises(InvalidInput, match="Ansible cannot read it") as raised:
        import_fleet([folder if whole else folder / name], ALL, "ansible")
    assert "ansible-inventory -i" in raised.value.do
    assert not mark.exists()


def test_an_ansible_cfg_of_the_working_directory_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = "from ansible.plugins.vars import BaseVarsPlugin\nopen({!r}, 'w')\n"
    (tmp_path / "vars").mkdir()
    (tmp_path / "vars/mine.py").write_text(plugin.format(str(tmp_path / "ran")))
    settings = "[defaults]\nvars_plugins = ./vars\nvariable_plugins_enabled = host_group_vars,mine\n"
    (tmp_path / "ansible.cfg").write_text(settings)
    monkeypatch.chdir(tmp_path)
    imported(tmp_path / "hosts.ini", "[g]\nn1\n", form="ansible")
    assert not (tmp_path / "ran").exists()


HERE = ("local", "root@local", "local:22", "127.0.0.1", "127.1", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]",  # noqa: S104
        "ip6-localhost", "x.localhost", "2130706433", "localhost6", "localhost4.localdomain4")  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("address", HERE)
def test_an_import_does_not_make_the_controller_a_node(tmp_path: Path, address: str) -> None:
    """Refuse addresses of this machine in lists, inventories and metadata; a person may add them."""
    with pytest.raises(InvalidInput, match=r"this machine; expected the address of another machine"):
        imported(tmp_path / "hosts", f"gpu01\ngpu02 {address}\n", form="hosts")
    to = address.rpartition("@")[2].removesuffix(":22").strip("[]")
    if address in sample(HERE, 4, "ansible"):
        with pytest.raises(InvalidInput, match=r"the address of gpu02 is .*: this machine"):
            imported(tmp_path / "hosts.ini", f"[g]\ngpu01\ngpu02 ansible_host={to}\n", form="ansible")
    aws = {"instanceId": "i-0abc", "privateIp": to, "instanceType": "p5.48xlarge", "architecture": "x86_64"}
    with pytest.raises(InvalidInput, match=r"the address of i-0abc is .*: this machine|privateIp"):
        imported(tmp_path / "meta.json", json.dumps(aws), form="metadata")


def test_a_plain_name_of_this_machine_is_refused_and_others_are_not(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="the address of local is local: this machine"):
        imported(tmp_path / "hosts", "gpu01\ngpu02\nlocal\n", form="hosts")
    assert imported(tmp_path / "hosts", "local1\nlocalhost1 128.0.0.1\n", form="hosts").groups


def test_a_host_with_an_address_of_this_machine_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(this_machine, "interface_addresses", lambda: {"eth0": ["192.0.2.7/24", "fd00::7/64"]})
    monkeypatch.setattr(socket, "gethostname", lambda: "CTL1")
    monkeypatch.setattr(this_machine, "HOSTS", tmp_path / "etc-hosts")
    (tmp_path / "etc-hosts").write_text(
        "127.0.1.1 ctl1.example.com ctl1 # ctl2\n\n192.0.2.7\tCTL3\n192.0.2.8 gpu03\n::1\n"
    )
    (tmp_path / "hosts").write_text(
        "gpu01 192.0.2.6\ngpu02 192.0.2.7\nctl1\nctl1.example.com\nctl2\nctl3\ngpu03\n"
        "192.0.519\n0xc0000207\ngpu06 ::ffff:192.0.2.7\ngpu07 FD00:0::7\n"
    )
    lines: list[str] = []
    import_fleet([tmp_path / "hosts"], ALL, "hosts", narrate=lines.append)
    assert [line.partition(": remove")[0] for line in lines] == [
        "gpu02 (192.0.2.7) is this machine",
        "ctl1 (ctl1) is this machine",
        "ctl1.example.com (ctl1.example.com) is this machine",
        "ctl3 (ctl3) is this machine",
        "192.0.519 (192.0.519) is this machine",
        "0xc0000207 (0xc0000207) is this machine",
        "gpu06 (::ffff:192.0.2.7) is this machine",
        "gpu07 (FD00:0::7) is this machine",
    ]


@pytest.mark.parametrize("form", ["hosts", "metadata"])
def test_an_import_cannot_name_a_host_as_the_builder_that_is_no_host(tmp_path: Path, form: Any) -> None:
    """Refuse a host `image`: its kernel modules would go to all nodes that trust those of an image."""
    aws = {"instanceId": "image", "privateIp": "10.0.0.6", "instanceType": "p5.48xlarge"}
    text = json.dumps({**aws, "architecture": "x86_64"}) if form == "metadata" else "gpu01\nimage\n"
    with pytest.raises(InvalidInput, match="'image', which has a meaning in Ansible or gpuprov"):
        imported(tmp_path / "file", text, form=form)


HOSTILE = {
    "g": {
        "hosts": {"n1": {"ansible_python_interpreter": "/tmp/x", "deep": {"a": ["{{ x }}"]}}, "n2": {"k": 1}},
        "vars": {
            "ansible_ssh_common_args": "-oProxyCommand=x",
            "ansible_host": "-x",
            "{{ k }}": 1,
            "mitogen_via": "evil.example.org",
            "rack": 1,
        },
    },
    "all": {
        "vars": {
            "gpuprov_fleet": {
                "rollout": {"hooks": {"drain": "touch x"}},
                "secure_boot": {"certificate": "c", "key": {"command": "touch x"}},
                "also": {"more": {"hosts": "n1", "vars": {"ansible_connection": "local"}}},
            }
        }
    },
}


def test_what_runs_something_is_named_and_left_out(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "hosts.json").write_text(json.dumps(HOSTILE))
    words = ["inventory", "import", str(tmp_path / "hosts.json"), "--os", "debian12", "--profile", "dev-t4"]
    assert run([*words, "--from", "ansible", "-F", str(tmp_path / "fleet.yml")]) == 0
    fleet = parse_fleet((tmp_path / "fleet.yml").read_text(), "fleet.yml")
    assert fleet.groups["g"].vars == {"rack": 1}
    assert fleet.host_vars == {"n2": {"k": 1}}
    assert (fleet.rollout, fleet.secure_boot, fleet.also["more"].vars) == (None, None, {})
    runs, expands, _ = capsys.readouterr().err.splitlines()
    assert "runs or installs, or contain passwords: rollout, secure_boot, ansible_" in runs
    for name in ("mitogen_via (group g)", "ansible_ssh_common_args (group g)", "ansible_host (group g)",
                 "ansible_connection (group more)", "ansible_python_interpreter (n1)"):  # fmt: skip
        assert name in runs
    assert "templates, which Ansible expands: {{ k }} (group g), deep (n1); check them in " in expands


TRUSTED = {
    "ssh": {"user_ca": ["ssh-ed25519 AAAA eve"], "banner": "{{ lookup('pipe', 'id') }}"},
    "firewall": {"ssh_from": ["192.0.2.0/24"]},
    "tuning": {
        "environment": {"LD_PRELOAD": "/tmp/x.so", "A": "{{ x }}"},
        "sysctl": {"kernel.core_pattern": "|/tmp/x"},
        "numa_balancing": False,
    },
    "nccl": {"NCCL_NET_PLUGIN": "/tmp/x.so"},
    "scratch": [{"device": "/dev/sda", "mount": "/x"}],
    "monitoring": {"textfile": "/etc/cron.d"},
    "persistence": True,
}
STACK = {"builder": "n1", "module_build": "dkms", "driver": "580"}


def inventory_with(path: Path, **keys: Any) -> Path:
    """Write an inventory whose group `g` states further keys of a fleet's group."""
    group = {"profile": "dev-t4", "os": "debian12", **keys}
    path.write_text(json.dumps({"g": {"hosts": {"n1": {}}, "vars": {"gpuprov_group": group}}}))
    return path


def test_only_listed_keys_of_a_group_are_kept_and_the_others_are_named(tmp_path: Path) -> None:
    path = inventory_with(
        tmp_path / "hosts.json", settings=TRUSTED, stack=STACK, ssh={"user": "ops", "known_hosts": "/tmp/k"}
    )
    lines: list[str] = []
    found = import_fleet([path], ALL, "ansible", narrate=lines.append)
    assert found["groups"]["g"] == {
        "profile": "dev-t4",
        "os": "debian12",
        "hosts": "n1",
        "settings": {"tuning": {"numa_balancing": False}, "persistence": True},
        "stack": {"module_build": "dkms", "driver": "580"},
        "ssh": {"user": "ops"},
    }
    [line] = lines
    names = line.partition("passwords: ")[2].partition("; check them in ")[0].split(", ")
    assert sorted(names) == sorted(
        f"{name} (group g)"
        for name in (
            *("settings.ssh.user_ca", "settings.ssh.banner", "settings.firewall.ssh_from"),
            *("settings.tuning.environment.LD_PRELOAD", "settings.tuning.environment.A"),
            *("settings.tuning.sysctl.kernel.core_pattern", "settings.nccl.NCCL_NET_PLUGIN"),
            *("settings.scratch", "settings.monitoring.textfile", "stack.builder", "ssh.known_hosts"),
        )
    )


@pytest.mark.parametrize("name", ["ansible_ssh_private_key_file", "ansible_private_key_file"])
@pytest.mark.parametrize("value", ["keys/fleet", "{{ x }}"])
def test_a_key_file_is_named_and_left_out(tmp_path: Path, name: str, value: str) -> None:
    """Leave out the key whose public half `bootstrap` lets in: the author of the inventory may have both."""
    path, lines = tmp_path / "hosts.ini", []
    path.write_text(f"[g]\nn1\nn2\n[g:vars]\n{name}={value}\n[h]\nn3 {name}=own\nn4\n")
    found = import_fleet([path], ALL, "ansible", narrate=lines.append)
    assert "key_file" not in render_plain(found)
    assert "identity_file" not in render_plain(found)
    assert "who may log in" in (text := "\n".join(lines))
    assert ("identity_file" if value == "keys/fleet" else name) in text


TEMPLATES = {
    "value": ({"site": "{{ x }}"}, "site (group g)"),
    "statement": ({"site": "{% x %}"}, "site (group g)"),
    "comment": ({"site": "{# x #}"}, "site (group g)"),
    "below": ({"hardware": {"gpu": {"model": "{{ x }}"}}}, "hardware.gpu.model (group g)"),
    "item": ({"hardware": {"nics": [{"kind": "{{ x }}"}]}}, "hardware.nics (group g)"),
    "key": ({"floors": {"{{ x }}": 1, "h2d": 2}}, ""),
    "key of a list": ({"hardware": {"nics": [{"{{ x }}": 1}]}}, "hardware.nics (group g)"),
    "login": ({"ssh": {"user": "{{ x }}"}}, "ssh.user (group g)"),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("keys", "name"), TEMPLATES.values(), ids=TEMPLATES)
def test_a_template_in_any_key_is_left_out(tmp_path: Path, keys: dict[str, Any], name: str) -> None:
    lines: list[str] = []
    path = inventory_with(tmp_path / "hosts.json", **keys)
    found = import_fleet([path], ALL, "ansible", narrate=lines.append)
    assert "{{" not in render_plain(found)
    assert "{%" not in render_plain(found)
    assert "{#" not in render_plain(found)
    if name:
        assert f"templates, which Ansible expands: {name}; check them" in lines[0]


def test_variables_of_roles_are_left_out(tmp_path: Path) -> None:
    """Keys of a group and variables of a role have the same effect."""
    lines: list[str] = []
    (tmp_path / "hosts.ini").write_text(
        "[g]\nn1 ssh_hardening_user_ca=x\n[g:vars]\nnvidia_driver_builders=x\ngpuprov_x=1\nrack=1\n"
        "__docker_configured={'/etc/sudoers': None}\n_x=1\n"
    )
    found = import_fleet([tmp_path / "hosts.ini"], ALL, "ansible", narrate=lines.append)
    assert (found["groups"]["g"]["vars"], found.get("host_vars")) == ({"rack": 1}, None)
    for name in ("gpuprov_x", "nvidia_driver_builders", "__docker_configured", "_x"):
        assert f"{name} (group g)" in lines[0]
    assert "ssh_hardening_user_ca (n1)" in lines[0]


@pytest.mark.parametrize("allowed", [True, False])
def test_consent_to_reboots_is_named_and_left_out(allowed: bool) -> None:
    lines: list[str] = []
    fleet = {"reboot": {"allowed": allowed, "batch": 2}}
    assert left_out.leave_out(fleet, "x", lines.append) == {"reboot": {"batch": 2}}
    assert ["reboot.allowed" in line for line in lines] == [True] * allowed


def test_a_profile_that_replaces_one_of_gpuprov_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Name a file next to the new fleet whose settings count in place of those of the stated profile."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts").write_text("n1\n")
    (tmp_path / "profiles").mkdir()
    for name in ("dev-t4", "own"):
        (tmp_path / f"profiles/{name}.yml").write_text("description: mine\n")
    for more in ([], ["-F", "fleet.yml"]):
        assert run(["inventory", "import", "hosts", "--os", "debian12", "--profile", "dev-t4", *more]) == 0
        said = capsys.readouterr().err
        assert "profiles/dev-t4.yml replaces gpuprov's profile dev-t4" in said
        assert "own.yml" not in said


def test_only_text_counts_as_marked() -> None:
    lines: list[str] = []
    text, other = {"__ansible_unsafe": "{{ x }}"}, {"__ansible_unsafe": ["{{ x }}"]}
    fleet = {"host_vars": {"n1": {"text": text, "other": other}}}
    assert left_out.leave_out(fleet, "x", lines.append) == {"host_vars": {"n1": {"text": text}}}
    assert "expands: other (n1);" in lines[0]


def test_every_key_of_a_group_was_decided_on() -> None:
    """Check that each listed name exists; a new key is left out until it is listed."""

    def names(keys: Any, model: Any) -> None:
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        assert keys.keys() <= fields.keys()

    names(left_out.KEPT, Fleet)
    names(left_out.GROUP, Group)
    names(left_out.SETTINGS, Settings)
    names(left_out.STACK, StackPolicy)
    names(left_out.SSH, Connection)
    names(left_out.SETTINGS["tuning"], Tuning)
    names(left_out.SETTINGS["containers"], Containers)
    names(left_out.GROUP["hardware"], HardwareProfile)
    for key, model in (("gpu", GpuHardware), ("nvme", NvmeHardware)):
        names(left_out.GROUP["hardware"][key], model)  # type: ignore[index]


def test_what_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    with pytest.raises(InvalidInput, match="nested too deeply"):
        import_fleet([inventory_with(tmp_path / "hosts.json", vars={"a": deep})], ALL, "ansible")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("list", "".join(f"a{n}x[1-20]\n" for n in range(6)), "more than 100 machines"),
        ("slurm.conf", "".join(f"NodeName=a{n}x[1-20]\n" for n in range(6)), "more than 100 machines"),
        ("slurm.conf", "NODELIST\n" + "".join(f"a{n}x[1-20]\n" for n in range(6)), "more than 100 machines"),
        ("hosts", "[g]\na[1:60]\nb[1:60]\n", "more than 100 machines"),
        (
            "slurm.conf",
            "NodeName=n[1-50]\n" + "".join(f"PartitionName=p{n}\n" for n in range(5)),
            "the partitions have more than 200 nodes together",
        ),
        (
            "slurm.conf",
            "NodeName=n1\n" + "".join(f"PartitionName=p{n} Nodes=x[1-50]\n" for n in range(5)),
            "the partitions have more than 200 nodes together",
        ),
    ],
)
def test_the_limits_of_machines_are_for_all_lines_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, said: str
) -> None:
    monkeypatch.setattr("gpuprov.inventory.imports.machine.LARGEST", 100)
    monkeypatch.setattr("gpuprov.inventory.imports.lists.IN_PARTITIONS", 200)
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInput, match=said):
        import_fleet([tmp_path / name], ALL, "ansible" if name == "hosts" else None)


HUGE = "x" * (8 << 20)


def state(**values: str) -> str:
    """Return a state of Terraform with a machine of these values."""
    machine = {"instance_type": "p5.48xlarge", "public_ip": "10.0.0.1", **values}
    return json.dumps({**STATE, "resources": [resource("aws_instance", "gpu", machine)]})


@pytest.mark.parametrize(
    ("form", "text", "said"),
    [
        ("terraform", state(instance_type=HUGE), "instance of the machine"),
        ("terraform", state(public_ip=HUGE), "address of the machine"),
        (
            "terraform",
            json.dumps({HUGE: {"value": 1, "sensitive": False, "type": "number"}}),
            "none of the outputs",
        ),
        ("slurm", f"NodeName=a1 Gres=gpu:{HUGE}:8\n", "group of the machine 'a1' has 8388608 characters"),
    ],
    ids=["type", "address", "output", "group"],
)
def test_a_long_value_of_a_list_is_no_long_message(
    tmp_path: Path, form: Format, text: str, said: str
) -> None:
    (tmp_path / "list").write_text(text)
    with pytest.raises(InvalidInput) as raised:
        import_fleet([tmp_path / "list"], ALL, form)
    assert said in str(raised.value)
    assert len(str(raised.value)) < 1500


def test_a_long_name_of_a_machine_type_or_a_system_takes_no_time() -> None:
    for find in (find_instance, find_system):
        with pytest.raises(InvalidInput) as raised:
            find(load(), HUGE)
        assert len(str(raised.value)) < 1500
        assert cost_of(lambda find=find: find(load(), HUGE)).seconds < 1.5  # type: ignore[misc]


@pytest.mark.parametrize("line", ["NodeName=a[1-90]!a[2-90]", "PartitionName=p{} Nodes=a[1-90]!a[1-90]"])
@pytest.mark.parametrize("form", ["slurm", "hosts"])
def test_the_sets_of_a_file_have_a_limit_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, form: Format
) -> None:
    """Check sets that take the time of many names and have few in the end."""
    monkeypatch.setattr("gpuprov.inventory.imports.lists.IN_ALL_SETS", 500)
    text = "NodeName=a1\n" * (form == "slurm") + "".join(f"{line.format(n)}\n" for n in range(9))
    (tmp_path / "list").write_text(text if form == "slurm" else text.replace("=", "-"))
    with pytest.raises(InvalidInput, match="at most 500 host names in all sets of a document"):
        import_fleet([tmp_path / "list"], ALL, form)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("slurm", "NodeName=a " + "b" * 4_000_000),
        ("slurm", "NodeName=a " + 'b" "' * 1_000_000),
        ("terraform", '{"values": {"root_module": {"child_modules": [' + "{}," * 300_000 + "{}]}}}"),
    ],
)
def test_an_import_takes_time_of_its_text(tmp_path: Path, form: Format, text: str) -> None:
    (tmp_path / "it").write_text(text)
    begun = time.process_time()
    with suppress(InvalidInput):
        import_fleet([tmp_path / "it"], ALL, form)
    assert time.process_time() - begun < 10


def test_quoted_values_of_slurm(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text('NodeName="a[1-2]" Reason="b c=d" NodeAddr=x"[1-2]" # "\n')
    [group] = import_fleet([tmp_path / "slurm.conf"], ALL)["groups"].values()
    assert group["hosts"] == {"a1": "x1", "a2": "x2"}


def test_a_list_is_read_only_up_to_its_limit() -> None:
    made = (Machine(f"n{number}") for number in range(100_010))
    with pytest.raises(InvalidInput, match="more than 100000 machines"):
        groups_of(made, ALL, load())
    assert next(made).name == "n100001"


def test_many_kinds_of_a_group_take_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count comparisons with groups; each kind is compared once with each name that it could have."""
    compared = []
    monkeypatch.setattr(
        "gpuprov.inventory.imports.machine._is",
        lambda group, kind, real=machine._is: compared.append(kind) or real(group, kind),
    )
    made = [Machine(f"n{number}", group="g", site=f"z{number % 300}") for number in range(600)]
    groups = groups_of(made, ALL, load())["groups"]
    assert list(groups) == ["g", *(f"g-{number}" for number in range(2, 301))]
    assert groups["g-300"]["hosts"] == "n[299,599]"
    assert len(compared) == 300


def test_more_kinds_than_ten_thousand() -> None:
    made = (Machine(f"n{number}", group="g", site=f"z{number}") for number in range(10_500))
    assert len(groups_of(made, ALL, load())["groups"]) == 10_500


def test_a_further_kind_joins_a_group_of_its_name() -> None:
    made = [Machine("a", group="g-2", site="y"), Machine("b", group="g"), Machine("c", group="g", site="y"),
            Machine("d", group="g", site="z")]  # fmt: skip
    groups = groups_of(made, ALL, load())["groups"]
    assert {name: group["hosts"] for name, group in groups.items()} == {"g-2": "a,c", "g": "b", "g-3": "d"}


def test_a_profile_is_read_once_for_all_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time of an import of many machines was that of reading all profiles for each of them."""
    read: list[str] = []
    real = machine.load_profile
    monkeypatch.setattr(
        machine, "load_profile", lambda name, folders: read.append(name) or real(name, folders)
    )
    machine._shipped_hardware.cache_clear()
    catalog = load()
    catalog.memo.pop("profiles_by_gpu", None)
    made = [Machine(f"n{n}", gpu="H100 SXM5 80GB", gpu_count=n + 1) for n in range(20)]
    made += [Machine(f"t{n}", instance="aws:p5.48xlarge") for n in range(20)]
    groups_of(made, ImportHints({}, {"": "ubuntu24.04"}), catalog)
    assert len(read) == len(set(read)) > 0

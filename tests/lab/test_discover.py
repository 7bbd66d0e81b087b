"""Discovery and drift of twelve nodes of five kinds, three of them faulty: all match, each fault is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuprov.catalog import load
from gpuprov.model.fleet import read_fleet
from gpuprov_lab import Lab
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.simulator.server import with_memory, with_port_speed, without_gpu
from tests.lab.command_line import gpuprov

# machine → (its profile, number of sound nodes)
KINDS = {
    "h100x8": ("hgx-h100-8", 2),
    "a100x4": ("hgx-a100-4", 3),
    "l40sx4": ("l40s-4", 1),
    "t4x1": ("dev-t4", 2),
    "rtx3080": ("dev-rtx3080", 1),
}
SLOW_PORT = "1 x 100 Gb/s Ethernet, 1 x 50 Gb/s Ethernet instead of 2 x 100 Gb/s Ethernet"
LESS_MEMORY = "16 GiB memory instead of at least 31"
# name → (machine, preparation step, the difference that discovery prints, the check that drift reports)
FAULTS = {
    "faulty1": ("h100x8", without_gpu("0000:d1:00.0"), "7 of 8 GPUs (H100 SXM5 80GB)", "gpu.count"),
    "faulty2": ("l40sx4", with_port_speed("ens1f1", 50), SLOW_PORT, "hardware.nics"),
    "faulty3": ("rtx3080", with_memory(16), LESS_MEMORY, "hardware.memory_mib"),
}


@pytest.fixture(scope="module")
def nodes(module_lab: Lab) -> dict[str, str]:
    """Name → address of the twelve nodes."""
    for machine, (_, count) in KINDS.items():
        for number in range(1, count + 1):  # one by one: a busy machine boots twelve at once too slowly
            module_lab.up(gpu=machine, names=[f"{machine}-{number}"])
    for name, (machine, step, _, _) in FAULTS.items():
        module_lab.up(gpu=machine, names=[name], prepare=[step])
    return {node.name: node.address for node in module_lab.nodes()}


@pytest.fixture(scope="module")
def discovered(nodes: dict[str, str], module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the fleet file that discovery wrote, and its JSON output."""
    folder = tmp_path_factory.mktemp("discovered")
    keys = ["-i", str(module_lab.identity_file), "--known-hosts", str(module_lab.known_hosts)]
    words = ("discover", *nodes.values(), *keys, "-F", "fleet.yml", "-o", "json")
    done = gpuprov(folder, "inventory", *words, code=3)
    (folder / "answer.json").write_text(done.stdout)
    return folder


def test_all_are_matched_and_every_fault_is_named(discovered: Path) -> None:
    answer = json.loads((discovered / "answer.json").read_text())
    assert len(answer["hosts"]) == 12
    for host in answer["hosts"]:
        name = host["host"]
        machine = FAULTS[name][0] if name in FAULTS else name.rpartition("-")[0]
        assert host["profile"] == KINDS[machine][0], name
        assert host["differences"] == ([FAULTS[name][2]] if name in FAULTS else []), name
        assert host["unknown"] == []


def test_the_fleet_holds_every_host(discovered: Path, nodes: dict[str, str]) -> None:
    """Check that discover writes each host with its address into the group of its profile."""
    groups = read_fleet(discovered / "fleet.yml").groups
    assert {name: group.profile for name, group in groups.items()} == {
        profile: profile for profile, _ in KINDS.values()
    }
    hosts = {host: address for group in groups.values() for host, address in group.hosts.items()}
    assert hosts == nodes


@pytest.mark.slow
def test_drift_and_verify_name_the_faults_as_well(discovered: Path, nodes: dict[str, str]) -> None:
    mirror = nvidia.build(discovered / "mirror", load(), ["debian12"])
    place = f"repositories: {{nvidia: {{url: '{mirror.cuda()}', key: {mirror.key}}}}}\n"
    with (discovered / "fleet.yml").open("a") as fleet:
        fleet.write(place)
    gpuprov(discovered, "lock")
    hardware = {"gpu.count", "gpu.model", "gpu.nvswitches"}
    drift = json.loads(gpuprov(discovered, "drift", "-o", "json", code=3).stdout)
    for node in drift["nodes"]:
        checks = {each["check"] for each in node["drift"]}
        found = {check for check in checks if check in hardware or check.startswith("hardware.")}
        assert found == ({FAULTS[node["name"]][3]} if node["name"] in FAULTS else set()), node["name"]
    for name in ("faulty1", "faulty2", "faulty3", "l40sx4-1"):
        verdict = json.loads(gpuprov(discovered, "verify", name, "-o", "json", code=1).stdout)
        [node] = verdict["nodes"]
        failed = {each["check"] for each in node["checks"] if each["status"] == "failed"}
        found = {check for check in failed if check in hardware or check.startswith("hardware.")}
        assert found == ({FAULTS[name][3]} if name in FAULTS else set()), name

"""A fleet of faulty nodes: each gets one line in the output, and none delays the others."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from gpuprov.drift.judge import NodeDrift, judge, without_facts
from gpuprov.drift.survey import LIMITS, gather
from gpuprov.model.lock import Lock, read_lock, write_lock
from gpuprov.probe.facts import Facts
from gpuprov.roles import expectations
from gpuprov_lab import Lab
from tests import RECORDED_LOCK
from tests.lab.command_line import gpuprov

NOWHERE = "100::1"  # RFC 6666: discard-only prefix, without any answer
SMI_S = 29.0
"""Seconds that the probe gives nvidia-smi."""

# Commands that break a node. `leaving` and `hanging` replace the login shell, so they come last.
TROUBLE = {
    "good": "true",
    "banner": r"""
        head -c 1000000 /dev/zero | tr '\0' x >/etc/long; echo >>/etc/long
        echo '<<gpuprov 00 9 00>>' >>/etc/long; echo '{"schema": "gpuprov.facts/1"}' >>/etc/long
        sed -i '1i cat /etc/long' /root/.bashrc
        head -c 200000 /etc/long >/etc/issue.net; echo 'Banner /etc/issue.net' >>/etc/ssh/sshd_config
        systemctl reload ssh""",
    "full": """
        cp -a /root/.ssh /keys
        for folder in /tmp /var/tmp /var/log /run/user /root /home; do
          mkdir -p $folder; mount -t tmpfs -o size=64k,mode=700 tmpfs $folder; done
        cp -a /keys /root/.ssh
        for folder in /tmp /var/tmp /var/log /run/user /root /home; do
          head -c 200000 /dev/zero >$folder/x; done; true""",
    "smi": r"printf '#!/bin/sh\nsleep 500\n' >/usr/bin/nvidia-smi; chmod +x /usr/bin/nvidia-smi",
    "snakeless": "for each in /usr/bin/python3*; do mv $each $each.away; done",
    "half": r"""
        cd /usr/bin; mv python3 whole
        printf '#!/bin/sh\n/usr/bin/whole "$@" | head -c 2000\n' >python3; chmod +x python3""",
    "refusing": "systemctl stop ssh.socket ssh.service",
    "silent": "kill -STOP $(cat /run/sshd.pid)",
    "leaving": r"printf '#!/bin/sh\nexit 1\n' >/bin/leave; chmod +x /bin/leave; usermod -s /bin/leave root",
    "hanging": r"printf '#!/bin/sh\nsleep 500\n' >/bin/hang; chmod +x /bin/hang; usermod -s /bin/hang root",
    "impostor": "true",
}
SAID = {
    "refusing": ("unreachable", "no SSH on port 22: connection refused; check the address"),
    "silent": ("unreachable", "no SSH on port 22: the port is open, but does not answer"),
    "impostor": ("unreachable", "the host key of {address} has changed; make sure"),
    "absent": ("unreachable", "no SSH on port 22: "),
    "leaving": ("error", "no answer from the probe"),
    "hanging": ("error", "no answer within 60 s"),
    "half": ("error", "the answer broke off after "),
    "snakeless": ("error", "no Python 3 on the node; install python3 there"),
}

Story = tuple[float, NodeDrift]


@pytest.fixture(scope="module")
def fleet(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the lock of a fleet in which only one node is sound."""
    nodes = {node.name: node for node in module_lab.up(gpu="a100x4", names=list(TROUBLE))}
    for name, trouble in TROUBLE.items():
        nodes[name].run(trouble, check=False)
    folder = tmp_path_factory.mktemp("fleet")
    known = module_lab.known_hosts.read_text().splitlines()
    keys = {line.split()[0]: line.partition(" ")[2] for line in known}
    keys[nodes["impostor"].address] = keys[nodes["good"].address]
    (folder / "known_hosts").write_text("".join(f"{address} {key}\n" for address, key in keys.items()))
    [(name, group)] = read_lock(RECORDED_LOCK).groups.items()
    ways = {"identity_file": str(module_lab.identity_file), "known_hosts": str(folder / "known_hosts")}
    connection = group.connection.model_copy(update={**ways, "port": 22})
    hosts = {**{name: node.address for name, node in nodes.items()}, "absent": NOWHERE}
    changed = group.model_copy(update={"hosts": hosts, "connection": connection})
    write_lock(Lock(inputs="0", groups={name: changed}), folder / "fleet.lock.yml")
    return folder


@pytest.fixture(scope="module")
def stories(fleet: Path) -> dict[str, Story]:
    """Result of each node, and the seconds until it was known."""
    lock = read_lock(fleet / "fleet.lock.yml")
    [group] = lock.groups.values()
    begun = time.monotonic()
    result = {}
    for name, answer in gather(lock, lock.hosts()):
        known = isinstance(answer, Facts)
        node = judge(name, answer, expectations(group)) if known else without_facts(name, answer)
        result[name] = (time.monotonic() - begun, node)
    return result


@pytest.mark.parametrize("name", SAID)
def test_it_is_said_in_one_line(stories: dict[str, Story], name: str, fleet: Path) -> None:
    address = read_lock(fleet / "fleet.lock.yml").hosts()[name].hosts[name]
    status, words = SAID[name]
    _, node = stories[name]
    assert node.status == status
    assert node.reason is not None
    assert node.reason.startswith(words.format(address=address))
    assert "\n" not in node.reason


@pytest.mark.parametrize("name", ["banner", "full"])
def test_what_need_not_hinder_does_not(stories: dict[str, Story], name: str) -> None:
    assert stories[name][1].drift == stories["good"][1].drift


def test_of_a_node_whose_nvidia_smi_never_returns_the_rest_is_known(stories: dict[str, Story]) -> None:
    seconds, node = stories["smi"]
    assert SMI_S <= seconds < SMI_S + 5
    found = {each.check: each for each in node.drift}
    assert found["driver.answers"].actual == "nvidia-smi did not answer in time"
    assert found["gpu.clocks"].actual == "unknown: nvidia-smi did not answer in time"
    without_driver = [
        each for each in stories["good"][1].drift if each.check in ("pins.hold", "driver.packages")
    ]
    assert [found[each.check] for each in without_driver] == without_driver


def test_none_delays_the_others(stories: dict[str, Story]) -> None:
    seconds = {name: result for name, (result, _) in stories.items()}
    slow = {name for name, result in seconds.items() if result > LIMITS.connect_s}
    assert slow <= {"hanging", "smi", "silent", "absent"}
    assert max(seconds["silent"], seconds["absent"]) < 2 * LIMITS.connect_s
    assert seconds["hanging"] < LIMITS.command_s + LIMITS.connect_s


@pytest.mark.parametrize(
    ("nodes", "code"),
    [("good", 3), ("good,refusing", 4), ("good,half", 1), ("refusing,half", 1), ("impostor", 4)],
)
def test_exit_codes(fleet: Path, nodes: str, code: int) -> None:
    """Check a verb's exit code for some nodes, and that its document counts each of them."""
    result = gpuprov(fleet, "drift", nodes, "-o", "json", code=code)
    assert result.stderr == ""
    document = json.loads(result.stdout)
    assert {node["name"] for node in document["nodes"]} == set(nodes.split(","))
    assert sum(document["summary"].values()) == len(document["nodes"])


def test_lines_for_a_person(fleet: Path) -> None:
    result = gpuprov(fleet, "drift", "good,refusing,half,snakeless", code=1)
    said = result.stderr.splitlines()
    assert said[0] == "the lock does not explain this; to find the cause: gpuprov doctor good"
    assert said[1].startswith("good,half,refusing,snakeless note: driver 535.309.01 is affected by ")
    lines = result.stdout.splitlines()
    assert (
        sum(
            line.startswith(("refusing unreachable: ", "half error: ", "snakeless error: ")) for line in lines
        )
        == 3
    )
    assert "good driver.loaded expected 535.309.01, is nothing" in lines

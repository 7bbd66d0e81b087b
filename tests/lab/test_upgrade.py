"""An upgrade and its rollback on real nodes: Debian's driver 535.309.01 to 535.261.03, canary first.

The tests build on each other: the fleet moves to the other lock and back, and every failure leaves it intact.
"""

from __future__ import annotations

import json
import signal
import time

import pytest

from gpuprov_lab import Lab
from tests.lab.upgrade_fleet import NEWER, OLDER, Fleet, provisioned


@pytest.fixture(scope="module")
def fleet(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return provisioned(module_lab, tmp_path_factory.mktemp("fleet"), 2)


def test_the_plan_shows_the_gate_and_changes_nothing(fleet: Fleet) -> None:
    done = fleet.gpuprov("upgrade", "--to", fleet.lock(OLDER), "--plan", "-o", "json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert [batch["nodes"] for batch in plan["batches"]] == [["node1"], ["node2"]]
    assert plan["nodes"][0]["moves"]["libcuda1"]["to"].startswith(OLDER)
    assert set(fleet.loaded().values()) == {NEWER}


SHUT = {
    "drift: pins.hold": ("apt-mark unhold libcuda1", "apt-mark hold libcuda1"),
    "idle: the GPUs are in use by sleep": (
        "mknod /dev/nvidia9 c 1 7; systemd-run --quiet --unit=job sh -c 'exec sleep 600 </dev/nvidia9'",
        "systemctl stop job; rm /dev/nvidia9",
    ),
    "lease: leased by x@y, run other, until": (
        "mkdir -p /var/lib/gpuprov && "
        'echo "{\\"run\\":\\"other\\",\\"holder\\":\\"x@y\\",\\"seconds\\":600,'
        '\\"until\\":$(($(date +%s)+500))}" >/var/lib/gpuprov/lease.json',
        "rm /var/lib/gpuprov/lease.json",
    ),
    "room: /boot has": ("mount -t tmpfs -o size=1m none /boot", "umount /boot"),
}


def test_a_shut_gate_says_why_and_moves_nothing(fleet: Fleet) -> None:
    for seed, _ in SHUT.values():
        fleet.nodes[1].run(seed)
    done = fleet.upgrade(OLDER)
    for _, mend in SHUT.values():
        fleet.nodes[1].run(mend)
    assert done.returncode == 5
    for said in SHUT:
        assert f"shut  node2 {said}" in done.stderr
    assert set(fleet.loaded().values()) == {NEWER}


def test_a_mirror_that_is_gone_moves_nothing(fleet: Fleet) -> None:
    fleet.nodes[0].run("echo 'Acquire::http::Proxy \"http://127.0.0.1:9\";' >/etc/apt/apt.conf.d/99gone")
    done = fleet.upgrade(OLDER)
    fleet.nodes[0].run("rm /etc/apt/apt.conf.d/99gone; apt-get -q update")
    assert done.returncode == 5, done.stderr
    assert "node1: apt-get: " in done.stderr
    assert fleet.wrong() == {}


def test_a_module_that_does_not_build_on_the_canary_moves_nothing(fleet: Fleet) -> None:
    fleet.nodes[0].run(f"mv /root/stub-{OLDER}.ko /root/away")
    done = fleet.upgrade(OLDER)
    assert done.returncode == 5, done.stderr
    assert f"node1: nvidia-current {OLDER} does not build for kernel" in done.stderr
    assert set(fleet.loaded().values()) == {NEWER}


def test_a_canary_that_fails_goes_back_and_stops_the_run(fleet: Fleet) -> None:
    """Stop at batch 1 and restore node1, where a driver that built on the canary node2 does not build."""
    fleet.nodes[0].run(f"test -e /root/away || mv /root/stub-{OLDER}.ko /root/away")
    done = fleet.upgrade(OLDER, canary=["node2"], serial=[1])
    assert done.returncode == 1, done.stderr
    assert fleet.ends(done) == {"node1": "old", "node2": "new"}, done.stdout + done.stderr
    assert "batch 1 failed: node1;" in json.loads(done.stdout)["stopped"]
    assert fleet.loaded() == {"node1": NEWER, "node2": OLDER}
    fleet.nodes[0].run(f"mv /root/away /root/stub-{OLDER}.ko")
    back = fleet.gpuprov("rollback", "node2", "--yes", "-o", "json")
    assert fleet.ends(back) == {"node2": "old"}, back.stdout + back.stderr
    assert fleet.wrong() == {}


def test_a_dead_controller_is_resumed_and_every_node_moves_once(fleet: Fleet) -> None:
    trace = fleet.folder / "trace"
    hooks = {"drain": f'echo "out $GPUPROV_NODE" >>{trace}', "resume": f'echo "in $GPUPROV_NODE" >>{trace}'}
    process = fleet.start("upgrade", "--to", fleet.lock(OLDER, hooks=hooks), "--yes", "-o", "json")
    while not trace.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    time.sleep(10)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    second = fleet.upgrade(OLDER)
    assert second.returncode == 5
    assert "leased by " in second.stderr
    done = fleet.gpuprov("upgrade", "--resume", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert fleet.ends(done) == {"node1": "new", "node2": "new"}, done.stdout + done.stderr
    assert trace.read_text().split("\n")[:-1] == ["out node1", "in node1", "out node2", "in node2"]
    assert set(fleet.loaded().values()) == {OLDER}
    assert fleet.nodes[0].run("find /var/lib/gpuprov/lastgood -maxdepth 1 -perm /077").stdout == ""
    assert fleet.wrong() == {}


def test_the_journal_is_printed(fleet: Fleet) -> None:
    result = fleet.gpuprov("history", "--run", "latest")
    assert result.returncode == 0, result.stderr
    assert "apply begun node1" in result.stdout
    assert result.stdout.count("resume done") == 2


@pytest.mark.slow
def test_a_rollback_needs_no_mirror(fleet: Fleet) -> None:
    for node in fleet.nodes:
        node.run("echo 'Acquire::http::Proxy \"http://127.0.0.1:9\";' >/etc/apt/apt.conf.d/99gone")
        node.run("rm -rf /var/cache/apt/archives/*.deb")
    done = fleet.gpuprov("rollback", "--yes", "-o", "json")
    for node in fleet.nodes:
        node.run("rm /etc/apt/apt.conf.d/99gone")
    assert done.returncode == 0, done.stderr
    assert fleet.ends(done) == {"node1": "old", "node2": "old"}, done.stdout + done.stderr
    assert set(fleet.loaded().values()) == {NEWER}
    assert fleet.wrong() == {}

"""The lab itself: nodes start, restart, survive the kill of their supervisor, and are removed completely."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuprov.errors import InvalidInput, NodeFailed, Unreachable
from gpuprov_lab import Lab, Node, engine, saved_images
from gpuprov_lab.variants import with_admin, with_os_release, without_python

FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")


def traces(lab: Lab) -> list[str]:
    """Return all paths and mounts on this machine that contain the lab's name."""
    places = [
        *Path("/run/netns").glob(f"gpuprov-{lab.name}-*"),
        *Path("/sys/fs/cgroup").glob(f"*/gpuprov-lab/{lab.name}-*"),
        *Path("/run/systemd/nspawn/propagate").glob(f"{lab.name}-*"),
        *([lab.folder] if lab.folder.exists() else []),
    ]
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if str(lab.folder) in line]
    return [*map(str, places), *mounts]


def supervisor(node: Node) -> int:
    """Return the process id of the loop that restarts a node."""
    return int(subprocess.check_output(["pgrep", "-o", "-f", f"gpuprov-lab-{node.machine}"]))


def table() -> bool:
    """Return whether the lab's nftables table exists on this machine."""
    return "gpuprov_lab" in subprocess.check_output(["nft", "list", "tables"], text=True)


def test_nodes_answer_under_their_own_names_and_reach_the_archive(lab: Lab) -> None:
    one, two = lab.up(2)
    assert one.run("hostname").stdout == "node1\n"
    assert two.run("cat /etc/machine-id").stdout != one.run("cat /etc/machine-id").stdout
    assert one.run("systemctl is-system-running --wait", check=False).stdout == "running\n"
    assert one.run("test -e /boot/vmlinuz-" + one.kernel).returncode == 0
    one.run("apt-get -q update")
    assert two.run(f"python3 -c 'import socket; socket.create_connection((\"{one.address}\", 22), 5)'")


def test_nodes_reach_nothing_but_the_archive(lab: Lab) -> None:
    (node,) = lab.up(1)
    probe = 'import socket; socket.create_connection((\\"192.0.2.1\\", 22), 5)'
    refused = node.run(f'python3 -c "{probe}"', check=False)
    assert "No route to host" in refused.stderr


def test_a_command_that_fails_differs_from_a_node_that_does_not_answer(lab: Lab) -> None:
    (node,) = lab.up(1)
    assert node.run("exit 3", check=False).returncode == 3
    with pytest.raises(NodeFailed, match="exited with 3: broken"):
        node.run("echo broken >&2; exit 3")
    with pytest.raises(NodeFailed, match="did not end within 1 s"):
        node.run("sleep 9", timeout=1)
    node.stop()
    with pytest.raises(Unreachable, match="node1"):
        node.run("true")


def test_a_reboot_is_another_boot_of_the_same_node(lab: Lab) -> None:
    (node,) = lab.up(1)
    node.run("touch /root/kept /run/lost")
    before = node.boot_id()
    node.reboot()
    assert node.boot_id() != before
    assert node.run("ls /root/kept /run/lost", check=False).stdout == "/root/kept\n"


def test_a_stopped_node_keeps_its_root_and_address(lab: Lab) -> None:
    (node,) = lab.up(1)
    node.run("touch /root/kept")
    node.stop()
    assert [found.state for found in lab.nodes()] == ["off"]
    assert (node.root / "root/kept").exists()
    lab.up(1)
    node.start()
    assert [found.state for found in lab.nodes()] == ["running", "running"]
    node.run("test -e /root/kept")


def test_two_labs_do_not_touch_each_other(lab: Lab, another_lab: Lab) -> None:
    (node,) = lab.up(1)
    (stranger,) = another_lab.up(1)
    assert node.name == stranger.name
    assert node.address != stranger.address
    another_lab.down()
    assert traces(another_lab) == []
    assert node.run("hostname").stdout == "node1\n"


def test_down_leaves_nothing(lab: Lab) -> None:
    """Check that `down` removes the stated node, then all, with their processes, interfaces and rules."""
    open_before, forwarding_before = table(), FORWARDING.read_text()
    lab.up(2)
    assert traces(lab)
    assert table()
    lab.down(["node1"])
    assert [node.name for node in lab.nodes()] == ["node2"]
    lab.down()
    assert traces(lab) == []
    if not open_before and not any(Path("/sys/class/net").glob("gplab*")):
        assert not table()
        assert FORWARDING.read_text() == forwarding_before


def test_a_node_whose_supervisor_was_killed_is_mended(lab: Lab) -> None:
    one, two = lab.up(2)
    os.kill(supervisor(one), signal.SIGKILL)
    while engine.runs(one.machine):
        time.sleep(0.01)
    assert [node.state for node in lab.nodes()] == ["broken", "running"]
    (again,) = lab.up(1)
    assert again.name == "node1"
    assert again.address != one.address
    assert two.run("true").returncode == 0


@pytest.mark.parametrize("seconds", [0.15, 0.3, 0.45, 0.6])
def test_an_up_that_was_killed_leaves_nothing_for_the_next(lab: Lab, seconds: float) -> None:
    script = f"from gpuprov_lab import Lab; print(flush=True); Lab({lab.name!r}).up(2)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout
        run.stdout.readline()
        time.sleep(seconds)
        run.kill()
    nodes = lab.up(1)
    assert [node.name for node in nodes if node.run("true").returncode == 0] == [
        node.name for node in lab.nodes() if node in nodes
    ]
    lab.down()
    assert traces(lab) == []


def test_a_saved_node_is_where_the_next_one_starts(lab: Lab) -> None:
    name = lab.name
    (node,) = lab.up(1)
    node.run("echo provisioned >/etc/mark; rm /etc/issue")
    try:
        lab.save(node, name)
        assert lab.node(node.name).state == "off"
        node.start()
        assert node.run("cat /etc/mark").stdout == "provisioned\n"
        (copy,) = lab.up(1, image=name)
        assert (
            copy.run("cat /etc/mark; hostname; ls /etc/issue", check=False).stdout == "provisioned\nnode2\n"
        )
        with pytest.raises(InvalidInput, match="nodes stand on"):
            lab.drop(name)
    finally:
        lab.down()
        lab.drop(name)
    assert name not in saved_images()


def test_what_one_node_fetched_the_next_one_has(lab: Lab) -> None:
    (node,) = lab.up(1)
    node.run("apt-get -q update && apt-get -q -y install --no-install-recommends hello")
    lab.down()
    (node,) = lab.up(1)
    node.run("apt-get -q update")
    assert "Need to get 0 B" in node.run("apt-get -y install --no-install-recommends hello").stdout


def test_nodes_can_be_unlike_a_fresh_server(lab: Lab) -> None:
    steps = [
        without_python,
        with_os_release("ID=plan9\n"),
        with_admin("ops"),
        with_admin("careful", "secret"),
    ]
    (node,) = lab.up(1, prepare=steps)
    assert node.run("command -v python3", check=False).stdout == ""
    assert node.run("cat /etc/os-release").stdout == "ID=plan9\n"
    assert node.run("sudo -n id -un", user="ops").stdout == "root\n"
    assert node.run("sudo -n id -un", user="careful", check=False).returncode == 1
    assert node.run("sudo -S id -un", user="careful", input="secret\n").stdout == "root\n"
    node.add_interface("fabric0", "10.9.0.1/24")
    assert "10.9.0.1/24" in node.run("ip -br address show fabric0").stdout


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ({"os": "debian11"}, "no lab image is called 'debian11'"),
        ({"gpu": "abacus"}, "no simulated machine is called 'abacus'"),
        ({"names": ["No_Good"]}, "'No_Good' cannot name a node"),
    ],
)
def test_mistakes_are_one_line(lab: Lab, arguments: dict[str, str], result: str) -> None:
    with pytest.raises(InvalidInput, match=result):
        lab.up(1, **arguments)
    with pytest.raises(InvalidInput, match="has no node 'node1'"):
        lab.down(["node1"])
    assert traces(lab) == []

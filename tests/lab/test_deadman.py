"""The dead man's switch on a real node: full disks, two runs at once, lost answers, an sshd that fails."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gpuprov.access.deadman as deadman
from gpuprov.access.scripts import node_script
from gpuprov.errors import NodeFailed, Unreachable
from gpuprov.model.connection import Connection
from gpuprov.ssh.transport import Output, Target, open_session
from gpuprov_lab import Lab, Node
from tests.lab.lost_sshd import LOSE_SSHD, MAIN
from tests.lab.marks import slow_ones
from tests.lab.small_disks import STATE, move_to_small_disks

TRIALS = Path(__file__).with_name("deadman_trials.py").read_text()
SCRIPT = node_script("gpuprov.access", "node/deadman.sh")
HOME = deadman.FOLDER
ARM = f"mkdir -p {HOME} && cp /root/deadman.sh {HOME}/switch.$T && sh {HOME}/switch.$T arm 300 $T root"
FAIL_ONCE = "[Service]\nExecStartPre=/bin/sh -c 'test ! -s /run/fails || { sed -i 1d /run/fails; exit 1; }'\n"
GUARD = deadman.Guard(60)


@pytest.fixture(scope="module")
def node(module_lab: Lab) -> Node:
    """Node with a root of 48 MiB and 8 MiB for gpuprov's state, and the switch as a file."""
    [node] = module_lab.up(1, "debian12", names=["small"])
    move_to_small_disks(node, root_mib=48, state_mib=8)
    node.run("cat >/root/deadman.sh", input=SCRIPT)
    node.run("mkdir -p /etc/systemd/system/ssh.service.d")
    node.run("cat >/etc/systemd/system/ssh.service.d/fails.conf; systemctl daemon-reload", input=FAIL_ONCE)
    return node


@pytest.fixture
def bare(node: Node) -> Iterator[Node]:
    """The node without any state of the switch, before and after."""
    forget = f"sh {HOME}/switch restore 'the test is over'; rm -rf {HOME} /run/fails"
    node.run(forget)
    yield node
    node.run(forget)


@pytest.fixture
def target(node: Node, module_lab: Lab) -> Target:
    known = {"identity_file": str(module_lab.identity_file), "known_hosts": str(module_lab.known_hosts)}
    return Target(node.name, node.address, Connection(**known))


def trial(node: Node, *words: str) -> dict[str, list[str]]:
    """Run a trial on the node; return number of free blocks → errors."""
    wrong: dict[str, list[str]] = json.loads(node.run(f"python3 - {' '.join(words)}", input=TRIALS).stdout)
    return wrong


@pytest.mark.parametrize("folder", ["/", f"/{STATE}"])
def test_arming_on_a_full_disk_succeeds_whole_or_leaves_nothing(node: Node, folder: str) -> None:
    assert trial(node, "arming", folder, "0 1 2 3 4 5 6 8 16 60 160 240") == {}


@pytest.mark.parametrize("folder", slow_ones(["/", f"/{STATE}"], {f"/{STATE}"}))
def test_no_file_is_cut_short_when_the_disk_is_full(node: Node, folder: str) -> None:
    assert trial(node, "restoring", folder, "0 1 2") == {}


def test_of_two_runs_at_once_one_is_armed(bare: Node) -> None:
    both = " & ".join(f"(T={name}; {ARM}; echo $? >/run/{name})" for name in ("one", "two"))
    for _ in range(5):
        bare.run(f"{both} & wait")
        codes = {name: bare.run(f"cat /run/{name}").stdout.strip() for name in ("one", "two")}
        armed = bare.run(f"cat {HOME}/armed").stdout.strip()
        assert codes.pop(armed) == "0"
        assert list(codes.values()) == ["4"]
        bare.run(f"sh {HOME}/switch disarm {armed}")


def test_a_run_that_was_kept_stays_kept_however_often_one_asks(bare: Node) -> None:
    bare.run(f"T=mine; {ARM}")
    for code in (0, 0):
        assert bare.run(f"sh {HOME}/switch disarm mine", check=False).returncode == code
    assert bare.run(f"sh {HOME}/switch undo mine why", check=False).returncode == deadman.KEPT
    other = bare.run(f"sh {HOME}/switch disarm other", check=False)
    assert (other.returncode, other.stderr) == (3, "the dead man's switch is not armed for other\n")


def test_a_later_change_of_a_run_that_was_restored_does_not_count_as_kept(bare: Node) -> None:
    bare.run(f"T=mine; {ARM}; sh {HOME}/switch disarm mine; {ARM}; sh {HOME}/switch undo mine why")
    kept = bare.run(f"sh {HOME}/switch disarm mine", check=False)
    assert (kept.returncode, kept.stderr) == (3, "the time was over, and the old state is restored\n")


def test_an_sshd_that_fails_once_is_started_again(bare: Node) -> None:
    bare.run(
        f"T=mine; {ARM}; echo MaxAuthTries 3 >/etc/ssh/sshd_config.d/00-gpuprov.conf; echo 1 >/run/fails"
    )
    done = bare.run(
        f"sh {HOME}/switch undo mine why; echo $?; systemctl is-active ssh; ls /etc/ssh/sshd_config.d"
    )
    assert done.stdout == "0\nactive\n"


@pytest.mark.slow
def test_an_sshd_that_systemd_has_lost_is_ended_before_the_restart(bare: Node) -> None:
    """Check that the node can be reached, although a restart has failed and removed sshd's folder."""
    broken = f"T=mine; {ARM}; {LOSE_SSHD}\nsystemctl restart ssh.service; ls -d /run/sshd"
    done = bare.run(f"{broken}; sh {HOME}/switch undo mine why; {MAIN}", check=False)
    assert (done.stdout, done.stderr.count("cannot access '/run/sshd'")) == ("main process\n", 1)
    assert bare.run(MAIN).stdout == "main process\n"


def test_what_is_restored_once_more_and_fails_is_tried_until_it_works(bare: Node) -> None:
    bare.run(f"T=mine; {ARM}; sh {HOME}/switch undo mine why")
    seen = bare.run(
        "echo MaxAuthTries 3 >/etc/ssh/sshd_config.d/00-gpuprov.conf; yes | head -n 999 >/run/fails;"
        f" sh {HOME}/switch undo mine why; echo $?; systemctl is-active gpuprov-deadman.timer; rm /run/fails;"
        " systemctl start --wait gpuprov-deadman.service; systemctl is-active ssh; ls /etc/ssh/sshd_config.d"
    )
    assert seen.stdout.split() == ["1", "active", "active"]
    again = bare.run(f"sh {HOME}/switch undo mine why; cat {HOME}/restored; grep -c . {HOME}/history")
    assert again.stdout.split() == ["mine", "1"]


@pytest.mark.slow
def test_what_cannot_be_restored_at_a_boot_is_tried_until_it_works(module_lab: Lab) -> None:
    """Check that the boot goes on meanwhile, and that a login is possible."""
    [node] = module_lab.up(1, "debian12", names=["boots"])
    node.run("cat >/root/deadman.sh", input=SCRIPT)
    changed = "echo MaxAuthTries 3 >/etc/ssh/sshd_config.d/00-gpuprov.conf"
    node.run(f"T=mine; {ARM}; {changed}; mv {HOME}/saved/etc/sudoers /root/kept")
    node.reboot()
    assert node.run(f"cat {HOME}/restoring").stdout == "mine\n"
    node.run(f"mv /root/kept {HOME}/saved/etc/sudoers")
    deadline = time.monotonic() + 30
    while node.run(f"cat {HOME}/restored", check=False).stdout != "mine\n":
        assert time.monotonic() < deadline
        time.sleep(1)
    assert node.run(
        "sshd -T | grep maxauthtries; ls /etc/systemd/system | grep deadman", check=False
    ).stdout == ("maxauthtries 6\n")


def breaking(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Break the connection this many times, each time after the node has run the command."""
    really, left = deadman.as_root, [times]

    def as_root(*words: Any) -> Output:
        """Run the command; the first commands are run too, but then the connection breaks."""
        output = really(*words)
        left[0] -= 1
        if left[0] >= 0:
            raise Unreachable("the connection broke")
        return output

    monkeypatch.setattr(deadman, "as_root", as_root)
    monkeypatch.setattr(deadman, "PAUSES_S", (0.0, 0.1, 0.1))


@pytest.mark.parametrize("times", [1, 3, 5])
def test_a_connection_lost_after_disarm_loses_no_change(
    bare: Node, target: Target, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    with open_session(target, deadman.LIMITS) as session:
        deadman.arm(session, GUARD, "mine")
        bare.run("echo MaxAuthTries 3 >/etc/ssh/sshd_config.d/00-gpuprov.conf")
        breaking(monkeypatch, times)
        if times < 3:
            deadman.prove_and_disarm(target, [22], GUARD, "mine")
        else:
            with pytest.raises(Unreachable, match="the connection broke") as failure:
                deadman.prove_and_disarm(target, [22], GUARD, "mine")
            assert deadman.undo(session, target, GUARD, "mine", failure.value) is None
    kept = bare.run(f"ls {HOME}/kept; ls /etc/ssh/sshd_config.d; rm /etc/ssh/sshd_config.d/00-gpuprov.conf")
    assert kept.stdout == "mine\n00-gpuprov.conf\n"


def test_as_before_is_said_only_by_the_node_and_of_this_run(bare: Node, target: Target) -> None:
    with open_session(target, deadman.LIMITS) as session:
        deadman.arm(session, GUARD, "mine")
        undone = deadman.undo(session, target, GUARD, "mine", NodeFailed("a role failed"))
        assert isinstance(undone, deadman.Undone)
        assert str(undone).startswith("a role failed; SSH and firewall are as before")
        unknown = deadman.undo(session, target, GUARD, "another", NodeFailed("a role failed"))
    assert unknown
    assert not isinstance(unknown, deadman.Undone)
    assert "the dead man's switch is not armed for another" in str(unknown)
    assert "as before" not in str(unknown)


def test_with_all_on_one_file_system_nothing_needs_room(bare: Node) -> None:
    bare.run(f"umount /{STATE}")  # not mounted again: this is the node's last test
    assert trial(bare, "restoring", "/", "0 1") == {}
    assert trial(bare, "arming", "/", "0 1 2 8 60 160 240") == {}

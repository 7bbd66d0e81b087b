"""Repair of a real node: each ladder, jobs that continue, killed controllers, a BMC."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuprov.model.lock import Lock, write_lock
from gpuprov.model.rollout import Hook, Hooks, Rollout
from gpuprov_lab import Lab, Node
from tests.lab.bmc_of_node import Power, serving_bmc
from tests.lab.command_line import gpuprov, start
from tests.lab.stub_driver_node import drive, locked_group, with_kernel_lines

pytestmark = pytest.mark.slow
JOB = "mknod /dev/nvidia9 c 1 7; systemd-run --quiet --unit=job sh -c 'exec sleep 600 </dev/nvidia9'"


class Sick:
    """A node, and the folder of its fleet, in which hooks write down what they were asked."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node, self.folder, self.power = node, folder, None

    def fault(self, *words: str) -> None:
        """Remove all faults, and put one into the node."""
        self.node.run(f"gpuprov-sim mend; gpuprov-sim fault {' '.join(words)}")

    def repair(self, *words: str, code: int = 0) -> Any:
        """Repair the node; return the end of it and the reason."""
        done = gpuprov(self.folder, "repair", "--yes", "--accept", "none", "-o", "json", *words, code=code)
        [node] = json.loads(done.stdout)["nodes"]
        return node["end"], node["reason"]

    def steps(self) -> list[str]:
        """Return the steps of the last run that succeeded."""
        done = gpuprov(self.folder, "history", "--run", "latest", "-o", "json")
        entries = json.loads(done.stdout)["entries"]
        return [each["step"] for each in entries if each["event"] == "done" and each["step"] != "run"]

    @property
    def asked(self) -> list[str]:
        """The hooks that were called, in order; they are forgotten."""
        path = self.folder / "hooks"
        lines = path.read_text().split() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines


@pytest.fixture(scope="module")
def sick(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Sick:
    """Return a node on which faults can be made, and a folder with its lock, whose hooks are recorded."""
    [node] = module_lab.up(1, os="debian12", gpu="a100x4")
    drive(node)
    with_kernel_lines(node)
    node.run("systemctl enable --now nvidia-persistenced; ldconfig", check=False)
    folder = tmp_path_factory.mktemp("fleet")
    hooks = Hooks(
        drain=Hook(run=f"echo drain >>{folder}/hooks"), resume=Hook(run=f"echo resume >>{folder}/hooks")
    )
    lock = Lock(inputs="0" * 64, groups={"test": locked_group(module_lab, node)})
    write_lock(
        lock.model_copy(update={"rollout": Rollout(hooks=hooks, settle_s=20)}), folder / "fleet.lock.yml"
    )
    return Sick(node, folder)


@pytest.fixture(autouse=True)
def _new_ledger(sick: Sick) -> None:
    """An own history for each test: a node that comes back a third time stays out."""
    for path in (sick.folder / "state/gpuprov").glob("history.sqlite*"):
        path.unlink()
    assert sick.asked is not None


@pytest.fixture
def bmc(sick: Sick) -> Iterator[Power]:
    """Provide a BMC of the node."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with serving_bmc(sick.node, sick.folder, port) as power:
        yield power
    (sick.folder / "bmc.yml").unlink()


def test_a_healthy_node_is_left_alone(sick: Sick) -> None:
    sick.node.run("gpuprov-sim mend")
    plan = json.loads(gpuprov(sick.folder, "repair", "--plan", "-o", "json").stdout)
    assert [node["rungs"] for node in plan["nodes"]] == [[]]
    assert sick.asked == []


def test_a_reset_mends_with_the_daemon_stopped_meanwhile(sick: Sick) -> None:
    before = sick.node.boot_id()
    sick.fault("remap", "1")
    plan = json.loads(gpuprov(sick.folder, "repair", "--plan", "-o", "json").stdout)
    assert len(plan["nodes"][0]["gpus"]) == 1
    assert sick.repair() == ("mended", None)
    assert sick.steps() == ["drain", "idle-reset", "reset", "look-reset", "accept-reset", "resume"]
    assert sick.asked == ["drain", "resume"]
    assert sick.node.boot_id() == before
    assert sick.node.run("systemctl is-active nvidia-persistenced").stdout.strip() == "active"


def test_a_reboot_mends_what_a_reset_does_not(sick: Sick) -> None:
    before = sick.node.boot_id()
    sick.fault("remap-stuck", "1")
    assert sick.repair() == ("mended", None)
    assert sick.node.boot_id() != before
    assert [step for step in sick.steps() if step in ("reset", "reboot")] == ["reset", "reboot"]


def test_a_power_cycle_mends_what_a_reboot_does_not(sick: Sick, bmc: Power) -> None:
    sick.fault("gpu-dead", "2")
    assert sick.repair() == ("mended", None)
    assert [step for step in sick.steps() if step in ("reset", "reboot", "power")] == ["reboot", "power"]
    assert bmc.log == ["Off", "On"]
    assert sick.asked == ["drain", "resume"]


def test_a_node_that_does_not_answer_gets_its_power_cycled(sick: Sick, bmc: Power) -> None:
    # It hangs: the kernel takes connections, and no program answers. A refusal would be an answer.
    sick.node.run("gpuprov-sim mend; systemctl kill --kill-who=main -s STOP ssh")
    assert sick.repair() == ("mended", None)
    assert bmc.log == ["Off", "On"]


def test_what_no_rung_mends_stays_out_with_a_bundle(sick: Sick) -> None:
    sick.fault("gpu-dead", "2")
    end, reason = sick.repair(code=1)
    assert end == "out"
    assert reason.startswith("look-reboot: isolate: ")
    assert sick.asked == ["drain"]
    [bundle] = (sick.folder / "state/gpuprov/runs").glob("*-repair-*/node1.bundle.tar.gz")
    listed = subprocess.run(["tar", "tzf", bundle], capture_output=True, text=True, check=True).stdout
    assert "gpuprov-bundle/TRIED.json" in listed
    bundle.unlink()
    worst = json.loads(gpuprov(sick.folder, "history", "--worst", "-o", "json").stdout)["machines"]
    assert {each["is_out"] for each in worst} == {True}
    sick.node.run("gpuprov-sim mend")


def test_a_third_return_stays_out(sick: Sick) -> None:
    for _ in range(2):
        sick.fault("remap", "1")
        assert sick.repair()[0] == "mended"
    sick.fault("remap", "1")
    end, reason = sick.repair(code=1)
    assert (end, reason) == ("out", "repaired 2 times in 90 days, and faulty again: replace the part")
    assert sick.steps() == ["drain", "bundle"]


def test_a_job_goes_on_and_the_node_is_left_as_it_was(sick: Sick) -> None:
    sick.fault("remap", "1")
    sick.node.run(JOB)
    process = sick.node.run("systemctl show --value --property=MainPID job").stdout
    end, reason = sick.repair("--patience", "1", code=1)
    assert (end, reason[:42]) == ("busy", "idle-reset: the GPUs are in use by sleep (")
    assert sick.node.run("systemctl show --value --property=MainPID job").stdout == process
    assert sick.asked == ["drain", "resume"]
    sick.node.run("systemctl stop job; rm /dev/nvidia9")
    assert sick.repair() == ("mended", None)


@pytest.mark.parametrize("step", ["drain", "reset", "look-reset", "reboot", "look-reboot", "power", "resume"])
def test_a_killed_controller_is_resumed(sick: Sick, bmc: Power, step: str) -> None:
    """Kill the controller when it begins a step: what follows is the same as without."""
    if step in ("reset", "look-reset"):
        sick.node.reboot()  # the log has no Xid of another test, which would ask for a reboot
        sick.fault("remap-stuck", "1")
    else:
        sick.fault("gpu-dead", "2")
    process = start(sick.folder, "repair", "--yes", "--accept", "none")
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(f"{step} node1"):
            process.send_signal(signal.SIGKILL)
            break
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    done = gpuprov(sick.folder, "repair", "--resume", "-o", "json")
    assert json.loads(done.stdout)["nodes"][0]["end"] == "mended"
    assert set(sick.asked) == {"drain", "resume"}
    assert len(bmc.log) in (0, 2)


def test_a_daily_share_gives_way_to_a_job_and_returns_the_node(sick: Sick) -> None:
    sick.node.run(f"gpuprov-sim mend; {JOB}")
    done = gpuprov(sick.folder, "accept", "--share", "100%")
    assert "node1 left alone: in use by sleep (" in done.stderr
    assert sick.asked == []
    sick.node.run("systemctl stop job; rm /dev/nvidia9")
    done = gpuprov(sick.folder, "accept", "--share", "100%", code=1)  # simulated GPUs do not compute
    assert "1 of 1 nodes to test now, for 100% a week" in done.stderr
    assert sick.asked == ["drain", "resume"]
    criteria = json.loads(gpuprov(sick.folder, "report", "--criteria", "public", "-o", "json", code=1).stdout)
    assert criteria["counts"]["fail"] >= 1


def test_faults_that_a_nightly_examination_finds_are_in_the_ledger(sick: Sick) -> None:
    sick.fault("remap", "1")
    gpuprov(sick.folder, "doctor", "--all", code=1)
    sick.node.run("gpuprov-sim mend")
    gpuprov(sick.folder, "doctor", "--all", code=None)
    worst = json.loads(gpuprov(sick.folder, "history", "--worst", "-o", "json").stdout)["machines"]
    [gpu] = [each for each in worst if each["kind"] == "GPU"]
    assert (gpu["nodes"], gpu["rules"]) == (["node1"], {"errors.repair_pending": 1})

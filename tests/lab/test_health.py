"""The health check on a real node: role, verdicts, and Debian's own Slurm that drains by them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from gpuprov.roles.health import LIBRARY, PROGRAM, SERVICE, TIMER, VERDICT
from gpuprov_lab import Lab
from gpuprov_lab.variants import with_control_groups
from tests.campaign._doctor_faults import FORGET
from tests.campaign._doctor_look import driven, equip
from tests.lab.stub_driver_node import StubDriverNode
from tests.lab.test_slurm import FIRST_VERSION, PACKAGES

pytestmark = pytest.mark.slow
FOLDER = "/var/lib/prometheus/node-exporter"
INTERVAL, HOLD = 10, 60
SETTING = {"interval": INTERVAL, "grace": 0, "hold": HOLD, "rules": {}, "command": None}
SLURM_CONF = f"""\
ClusterName=lab
SlurmctldHost={{name}}
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
ReturnToService=2
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
HealthCheckProgram={LIBRARY}/slurm-health
HealthCheckInterval=5
NodeName={{name}} CPUs=1 RealMemory=100 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES
"""
FAULTS = [
    ("cuda.exclusive", "isolate", "nvidia-smi -i 1 -c 2", "nvidia-smi -i 1 -c 0"),
    ("driver.smi", "isolate", "gpuprov-sim fault hang", "gpuprov-sim mend"),
    ("driver.uvm", "isolate", "modprobe -r nvidia_uvm", "modprobe nvidia_uvm"),
    (
        "errors.xid",
        "reset",
        "gpuprov-sim fault xid 2 119",
        FORGET,
    ),
]
"""Rule, class, and the commands that cause and remove the fault."""


class HealthNode(StubDriverNode):
    """A node with the role."""

    roles, areas = ("health",), ("health.",)

    def until(self, test: Callable[[], bool], seconds: float) -> float:
        """Wait until a test holds; return the seconds, or fail after the limit."""
        begun = time.monotonic()
        while not test():
            assert time.monotonic() - begun < seconds, self.says(f"cat {VERDICT}; scontrol show node")
            time.sleep(1)
        return time.monotonic() - begun

    @property
    def verdict(self) -> str:
        """The last verdict."""
        return self.says(f"cut -d' ' -f1 {VERDICT}")

    @property
    def metrics(self) -> set[tuple[str, str]]:
        """Rule and class of the faults in the textfile."""
        text = self.says(f"cat {FOLDER}/gpuprov-health.prom")
        return set(re.findall(r'gpuprov_health_fault\{rule="([^"]*)",class="([^"]*)"\}', text))

    @property
    def drained(self) -> str:
        """The reason of the node's drain, "" if it is not drained."""
        text = self.says(f"scontrol show node {self.node.name}")
        reason = re.search(r"Reason=(.*) \[", text)
        return (reason[1] if reason else "-") if re.search(r"State=\S*DRAIN", text) else ""

    def judge(self) -> None:
        """Run the program now."""
        self.node.run(f"systemctl start {SERVICE}", check=False)


@pytest.fixture(scope="module")
def node(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> HealthNode:
    [plain] = module_lab.up(1, os="debian12", gpu="h100x8", prepare=[with_control_groups])
    driven(plain)
    equip(plain)
    node = HealthNode(module_lab, plain, tmp_path_factory.mktemp("health"))
    plain.run(f"mkdir -p {FOLDER} && gpuprov-sim log 'nvidia: module loaded'")
    node.state({"health": SETTING, "monitoring": {"textfile": FOLDER}})
    return node


@pytest.fixture(scope="module")
def applied(node: HealthNode) -> HealthNode:
    """Return the node after a successful apply of the role health."""
    outcome, _ = node.apply()
    assert outcome.ok, outcome.failed
    return node


@pytest.fixture(scope="module")
def slurm(applied: HealthNode) -> HealthNode:
    """Return the node with Slurm and the health check's programs."""
    applied.node.run(f"apt-get -q update && apt-get -q -y install --no-install-recommends {PACKAGES}")
    for path, text in {
        "/etc/slurm/slurm.conf": SLURM_CONF.format(name=applied.node.name),
        "/etc/slurm/cgroup.conf": "CgroupPlugin=cgroup/v1\n",
        "/etc/systemd/system/slurmd.service.d/lab.conf": FIRST_VERSION,
    }.items():
        applied.node.run(f"mkdir -p $(dirname {path}) && cat >{path}", input=text)
    applied.node.run("systemctl daemon-reload && systemctl restart slurmctld slurmd")
    applied.until(lambda: "State=IDLE" in applied.says("scontrol show node"), 90)
    return applied


def test_the_node_is_judged_and_both_witnesses_agree(applied: HealthNode) -> None:
    assert (applied.drift(), applied.failed()) == ({}, {})
    assert applied.verdict == "watch"  # the stub driver has no module for GPUDirect
    outcome, changed = applied.apply()
    assert (outcome.ok, changed) == (True, [])


def test_both_witnesses_see_changes_and_apply_corrects_them(applied: HealthNode) -> None:
    # A run that is stopped writes that it was: the one under way has to end.
    ended = f"until test $(systemctl show -P ActiveState {SERVICE}) = inactive; do sleep 1; done"
    applied.node.run(f"systemctl disable --now {TIMER}; {ended}")
    applied.node.run(f"echo '#' >>{PROGRAM}; rm {LIBRARY}/npd-health {VERDICT}")
    assert set(applied.drift()) == {"health.files", "health.timer", "health.verdict"}
    assert set(applied.failed()) == {"health.files", "health.timer", "health.verdict"}
    applied.apply()
    assert (applied.drift(), applied.failed()) == ({}, {})


@pytest.mark.parametrize(("rule", "word", "seed", "undo"), FAULTS)
def test_a_fault_reaches_textfile_plugin_and_slurm(
    slurm: HealthNode, rule: str, word: str, seed: str, undo: str
) -> None:
    slurm.until(lambda: slurm.drained == "", 2 * HOLD)
    slurm.node.run(seed)
    slurm.until(lambda: (rule, word) in slurm.metrics, 150)
    assert re.match(rf"{rule}: .*\n1$", slurm.says(f"{LIBRARY}/npd-health {word}; echo $?"))
    slurm.until(lambda: slurm.drained.startswith(f"gpuprov:health: {word} {rule}: "), 30)
    slurm.node.run(undo, check=False)
    slurm.until(lambda: slurm.drained == "", 4 * HOLD)


def test_a_drain_of_an_administrator_stays(slurm: HealthNode) -> None:
    slurm.node.run(f"scontrol update NodeName={slurm.node.name} State=DRAIN Reason='broken fan'")
    slurm.node.run("nvidia-smi -i 1 -c 2")
    slurm.until(lambda: slurm.verdict == "isolate", 150)
    time.sleep(12)
    assert slurm.drained == "broken fan"
    slurm.node.run("nvidia-smi -i 1 -c 0")
    slurm.until(lambda: slurm.verdict == "watch", 4 * HOLD)
    time.sleep(12)
    assert slurm.drained == "broken fan"
    slurm.node.run(f"scontrol update NodeName={slurm.node.name} State=UNDRAIN")


def test_a_killed_run_leaves_the_verdict_unknown(applied: HealthNode) -> None:
    applied.node.run("gpuprov-sim fault hang")  # a run then takes as long as it waits for nvidia-smi
    applied.node.run(
        f"systemctl start --no-block {SERVICE}; sleep 3; systemctl kill -s KILL {SERVICE}", check=False
    )
    applied.until(lambda: "the last run failed or was killed" in applied.says(f"cat {VERDICT}"), 30)
    assert applied.verdict == "unknown"
    applied.node.run("gpuprov-sim mend")


def test_without_its_program_the_verdict_is_too_old_for_all_readers(applied: HealthNode) -> None:
    applied.judge()
    applied.node.run(f"systemctl stop {TIMER}; sed -i 's/ 120 / 0 /' {VERDICT}; sleep 2")
    assert applied.says(f"{LIBRARY}/npd-health isolate; echo $?").endswith("\n2")
    assert set(applied.drift()) == {"health.timer", "health.verdict"}
    applied.node.run(f"systemctl start {TIMER}")
    applied.judge()
    assert applied.drift() == {}


def test_null_removes_what_the_role_installed(applied: HealthNode) -> None:
    applied.state({"health": None})
    outcome, _ = applied.apply()
    assert outcome.ok, outcome.failed
    left = f"ls {PROGRAM} {LIBRARY}/* {VERDICT} {FOLDER}/*.prom 2>/dev/null"
    assert applied.says(f"{left}; systemctl list-timers | grep gpuprov") == ""
    assert applied.apply()[1] == []

"""An upgrade of nodes under running jobs of Debian's own Slurm: drained, moved, resumed, and no job lost.

slurmctld runs on the first node, which the upgrade reboots as well. Its commands run there by SSH, as this
machine has no Slurm.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from gpuprov.errors import GpuprovError
from gpuprov_lab import Lab
from gpuprov_lab.login import ssh_command
from gpuprov_lab.variants import with_control_groups
from tests.lab.test_slurm import DROP_INS, FIRST_VERSION, PACKAGES, SLURM_CONF
from tests.lab.upgrade_fleet import OLDER, Fleet, provisioned
from tests.unit.programs import write_program

pytestmark = pytest.mark.slow
COUNT = 4
"""Number of nodes."""
FAN = "bad fan"
"""An administrator's reason."""
HOOKS = {
    "drain": {"use": "slurm", "timeout_s": 900},
    "resume": {"use": "slurm"},
    "held": {"use": "slurm"},
}
JOBS = "/var/log/jobs"
# Each job needs all GPUs of a node, and writes its beginning and its end.
JOB = f"""\
#!/bin/sh
say() {{ echo "$SLURM_JOB_ID $1 $(date +%s) $CUDA_VISIBLE_DEVICES" >>{JOBS}; }}
say begun
sleep 15
say ended
"""
# A fault that begins after `apply`: with the older driver, a unit of others ends the persistence daemon.
SPOIL = f"""\
[Unit]
After=nvidia-persistenced.service

[Service]
ExecCondition=grep -q {OLDER} /proc/driver/nvidia/version
ExecStart=systemctl stop nvidia-persistenced

[Install]
WantedBy=multi-user.target
"""
SHIM = """\
import shlex, subprocess, sys
print(subprocess.run([*{ssh!r}, shlex.join({words!r} + sys.argv[1:])], stdin=subprocess.DEVNULL,
                     stdout=subprocess.PIPE, text=True, check=True).stdout, end="")
"""


class Cluster:
    """Nodes of an upgrade that run jobs."""

    def __init__(self, lab: Lab, fleet: Fleet) -> None:
        self.fleet, self.head = fleet, fleet.nodes[0]
        self.ssh = ssh_command(self.head.address, "root", lab.folder)
        self.submitted: list[str] = []

    def install(self, path: str) -> None:
        """Install Slurm on all nodes with the exported files, and its commands in a folder here."""
        exported = self.fleet.folder / "slurm"
        done = self.fleet.gpuprov("inventory", "export", "slurm", "--out", str(exported))
        assert done.returncode == 0, done.stderr
        host = f"{self.head.name}({self.head.address})"
        files = {f"/etc/slurm/{each.name}": each.read_text() for each in exported.glob("*.conf")}
        files["/etc/slurm/slurm.conf"] = SLURM_CONF.format(name=host) + "MinJobAge=86400\n"
        files[f"{DROP_INS}/lab.conf"] = FIRST_VERSION
        for each in exported.glob("slurmd.service.d/*"):
            files[f"{DROP_INS}/{each.name}"] = each.read_text()
        key = None
        for node in self.fleet.nodes:
            node.run(f"apt-get -q update && apt-get -q -y install --no-install-recommends {PACKAGES}")
            for name, text in files.items():
                node.run(f"mkdir -p $(dirname {name}) && cat >{name}", input=text)
            key = key or node.run("base64 /etc/munge/munge.key").stdout
            node.run("base64 -d >/etc/munge/munge.key && systemctl restart munge", input=key)
            node.run("systemctl daemon-reload && systemctl restart slurmd")
            node.run("systemctl disable --now slurmctld")
        self.head.run("systemctl enable slurmctld")
        self.head.run("systemctl restart slurmctld")
        for program in ("scontrol", "squeue"):
            text = SHIM.format(ssh=self.ssh, words=[program])
            write_program(Path(path) / program, f"exec {sys.executable} - \"$@\" <<'end'\n{text}end")
        self.until(lambda: all(state == "IDLE" for state in self.states().values()), 120)

    def says(self, command: str) -> str:
        """Return the output of a command on the node with slurmctld."""
        return self.head.run(command).stdout

    def states(self) -> dict[str, str]:
        """Return node → state."""
        shown = self.says("scontrol show node")
        return dict(re.findall(r"NodeName=(\S+)(?s:.*?)\n   State=(\S+)", shown))

    def reason(self, node: str) -> str:
        """Return the reason of a node's drain."""
        found = re.search(r"Reason=(.*) \[", self.says(f"scontrol show node {node}"))
        return found[1] if found else ""

    def submit(self, count: int) -> None:
        """Submit jobs that need all GPUs of a node."""
        for _ in range(count):
            done = self.head.run("cd /tmp && sbatch --parsable --gres=gpu:4 --output=/dev/null", input=JOB)
            self.submitted.append(done.stdout.strip())

    def keep_busy(self) -> None:
        """Submit a job if none waits; not while the node with slurmctld boots."""
        try:
            if not self.says("squeue --noheader --states=PD"):
                self.submit(1)
        except GpuprovError:
            return

    def lines(self) -> list[tuple[str, str, str, int, str]]:
        """Return job, event, node, time and devices of what the jobs wrote."""
        found = []
        for node in self.fleet.nodes:
            for line in node.run(f"cat {JOBS}", check=False).stdout.splitlines():
                job, event, at, devices = line.split()
                found.append((job, event, node.name, int(at), devices))
        return found

    def until(self, holds: Callable[[], bool], seconds: float) -> None:
        """Wait until a condition holds."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, self.says("sinfo -N -l; squeue; tail -n 20 /var/log/slurm/*")
            time.sleep(1)


@pytest.fixture(scope="module")
def cluster(module_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Provisioned nodes with Slurm, whose commands are found on PATH here."""
    fleet = provisioned(module_lab, tmp_path_factory.mktemp("fleet"), COUNT, prepare=[with_control_groups])
    programs = tmp_path_factory.mktemp("programs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(programs), prepend=":")
        cluster = Cluster(module_lab, fleet)
        cluster.install(str(programs))
        yield cluster


def test_nodes_are_drained_moved_and_resumed_and_no_job_is_lost(cluster: Cluster) -> None:
    fleet, first = cluster.fleet, cluster.head.name
    cluster.submit(COUNT * 2)
    cluster.until(lambda: len(cluster.lines()) >= COUNT, 60)  # each node runs one
    last = fleet.nodes[-1].name
    cluster.says(f"scontrol update NodeName={last} State=DRAIN Reason='{FAN}'")
    process = fleet.start("upgrade", "--to", fleet.lock(OLDER, hooks=HOOKS), "--yes", "-o", "json")
    while process.poll() is None:
        cluster.keep_busy()
        time.sleep(2)
    out, error = process.communicate()
    assert process.returncode == 0, out + error
    assert set(fleet.loaded().values()) == {OLDER}
    assert {node["name"]: node["stands"] for node in json.loads(out)["nodes"]} == {
        node.name: "new" for node in fleet.nodes
    }
    cluster.until(lambda: cluster.says("squeue --noheader") == "", 300)
    idle = {node.name: "IDLE" for node in fleet.nodes}
    assert cluster.states() == idle | {last: "IDLE+DRAIN"}
    assert cluster.reason(last) == FAN
    cluster.says(f"scontrol update NodeName={last} State=RESUME")
    cluster.until(lambda: cluster.states() == idle, 60)
    lines = cluster.lines()
    jobs = {*cluster.submitted, *(line[0] for line in lines)}
    once = sorted((job, event) for job in jobs for event in ("begun", "ended"))
    assert sorted(line[:2] for line in lines) == once
    assert {line[4] for line in lines} == {"0,1,2,3"}
    assert {line[2] for line in lines} == {node.name for node in fleet.nodes}
    # While the first node was out of service, jobs began on another.
    out_of = [line[3] for line in lines if line[2] == first]
    gap = max(pairwise(out_of), key=lambda pair: pair[1] - pair[0])
    assert [line for line in lines if line[2] != first and gap[0] < line[3] < gap[1]]


def test_a_node_that_fails_its_verification_is_drained_with_the_name_of_the_check(cluster: Cluster) -> None:
    fleet, first = cluster.fleet, cluster.head
    names = [node.name for node in fleet.nodes]
    back = fleet.gpuprov("rollback", "--yes", "-o", "json")
    assert fleet.ends(back) == dict.fromkeys(names, "old"), back.stdout + back.stderr
    first.run("cat >/etc/systemd/system/spoil.service && systemctl enable spoil", input=SPOIL)
    done = fleet.upgrade(OLDER, hooks=HOOKS, on_failure="hold", canary=[first.name])
    assert done.returncode == 1, done.stderr
    assert fleet.ends(done) == {**dict.fromkeys(names, "old"), first.name: "held"}
    assert cluster.states() == {**dict.fromkeys(names, "IDLE"), first.name: "IDLE+DRAIN"}
    run = json.loads(done.stdout)["run"]
    reason = cluster.reason(first.name)
    assert reason.startswith(f"gpuprov:upgrade:{run} verify: gpu.persistence"), reason
    first.run("systemctl disable spoil && rm /etc/systemd/system/spoil.service")
    back = fleet.gpuprov("rollback", first.name, "--yes", "-o", "json")
    assert fleet.ends(back) == {first.name: "old"}, back.stdout + back.stderr
    cluster.until(lambda: cluster.states() == dict.fromkeys(names, "IDLE"), 60)

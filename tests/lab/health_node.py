"""A node that judges its own health, with Debian's own Slurm that drains it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuprov.roles.health import LIBRARY, SERVICE, TIMER, VERDICT
from gpuprov_lab import Lab
from gpuprov_lab.variants import with_control_groups
from tests.campaign._doctor_look import driven, equip
from tests.lab.stub_driver_node import StubDriverNode, with_kernel_lines
from tests.lab.test_slurm import FIRST_VERSION, PACKAGES, SITE_CONF

DROP_INS = f"/etc/systemd/system/{SERVICE}.d"
FOLDER = "/var/lib/prometheus/node-exporter"
SLURM_S = 5
"""Seconds between two runs of Slurm's HealthCheckProgram."""
SLURM_CONF = f"""\
{SITE_CONF}ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
HealthCheckProgram={LIBRARY}/slurm-health
HealthCheckInterval={SLURM_S}
NodeName={{name}} CPUs=1 RealMemory=100 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES
"""


class HealthNode(StubDriverNode):
    """A node with the role."""

    roles, areas = ("health",), ("health.",)

    def until(self, test: Callable[[], bool], seconds: float) -> float:
        """Wait until a test holds; return the seconds that took, and fail after `seconds`."""
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
        """(rule, class) of each fault in the textfile."""
        text = self.says(f"cat {FOLDER}/gpuprov-health.prom")
        return set(re.findall(r'gpuprov_health_fault\{rule="([^"]*)",class="([^"]*)"\}', text))

    @property
    def drained(self) -> str:
        """The reason of the node's drain in Slurm, "-" if it has none, "" if it is not drained."""
        text = self.says(f"scontrol show node {self.node.name}")
        reason = re.search(r"Reason=(.*) \[", text)
        return (reason[1] if reason else "-") if re.search(r"State=\S*DRAIN", text) else ""

    @property
    def comment(self) -> str:
        """The node's comment in Slurm, "" without one."""
        found = re.search(r"(?m)^ *Comment=(.*)", self.says(f"scontrol show node {self.node.name}"))
        return found[1] if found else ""

    def judge(self) -> None:
        """Run the health check now, and wait for its end."""
        self.node.run(f"systemctl start {SERVICE}", check=False)

    def stop(self, how: str = "stop") -> None:
        """Stop the timer (or `how` else systemctl is to treat it), and wait for the end of a run."""
        state = f"systemctl show -P ActiveState {SERVICE}"
        self.node.run(
            f"systemctl {how} {TIMER}; until {state} | grep -qx 'inactive\\|failed'; do sleep 0.3; done"
        )

    def install_slurm(self) -> None:
        """Install Slurm, and wait until the node has registered."""
        self.node.run(f"apt-get -q update && apt-get -q -y install --no-install-recommends {PACKAGES}")
        for path, text in {
            "/etc/slurm/slurm.conf": SLURM_CONF.format(name=self.node.name),
            "/etc/slurm/cgroup.conf": "CgroupPlugin=cgroup/v1\n",
            "/etc/systemd/system/slurmd.service.d/lab.conf": FIRST_VERSION,
        }.items():
            self.node.run(f"mkdir -p $(dirname {path}) && cat >{path}", input=text)
        self.node.run("systemctl daemon-reload && systemctl restart slurmctld slurmd")
        self.until(lambda: "State=IDLE" in self.says("scontrol show node"), 90)


@contextmanager
def stuck_nvidia_smi(node: HealthNode) -> Iterator[None]:
    """Let each nvidia-smi of a node sleep uninterruptibly, until the context ends."""
    text = (Path(__file__).parent / "stuck_nvidia_smi.py").read_text()
    node.node.run(
        "test -e /dev/fuse || mknod /dev/fuse c 10 229; mkdir -p /mnt/stuck; cat >/opt/stuck.py", input=text
    )
    node.node.run("systemd-run --quiet --unit=stuck python3 /opt/stuck.py /mnt/stuck")
    script = "#!/bin/sh\nread -r line </mnt/stuck/driver\n"
    node.node.run("cat >/opt/nvidia-smi; chmod +x /opt/nvidia-smi", input=script)
    node.node.run("mount --bind /opt/nvidia-smi $(readlink -f /usr/bin/nvidia-smi)")
    try:
        yield
    finally:
        # Lazily: the shells that sleep have the script open.
        node.node.run("umount --lazy $(readlink -f /usr/bin/nvidia-smi)")
        node.node.run("systemctl stop stuck; umount /mnt/stuck")


def health_node(lab: Lab, folder: Path, setting: Mapping[str, Any]) -> HealthNode:
    """Start a node with a stub driver, and the role's setting in its lock."""
    [plain] = lab.up(1, os="debian12", gpu="h100x8", prepare=[with_control_groups])
    driven(plain)
    equip(plain)
    node = HealthNode(lab, plain, folder)
    with_kernel_lines(plain)
    # Nodes have no control groups of processors: next to busy ones a run of lowest priority does not end.
    text = "[Service]\nNice=0\nTimeoutStartSec=200\n"
    plain.run(f"mkdir -p {DROP_INS} && cat >{DROP_INS}/lab.conf", input=text)
    plain.run(f"mkdir -p {FOLDER}")
    node.state({"health": dict(setting), "monitoring": {"textfile": FOLDER}})
    return node

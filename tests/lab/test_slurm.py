"""Debian's own slurmctld, slurmd and munge with exported files, unchanged, on one node: 22.05 and 24.11.

The devices have no driver: a job that may open one gets ENXIO, a job that may not gets EPERM from the control
group. So a test sees which devices a job gets, and not what CUDA would do with them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpuprov.catalog import load
from gpuprov.catalog.gpu_names import find_gpu
from gpuprov.inventory.exports.slurm import real_memory
from gpuprov.model.lock import write_lock
from gpuprov.upgrade.known_hooks import KNOWN_HOOKS
from gpuprov_lab import Lab
from gpuprov_lab.simulator.server import write_memory
from gpuprov_lab.variants import with_control_groups
from tests.lab.command_line import gpuprov
from tests.lab.marks import slow_ones
from tests.lab.stub_driver_node import StubDriverNode, drive
from tests.systems import DEBIAN

PACKAGES = "slurmctld slurmd slurm-client munge"
SITE_CONF = """\
ClusterName=lab
SlurmctldHost={name}
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
ReturnToService=2
"""
# The site's own file; each other file in /etc/slurm is the export's.
SLURM_CONF = f"""\
{SITE_CONF}Include gpuprov.conf
PartitionName=all Nodes=ALL Default=YES
"""
# Slurm refuses a machine that mounts both versions of control groups; slurmd sees only the first.
FIRST_VERSION = "[Service]\nInaccessiblePaths=-/sys/fs/cgroup/unified\n"
# The two sockets that the node's /proc/cpuinfo simulates, for hwloc, which reads /sys.
SOCKETS = '[Service]\nEnvironment="HWLOC_SYNTHETIC=package:2 core:32 pu:1"\n'
DROP_INS = "/etc/systemd/system/slurmd.service.d"
TRY = "for each in {files}; do cat $each; done 2>&1; grep Cpus_allowed_list /proc/self/status"
GPUS = [f"/dev/nvidia{number}" for number in range(4)]


@dataclass
class Job:
    """Result of a job: the devices that it could open, its processors, and all its output."""

    opened: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    cpus: str = ""
    output: str = ""


class SlurmNode(StubDriverNode):
    """A node that runs slurmctld and slurmd."""

    def prepare(self) -> None:
        """Install Slurm, and write slurm.conf."""
        self.node.run(f"apt-get -q update && apt-get -q -y install --no-install-recommends {PACKAGES}")
        self.write("/etc/slurm/slurm.conf", SLURM_CONF.format(name=self.node.name))
        self.write(f"{DROP_INS}/lab.conf", FIRST_VERSION)

    def write(self, path: str, text: str) -> None:
        """Write a file on the node."""
        self.node.run(f"mkdir -p $(dirname {path}) && cat >{path}", input=text)

    def export(self, *options: str) -> dict[str, str]:
        """Export the node by the command line, put the files in place, and return path → text."""
        write_lock(self.lock, self.folder / "fleet.lock.yml")
        out = self.folder / "slurm"
        gpuprov(self.folder, "inventory", "export", "slurm", "--live", "--out", str(out), *options)
        files = {str(path.relative_to(out)): path.read_text() for path in out.rglob("*.conf")}
        for path, text in files.items():
            self.write(f"/etc/systemd/system/{path}" if "/" in path else f"/etc/slurm/{path}", text)
        return files

    def restart(self) -> None:
        """Restart both daemons without their former state, and wait until the node has registered."""
        self.node.run("systemctl stop slurmctld slurmd; rm -rf /var/lib/slurm/slurmctld/* /var/log/slurm/*")
        self.node.run("systemctl daemon-reload && systemctl start slurmctld slurmd")
        self.wait()

    def wait(self) -> None:
        """Wait until slurmctld has the node's registration."""
        deadline = time.monotonic() + 90
        while not re.fullmatch(r"IDLE(\+DRAIN)?", self.shown.get("State", "")):
            assert time.monotonic() < deadline, (self.shown, self.says("tail -n 20 /var/log/slurm/*.log"))
            time.sleep(1)

    @property
    def shown(self) -> dict[str, str]:
        """Keys of `scontrol show node`."""
        return dict(re.findall(r"(\w+)=(\S*)", self.says(f"scontrol show node {self.node.name}")))

    def job(self, options: str, files: list[str]) -> Job:
        """Run a job that tries to open files."""
        script = TRY.format(files=" ".join(files))
        job = Job(output=self.says(f"timeout 60 srun --mem=100 {options} sh -c '{script}'"))
        job.opened = re.findall(r"cat: (\S+): No such device or address", job.output)
        job.refused = re.findall(r"cat: (\S+): Operation not permitted", job.output)
        job.cpus = "".join(re.findall(r"Cpus_allowed_list:\s*(\S+)", job.output))
        return job


@pytest.fixture(scope="module", params=slow_ones(DEBIAN, DEBIAN[1:]))
def cluster(
    module_lab: Lab, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[SlurmNode]:
    """A node with Slurm, on which faults can be made."""
    [node] = module_lab.up(1, os=request.param, gpu="a100x4", prepare=[with_control_groups])
    drive(node)
    cluster = SlurmNode(module_lab, node, tmp_path_factory.mktemp("slurm"))
    model = find_gpu(load(), "NVIDIA A100-SXM4-80GB").id
    hardware = cluster.group.hardware.model_copy(update={"gpu_model": model})
    cluster.group = cluster.group.model_copy(update={"hardware": hardware})
    cluster.prepare()
    yield cluster
    module_lab.down([node.name])


def own_counts(cluster: SlurmNode) -> dict[str, str]:
    """Return what slurmd itself has found on the node, by its log.

    `slurmd -C` of Slurm 24.11 also reads the GPUs' local_cpulist in /sys, and crashes without this file: the
    simulator does not have it.
    """
    return dict(re.findall(r"(\w+)=(\S+)", cluster.says("grep ' CPUs=' /var/log/slurm/slurmd.log")))


def test_slurmd_finds_the_hardware_of_the_facts(cluster: SlurmNode) -> None:
    cluster.node.run("umount /proc/cpuinfo /proc/meminfo")  # the simulated ones: gpuprov reads this machine's
    text = cluster.export()["gpuprov.conf"]
    cluster.restart()
    stated, found = dict(re.findall(r"(\w+)=(\S+)", text)), own_counts(cluster)
    own = {"CPUs": "CPUs", "Sockets": "Sockets", "CoresPerSocket": "Cores", "ThreadsPerCore": "Threads"}
    for key, name in own.items():
        assert stated[key] == found[name], (text, found)
    assert stated["RealMemory"] == str(real_memory(int(found["Memory"])))
    assert cluster.shown["State"] == "IDLE"


@pytest.fixture(scope="module")
def sockets(cluster: SlurmNode) -> SlurmNode:
    """The node with two sockets and four GPUs, and a memory that this machine has."""
    # slurmd finds this machine's memory, not the simulated server's.
    kib = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    assert kib
    write_memory(cluster.node.root, int(kib[1]) >> 20)
    cluster.write(f"{DROP_INS}/sockets.conf", SOCKETS)
    cluster.node.reboot()
    cluster.node.run("systemctl is-system-running --wait", check=False)
    racks = {"b7": [cluster.node.name]}
    cluster.lock = cluster.lock.model_copy(update={"racks": racks, "nvlink_domains": None})
    cluster.export()
    cluster.restart()
    return cluster


def test_the_files_are_taken_as_they_are(sockets: SlurmNode) -> None:
    shown, driver = sockets.shown, sockets.group.components.driver
    assert shown["State"] == "IDLE"
    assert (shown["CPUTot"], shown["Sockets"], shown["CoresPerSocket"]) == ("64", "2", "32")
    assert shown["Gres"] == "gpu:a100-sxm4-80gb:4(S:0-1)"
    features = shown["ActiveFeatures"].split(",")
    assert features[:3] == ["a100-sxm4-80gb", f"driver-{driver.branch}", f"driver-{driver.version}"]
    assert sockets.says("sinfo --noheader -o '%N %T %G'") == (
        f"{sockets.node.name} idle gpu:a100-sxm4-80gb:4(S:0-1)"
    )
    assert f"SwitchName=b7 Level=0 LinkSpeed=1 Nodes={sockets.node.name}" in sockets.says(
        "scontrol show topology"
    )
    errors = re.findall(r"(?:error|fatal): .*", sockets.says("cat /var/log/slurm/slurmd.log"))
    assert [line for line in errors if "pmix" not in line] == []


def test_a_job_opens_the_gpus_it_asked_for_and_no_other(sockets: SlurmNode) -> None:
    job = sockets.job("--gres=gpu:2", GPUS)
    assert (job.opened, job.refused) == (GPUS[:2], GPUS[2:]), job.output
    assert job.cpus == "0", job.output  # a core near GPU 0 and 1, the first that Slurm counts
    none = sockets.job("", GPUS)
    assert (none.opened, none.refused) == ([], GPUS), none.output


def test_without_the_exported_cgroup_conf_a_job_opens_all(sockets: SlurmNode) -> None:
    text = sockets.says("cat /etc/slurm/cgroup.conf")
    sockets.write(
        "/etc/slurm/cgroup.conf", text.replace("ConstrainDevices=yes", "ConstrainDevices=no") + "\n"
    )
    sockets.restart()
    assert sockets.job("--gres=gpu:2", GPUS).opened == GPUS
    sockets.write("/etc/slurm/cgroup.conf", text + "\n")
    sockets.restart()


def test_jobs_ask_for_a_driver_by_its_feature(sockets: SlurmNode) -> None:
    branch = sockets.group.components.driver.branch
    assert sockets.job(f"--gres=gpu:1 --constraint=driver-{branch}", GPUS[:1]).opened == GPUS[:1]
    assert "Invalid feature specification" in sockets.job("--constraint=driver-1", []).output


def test_slurmd_starts_after_the_devices_exist(sockets: SlurmNode) -> None:
    sockets.node.reboot()
    sockets.wait()
    assert sockets.shown["State"] == "IDLE"
    assert "nvidia-persistenced.service" in sockets.says("systemctl show --value --property=After slurmd")
    begun = sockets.says("systemctl show --property=ExecStartPre slurmd")
    assert re.search(r"nvidia-smi -L .*status=0", begun), begun


def hook(cluster: SlurmNode, moment: str, run: str = "20261126-1") -> str:
    """Run one of Slurm's upgrade hooks on the controller; return its output."""
    environment = f"export GPUPROV_NODE={cluster.node.name} GPUPROV_RUN={run}\n"
    return cluster.node.run("sh -s", input=environment + KNOWN_HOOKS["slurm"].commands[moment]).stdout


def test_an_upgrade_resumes_what_it_drained_and_nothing_else(sockets: SlurmNode) -> None:
    hook(sockets, "drain")
    assert (sockets.shown["State"], sockets.shown["Reason"]) == ("IDLE+DRAIN", "gpuprov:upgrade:20261126-1")
    assert "stays IDLE+DRAIN" in hook(sockets, "resume", run="20261126-2")
    hook(sockets, "resume")
    sockets.wait()
    assert sockets.shown["State"] == "IDLE"
    sockets.node.run(f"scontrol update NodeName={sockets.node.name} State=DRAIN Reason='bad fan'")
    hook(sockets, "drain")
    assert "stays IDLE+DRAIN: bad fan" in hook(sockets, "resume")
    assert sockets.shown["State"] == "IDLE+DRAIN"
    assert "Reason=bad fan" in sockets.says(f"scontrol show node {sockets.node.name}")
    sockets.node.run(f"scontrol update NodeName={sockets.node.name} State=RESUME")
    sockets.wait()


def test_a_drain_waits_for_the_jobs_of_the_node(sockets: SlurmNode) -> None:
    sockets.node.run("cd /tmp && sbatch --wrap='sleep 15' --mem=100 --output=/dev/null")
    deadline = time.monotonic() + 60
    while not sockets.says("squeue --noheader --states=R"):
        assert time.monotonic() < deadline, sockets.says("squeue; tail -n 20 /var/log/slurm/*.log")
        time.sleep(0.5)
    begun = time.monotonic()
    hook(sockets, "drain")
    assert time.monotonic() - begun > 5
    assert sockets.says("squeue --noheader") == ""
    hook(sockets, "resume")
    sockets.wait()


def test_mig_instances_are_devices_of_jobs(sockets: SlurmNode) -> None:
    folder = "/proc/driver/nvidia/capabilities/gpu0/mig"
    # Files of the driver that the simulator does not have; the numbers are those of NVIDIA's guide.
    minors = {"gi1/access": 12, "gi1/ci0/access": 13, "gi2/access": 21, "gi2/ci0/access": 22}
    for path, minor in minors.items():
        sockets.write(f"{folder}/{path}", f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\n")
        sockets.node.run(
            f"mkdir -p /dev/nvidia-caps && mknod /dev/nvidia-caps/nvidia-cap{minor} c 240 {minor}"
        )
    sockets.node.run("systemctl stop nvidia-persistenced", check=False)  # it would hold the GPU
    sockets.node.run("nvidia-smi -i 0 -mig 1; nvidia-smi -i 0 --gpu-reset")
    sockets.node.run("systemctl start nvidia-persistenced", check=False)
    sockets.node.run("nvidia-smi mig -i 0 -cgi 3g.40gb,3g.40gb -C")
    sockets.state({"mig": ["3g.40gb", "3g.40gb"]})
    sockets.export()
    sockets.restart()
    kind = "a100-sxm4-80gb_3g.40gb"
    assert sockets.shown["Gres"] == f"gpu:a100-sxm4-80gb:3(S:0-1),gpu:{kind}:2(S:0)"
    caps = [f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in minors.values()]
    job = sockets.job(f"--gres=gpu:{kind}:1", [*GPUS, *caps])
    assert (job.opened, job.refused) == ([GPUS[0], *caps[:2]], [*GPUS[1:], *caps[2:]]), job.output

"""One look at a machine: everything that the rules read, in one command over one channel, or here."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gpuprov.doctor.bundle import as_root, run_here, write_bundle
from gpuprov.doctor.examination import Examination
from gpuprov.doctor.judge import Diagnosis, diagnose
from gpuprov.doctor.load.verdict import judge_load
from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov.probe.collect import ask, collect_local
from gpuprov.probe.facts import Facts
from gpuprov.probe.payload import ANSWER_LIMIT, CLOSER_PROBE, LOAD_PROBE, Parameters, Payload, build
from gpuprov.ssh.contained import contained
from gpuprov.ssh.transport import ConnectionLimits, Session, Target, fan_out

LIMITS = ConnectionLimits(connect_s=10, command_s=60, answer_bytes=ANSWER_LIMIT)
COLLECTORS = (
    "system",
    "kernels",
    "sysctls",
    "hugepages",
    "limits",
    "environment",
    "state",
    "daemon_json",
    "containerd",
    "nccl",
    "packages",
    "sources",
    "smi",
    "modules",
    "disk_modules",
    "dkms",
    "modprobe",
    "pci",
    "nics",
    "hcas",
    "cpu",
    "memory",
    "mounts",
    "units",
    "kernel_log",
    "pci_links",
    "nvlink",
    "topo",
    "counters",
    "libraries",
    "secure_boot",
    "dkms_log",
    "container_state",
    "frameworks",
    "gpu_tools",
    "host_state",
    "programs",
)
_PLAIN = Parameters()
PARAMETERS = replace(
    _PLAIN,
    package_pattern=rf"{_PLAIN.package_pattern}|^unattended-upgrades$|^firmware-nvidia|^mokutil$|^nvlsm|^infiniband",
    units=(
        *_PLAIN.units,
        "nvidia-imex.service",
        "nvidia-dcgm.service",
        "kubelet.service",
        "chrony.service",
        "chronyd.service",
        "systemd-timesyncd.service",
        "ntp.service",
        "ntpsec.service",
    ),
    sysctls=("kernel.numa_balancing", "kernel.dmesg_restrict", "vm.nr_hugepages", "fs.file-max"),
    containerd=True,
    collectors=COLLECTORS,
)


def examine_here(*, become: bool = True) -> Examination:
    """This machine, without SSH.

    Raises:
        NodeFailed: no answer from the probe.
    """
    return examination(collect_local(PARAMETERS, become=become, modules=CLOSER_PROBE))


def examination(facts: Facts) -> Examination:
    """Facts that were collected with `PARAMETERS`, as the rules read them."""
    return Examination(facts.host, facts.collected_at, facts.seconds, facts.collectors)


def examine(
    nodes: list[Target], *, forks: int = 64, password: str | None = None
) -> Iterator[tuple[str, Examination | GpuprovError]]:
    """Each node's examination as it comes; a node's failure is its answer."""
    payload = build(PARAMETERS, password=password, modules=CLOSER_PROBE)

    def visit(session: Session) -> Examination:
        return examination(ask(session, payload))

    for target, answer in fan_out(nodes, visit, forks=forks, limits=LIMITS):
        yield target.name, answer


def conclude(name: str, answer: Examination | GpuprovError) -> Diagnosis:
    """A node's diagnosis, or why there is none."""
    if isinstance(answer, GpuprovError):
        return Diagnosis(name, failure=answer)
    found = contained(name, lambda: diagnose(answer, name))
    return Diagnosis(name, failure=found) if isinstance(found, GpuprovError) else found


def sample_here(seconds: float) -> Diagnosis:
    """This machine's bottleneck, from a sample of so many seconds.

    Raises:
        NodeFailed: no answer from the probe, or no GPU to be read.
    """
    facts = collect_local(_sampling(seconds), seconds=seconds + 60, modules=LOAD_PROBE)
    return _loaded(facts.host, facts)


def sample(
    nodes: list[Target], seconds: float, *, forks: int = 64, password: str | None = None
) -> Iterator[tuple[str, Diagnosis]]:
    """Each node's bottleneck as it comes."""
    payload: Payload = build(_sampling(seconds), password=password, modules=LOAD_PROBE)
    limits = replace(LIMITS, command_s=seconds + 60)

    def visit(session: Session) -> Diagnosis:
        return _loaded(session.target.name, ask(session, payload))

    for target, answer in fan_out(nodes, visit, forks=forks, limits=limits):
        failed = isinstance(answer, GpuprovError)
        yield target.name, Diagnosis(target.name, failure=answer) if failed else answer  # type: ignore[arg-type,misc]


def _sampling(seconds: float) -> Parameters:
    return Parameters(collectors=("load",), sample=seconds, seconds={"load": seconds + 45})


def _loaded(name: str, facts: Facts) -> Diagnosis:
    found = contained(name, lambda: tuple(judge_load(facts.raw("load"))))
    if isinstance(found, NodeFailed):
        return Diagnosis(name, failure=found)
    if isinstance(found, GpuprovError):
        raise found
    return Diagnosis(name, found, seconds=facts.seconds, looked_at=facts.collected_at)


def bundle_here(path: Path) -> list[str]:
    """This machine's bundle; see `write_bundle`."""
    return write_bundle(path, examine_here(), run_here)


def bundle_there(node: Target, path: Path, *, password: str | None = None) -> list[str]:
    """The same of a node.

    Raises:
        GpuprovError: it was not reached, or the file cannot be written.
    """
    payload = build(PARAMETERS, password=password, modules=CLOSER_PROBE)
    limits = replace(LIMITS, command_s=90)

    def visit(session: Session) -> list[str]:
        def run(line: str) -> tuple[int, str]:
            answer = session.run(f"/bin/sh -c {shlex.quote(as_root(line))}")
            return 0, answer.stdout.decode("utf-8", "replace")

        return write_bundle(path, examination(ask(session, payload)), run)

    [(_, told)] = fan_out([node], visit, limits=limits)
    if isinstance(told, GpuprovError):
        raise told
    return told

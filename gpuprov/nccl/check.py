"""Measurement of a small all-reduce over the GPUs of a machine, compared with the speed of its links.

Nothing is configured on the machine: the variants differ only in the environment of the processes started
here.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gpuprov.errors import InvalidInput, NodeFailed
from gpuprov.finding import Finding
from gpuprov.nccl.bandwidth import gradient_seconds
from gpuprov.nccl.limits import Limit, nvlink_limit, pcie_limit
from gpuprov.nccl.log import NcclLog, read_log
from gpuprov.nccl.shells import NOT_FOUND, Local, Shell
from gpuprov.nccl.verdict import ExpectedPaths, judge_log
from gpuprov.probe.node.variables import ENVIRONMENT

SCHEMA = "gpuprov.nccl_check/1"

Variant = Literal["default", "no-p2p", "socket"]

_VARIABLES: dict[Variant, dict[str, str]] = {
    "default": {},
    "no-p2p": {"NCCL_P2P_DISABLE": "1"},
    "socket": {
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_IB_DISABLE": "1",
        "NCCL_NET": "Socket",
    },
}
VARIANTS: tuple[Variant, ...] = tuple(_VARIABLES)

_SMI_TIMEOUT_S = 60
# A healthy all-reduce of 1 GiB reaches at least three quarters of its links' speed; half of it is a fault.
_POOR = 0.5


@dataclass(frozen=True)
class Machine:
    """The machine under test: number of GPUs, and the limits of their links."""

    gpus: int
    nvlink: Limit | None
    pcie: Limit | None

    def limit(self, variant: Variant) -> Limit | None:
        """Return the link that limits a variant; None for sockets, which use no link within one machine."""
        if variant == "socket":
            return None
        return (self.nvlink if variant == "default" else None) or self.pcie


@dataclass(frozen=True)
class Measurement:
    """The run of one variant."""

    variant: Variant
    tool: str
    log: NcclLog
    limit: Limit | None
    verdict: tuple[Finding, ...]

    def as_dict(self, gpus: int, parameters: float | None) -> dict[str, Any]:
        """Return plain data; `share` is the peak bus bandwidth as a share of the limit, 1 at best."""
        peak = self.log.results.peak
        limit = {"gbs": self.limit.gbs, "path": self.limit.path} if self.limit else None
        return {
            "variant": self.variant,
            "tool": self.tool,
            "transports": self.log.transports,
            "bus_bandwidth": self.log.results.as_dict(),
            "limit": limit,
            "share": round(peak / self.limit.gbs, 3) if peak and self.limit else None,
            "estimate": estimate(parameters, peak, gpus) if parameters and peak else None,
            "verdict": [finding.as_dict() for finding in self.verdict],
        }


def estimate(parameters: float, peak: float, gpus: int) -> dict[str, float]:
    """Estimate the time to all-reduce a model's gradients of 4 bytes at a bus bandwidth of `peak` GB/s.

    `seconds` is the rule of thumb, parameters * 4 bytes / bandwidth; `seconds_ring` counts the bytes that a
    ring of this many GPUs sends, 2(n-1)/n times as much.
    """
    seconds = gradient_seconds(parameters, peak * 1e9)
    return {
        "parameters": parameters,
        "seconds": round(seconds, 6),
        "seconds_ring": round(seconds * 2 * (gpus - 1) / gpus, 6),
    }


LOCAL = Local()


def inspect_machine(gpus: int | None = None, shell: Shell = LOCAL) -> Machine:
    """Return a machine as its driver reports it; `gpus` limits the number of GPUs.

    Raises:
        NodeFailed: no driver answers, or there are fewer than two GPUs.
        InvalidInput: `gpus` is more than there are.
    """
    found = sum(line.startswith("GPU ") for line in _smi(shell, "-L").splitlines())
    if gpus is not None and gpus > found:
        raise InvalidInput(f"{gpus} GPUs requested, {found} found", do="give --gpus as many or fewer")
    taking_part = gpus or found
    if taking_part < 2:
        raise NodeFailed(f"{taking_part} GPU on {shell.where}", expected="two or more")
    query = ("--query-gpu=pcie.link.gen.max,pcie.link.width.max", "--format=csv,noheader")
    nvlink = nvlink_limit(_smi(shell, "nvlink", "-s"))
    return Machine(taking_part, nvlink, pcie_limit(_smi(shell, *query)))


def _smi(shell: Shell, *arguments: str) -> str:
    """Return nvidia-smi's output, also if it fails.

    Raises:
        NodeFailed: it is not installed, or does not answer in time.
    """
    try:
        text, code = shell.run(["nvidia-smi", *arguments], {}, _SMI_TIMEOUT_S)
    except TimeoutError:
        asked = " ".join(arguments)
        raise NodeFailed(
            f"`nvidia-smi {asked}` did not answer in {_SMI_TIMEOUT_S} s",
            do="look in `dmesg` for a lost GPU",
        ) from None
    if code == NOT_FOUND:
        raise NodeFailed(f"nvidia-smi: not found on {shell.where}", do="install the driver first")
    return text


def tool(
    gpus: int, python: str | None = None, shell: Shell = LOCAL, script: Path | None = None
) -> tuple[str, list[str]]:
    """Return the name and command line of a program that can run an all-reduce there.

    nccl-tests if they are on the PATH, else libnccl itself, else a Python with PyTorch.

    Args:
        python: an interpreter with PyTorch; only it is tried then.
        script: gpuprov's program for libnccl.

    Raises:
        NodeFailed: no such program is available.
    """
    tests = shell.find("all_reduce_perf")
    if tests and python is None:
        return "nccl-tests", [tests, "-b", "1M", "-e", "1G", "-f", "4", "-g", str(gpus)]
    if script is not None and python is None:
        for interpreter in shell.pythons:
            line = [interpreter, "-IBS", shell.place(script)]
            if _ends_well([*line, "0"], shell):
                return "libnccl", [*line, str(gpus)]
    for interpreter in [python] if python else shell.pythons:
        if _has_torch(interpreter, shell):
            driver = shell.place(Path(__file__).with_name("allreduce.py"))
            return "PyTorch", [interpreter, driver, str(gpus)]
    raise NodeFailed(
        f"neither `all_reduce_perf` nor libnccl nor a Python with PyTorch is on {shell.where}",
        do="install NCCL, put nccl-tests on the PATH, or name an interpreter with --python",
    )


def _has_torch(python: str, shell: Shell) -> bool:
    """Return whether an interpreter has PyTorch, without importing it."""
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    return _ends_well([python, "-c", probe], shell)


def _ends_well(command: Sequence[str], shell: Shell) -> bool:
    """Return whether a command ends with 0; False if it cannot be started or does not end in time."""
    try:
        return shell.run(command, {}, _SMI_TIMEOUT_S)[1] == 0
    except (OSError, TimeoutError):
        return False


def measure(
    machine: Machine,
    variant: Variant,
    name: str,
    command: Sequence[str],
    timeout_s: float,
    shell: Shell = LOCAL,
) -> Measurement:
    """Run one variant and judge it.

    Raises:
        NodeFailed: it did not finish in time, or failed with an error that NCCL does not explain.
    """
    try:
        text, code = shell.run(command, {**ENVIRONMENT, **_VARIABLES[variant]}, timeout_s)
    except TimeoutError:
        raise NodeFailed(
            f"the all-reduce did not end in {timeout_s:g} s", do="look for a hung GPU, or raise --timeout"
        ) from None
    log = read_log([io.StringIO(text)])
    if code and not log.complaints.errors:
        tail = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output")
        raise NodeFailed(f"{name} ended with {code}: {tail}", do="run it by hand to see all of its output")
    limit = machine.limit(variant)
    expected = (
        ExpectedPaths("nvlink" if machine.nvlink else None) if variant == "default" else ExpectedPaths()
    )
    verdict = [*_wanted(judge_log(log, expected), variant), *_speed(log, limit)]
    return Measurement(variant, name, log, limit, tuple(verdict))


def _wanted(findings: list[Finding], variant: Variant) -> list[Finding]:
    """Return the findings with those a variant causes itself set to ok: its slow path and its variables."""
    if variant == "default":
        return findings
    asked_for = {"intra.transport", "environment.off"}
    return [Finding("ok", found.rule, found.text) if found.rule in asked_for else found for found in findings]


def _speed(log: NcclLog, limit: Limit | None) -> list[Finding]:
    """Return the finding about the peak bandwidth: bad without one, a warning below `_POOR` of the limit,
    none without a limit.
    """
    peak = log.results.peak
    if peak is None:
        return [Finding("bad", "check.result", "no bandwidth was measured")]
    if limit is None:
        return []
    share = peak / limit.gbs
    text = f"{peak:.1f} GB/s of {limit.gbs:g} GB/s ({share:.0%}; {limit.path})"
    return [Finding("ok" if share >= _POOR else "warn", "check.speed", text)]

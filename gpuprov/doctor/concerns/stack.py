"""Rules for the installed software, checked by the resolver as a request."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from gpuprov.doctor.examination import Examination
from gpuprov.doctor.fault import Fault, rule
from gpuprov.doctor.reference import catalog
from gpuprov.errors import InvalidInput
from gpuprov.locking.resolve import Answer, Request, RuleFinding, resolve
from gpuprov.probe.facts import Missing
from gpuprov.untrusted import shell

AT_RUN_TIME = ("cuda", "framework", "cudnn", "nccl", "container")
"""Prefixes of rules about the start of programs; the others concern installation, which is already done."""
FRAMEWORKS = 41
"""Maximum number of rows that are checked: the probe's number of environments, and one row about others. An
answer of the resolver takes some milliseconds.
"""


@rule(
    "stack.installed",
    "D37",
    "D40",
    "D59",
    "D10",
    "D11",
    source="project",
    after=("driver.mismatch", "driver.flavour", "driver.too_new"),
)
def installed(seen: Examination) -> Iterator[Fault]:
    """Report conflicts between the installed driver, toolkit, libraries and kernel (degraded if programs fail
    at run time, else a risk), and the resolver's warnings as hints.
    """
    request = standing(seen)
    if request is None:
        return
    answer = _ask(request)
    for finding in answer.violations:
        runs = finding.rule.startswith(AT_RUN_TIME)
        yield _fault("degraded" if runs else "risk", finding, _stated(request), answer)
    for finding in answer.warnings:
        if finding.rule not in ("kernel-unknown",):
            yield _fault("hint", finding, _stated(request), answer)


@rule("stack.frameworks", "D37", "D41", source="project", after=("driver.mismatch", "stack.installed"))
def frameworks(seen: Examination) -> Iterator[Fault]:
    """Report conflicts of frameworks in Python environments with the driver and the GPUs; skip versions that
    are not in the catalog. A hint if the probe has not looked at all environments.
    """
    request = standing(seen)
    if request is None:
        return
    accepted = {finding.text for finding in _ask(request).violations}
    answers: dict[str, Answer | None] = {}
    for row in islice(seen.raw("frameworks"), FRAMEWORKS):
        if not row["name"]:
            yield Fault(
                "hint",
                "not all Python environments were looked at, but some of each user's",
                (f"frameworks that were found: {len(seen.raw('frameworks')) - 1}",),
                cause="there are too many, or too many folders in homes",
                mend=(shell("in an environment: python -c 'import torch; print(torch.version.cuda)'"),),
            )
            continue
        result = f"{row['name']}=={row['version']}"
        if result not in answers:
            answers[result] = _framework(request, result)
        answer = answers[result]
        if answer is None:
            continue
        for finding in answer.violations:
            if finding.text not in accepted:
                fault = _fault("risk", finding, (f"{row['folder']}: {result}, CUDA {row['cuda']}",), answer)
                yield fault


def _framework(request: Request, framework: str) -> Answer | None:
    """Return the resolver's answer for a framework with a machine's driver and GPUs; None if its version is
    not in the catalog.
    """
    asked = Request(
        gpus=request.gpus, os=request.os, arch=request.arch, driver=request.driver, framework=framework
    )
    try:
        return resolve(asked, catalog())
    except InvalidInput:
        return None


def _ask(request: Request) -> Answer:
    """Return the resolver's answer; raise `Missing` if the catalog does not know a value."""
    try:
        return resolve(request, catalog())
    except InvalidInput as error:
        raise Missing("catalog", str(error)) from None


def _stated(request: Request) -> tuple[str, ...]:
    """Return the values of a request as text: `driver 580.95.05`."""
    names = ("driver", "module", "cuda", "cudnn", "nccl", "container_toolkit", "docker", "kernel")
    return tuple(f"{name} {value}" for name in names if (value := getattr(request, name)))


def _fault(severity: str, finding: RuleFinding, seen: tuple[str, ...], answer: Answer) -> Fault:
    """Return the fault of a finding, with up to three changes that would work."""
    works = [
        shell("would work: {}: {}   ({})", each.change, each.value, each.text) for each in answer.nearest[:3]
    ]
    return Fault(
        severity,  # type: ignore[arg-type]
        finding.text,
        seen,
        f"rule {finding.rule} of the catalog: {finding.source[:160]}",
        tuple(works) or (shell("gpuprov explain lists what would work"),),
        f"stack.{answer.nearest[0].change}: {answer.nearest[0].value}" if answer.nearest else "",
    )


def standing(seen: Examination) -> Request | None:
    """Return the machine's installed software as a request; None without a loaded driver or a GPU."""
    loaded = seen.loaded_driver
    if loaded is None or not seen.pci_gpus:
        return None
    counts: dict[str, int] = {}
    for gpu in seen.pci_gpus:
        counts[gpu.id] = counts.get(gpu.id, 0) + 1
    return Request(
        gpus=tuple(f"{count}x {name}" if count > 1 else name for name, count in counts.items()),
        os=f"{seen.os.id}{seen.os.version}",
        arch=seen.arch,
        driver=loaded.version,
        module="open" if loaded.open else "proprietary",
        cuda=_toolkit(seen),
        cudnn=_version(seen, r"(?:lib)?cudnn\d(?:-cuda-\d+)?"),
        nccl=_nccl(seen),
        container_toolkit=_version(seen, r"nvidia-container-toolkit"),
        kernel=None if seen.in_container else seen.kernel,
    )


def _version(seen: Examination, pattern: str) -> str | None:
    """Return the version, without epoch and revision, of the first installed package whose name matches, or
    None.
    """
    for name in seen.packages.by_name:
        version = seen.packages.version(name)
        if version and re.fullmatch(pattern, name):
            return re.sub(r"^\d+:", "", version).split("-")[0]
    return None


def _toolkit(seen: Examination) -> str | None:
    """Return the newest toolkit of NVIDIA's packages, as `12.8`, or None."""
    found = []
    for name in seen.packages.by_name:
        result = re.fullmatch(r"cuda-(?:toolkit|nvcc|cudart)-(\d{1,2})-(\d{1,2})", name)
        if result and seen.packages.version(name):
            found.append((int(result[1]), int(result[2])))
    return ".".join(map(str, max(found))) if found else None


def _nccl(seen: Examination) -> str | None:
    """Return the version of NVIDIA's NCCL package, as `2.27.3+cuda12.9`, or None."""
    version = seen.packages.version("libnccl2") or seen.packages.version("libnccl")
    result = re.match(r"(\d+\.\d+\.\d+)-\d+\+cuda(\d+\.\d+)", version or "")
    return f"{result[1]}+cuda{result[2]}" if result else None

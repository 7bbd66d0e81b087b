"""Check of the catalog's limits: combinations of two or more parts that do not work."""

from __future__ import annotations

from collections.abc import Iterator

from gpuprov.catalog import Version
from gpuprov.catalog.records import GpuModel, Limit
from gpuprov.catalog.rules import issues
from gpuprov.catalog.rules import limits as rules
from gpuprov.locking.resolve.case import Case, Draft
from gpuprov.locking.resolve.checks.findings import Findings, violation, warning

_TITLES = {
    "container_toolkit": "container toolkit",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "docker": "Docker",
    "doca_ofed": "DOCA-OFED",
    "gds": "nvidia-fs",
    "nccl": "NCCL",
    "nccl_build": "NCCL for CUDA",
    "python": "Python",
}
_OF_DRAFT = ("driver", "cuda", "cudnn", "nccl", "nccl_build", "docker", "container_toolkit")
"""Components that a draft has by the names of a limit's fields."""


def combinations(case: Case, draft: Draft) -> Findings:
    """Yield a violation or a warning for each limit that applies to the stack, as the limit states."""
    values = _values(case, draft)
    for limit in case.catalog.tables["limits.limits"]:
        if not rules.applies(limit, values) or not _of_host(limit, case, draft):
            continue
        of_gpus = limit.capability is not None or limit.superchip is not None
        gpus = tuple(_gpus(limit, case)) if of_gpus else ()
        if gpus or not of_gpus:
            text = f"{', '.join(_named(limit, values, case, gpus))}: {limit.text}"
            yield (violation if limit.refused else warning)(case, limit.rule, text, *limit.source)


def _values(case: Case, draft: Draft) -> dict[str, Version | None]:
    """Return the versions of a stack by the names of a limit's fields."""
    system, framework = case.system, case.framework
    return {
        **{name: getattr(draft, name) for name in _OF_DRAFT},
        "kernel": issues.kernel_version(case.request.kernel or ""),
        "gds": case.gds_release,
        "doca_ofed": case.doca_release,
        "glibc": system.glibc if system else None,
        "python": system.python if system else None,
        "release": framework.version if framework else None,
        "framework_cuda": framework.cuda if framework else None,
    }


def _of_host(limit: Limit, case: Case, draft: Draft) -> bool:
    """Return whether a limit concerns the system, processor, flavour and framework of a stack."""
    return (
        (not limit.os or (case.system is not None and case.system.id in limit.os))
        and limit.arch in (None, case.arch)
        and limit.flavour in (None, draft.flavour)
        and (
            limit.framework is None or (case.framework is not None and case.framework.name == limit.framework)
        )
    )


def _gpus(limit: Limit, case: Case) -> Iterator[GpuModel]:
    """Yield the GPUs to which a limit's conditions of GPUs apply."""
    for gpu in case.gpus:
        known = limit.capability is None or rules.within(limit.capability, gpu.compute_capability)
        chip = limit.superchip is None or gpu.superchip == limit.superchip
        if known and chip:
            yield gpu


def _named(limit: Limit, values: rules.Values, case: Case, gpus: tuple[GpuModel, ...]) -> Iterator[str]:
    """Yield the parts of a stack that a limit concerns, with their versions."""
    if limit.framework:
        yield str(case.framework)
    for name in rules.concerned(limit):
        if name not in ("release", "framework_cuda"):
            yield f"{_TITLES.get(name, name)} {values[name]}"
    yield from (gpu.id for gpu in gpus)
    if case.system and (limit.os or limit.glibc or limit.python):
        yield case.system.title
    if limit.arch:
        yield limit.arch


CHECKS = (combinations,)

"""Packages of a stack, by the catalog's naming rules."""

from __future__ import annotations

from dataclasses import replace

from gpuprov.catalog.records import ArchiveDriver, PackageRule, System
from gpuprov.catalog.rules import fabric, systems
from gpuprov.catalog.texts import fill, fill_name
from gpuprov.locking.resolve.answer import PackageSet
from gpuprov.locking.resolve.case import Case, Draft
from gpuprov.locking.resolve.request import ABSENT

DCGM = "4"
_DCGM_FIRST_CUDA = 11
_OLD_GPUS_CUDA = 12
_USUAL_KERNEL = "generic"


def driver_rule(case: Case, draft: Draft) -> PackageRule | None:
    """Return the naming rule of the driver's packages, or None if it is unknown; the system must be known."""
    assert case.system is not None  # noqa: S101
    return _rule(case, draft, case.system, "driver", _home(draft, case.system))


def fabric_manager_known(case: Case, draft: Draft) -> bool:
    """Return whether the driver's repository has a fabric manager for the system, which must be known."""
    assert case.system is not None  # noqa: S101
    return _rule(case, draft, case.system, "fabricmanager", _home(draft, case.system)) is not None


def gds_known(case: Case, draft: Draft) -> bool:
    """Return whether the driver's repository has nvidia-fs for the system, which must be known."""
    assert case.system is not None  # noqa: S101
    return _rule(case, draft, case.system, "gds", _home(draft, case.system)) is not None


def doca_known(case: Case, draft: Draft) -> bool:
    """Return whether DOCA-OFED's packages are known for the system, which must be known."""
    assert case.system is not None  # noqa: S101
    return _rule(case, draft, case.system, "doca_ofed", "doca") is not None


def dcgm_there(case: Case, draft: Draft) -> bool:
    """Return whether NVIDIA's repository has DCGM for the machine: it is built for drivers from 450 on.

    An unknown branch counts as new enough.
    """
    known = draft.branch is None or draft.branch.native_cuda.major >= _DCGM_FIRST_CUDA
    return known and case.system is not None and systems.nvidia_serves(case.system, case.arch)


def packages(case: Case, draft: Draft) -> dict[str, PackageSet]:
    """Return the packages of every component of the stack by name of the component.

    A component without a rule for its packages is left out; without a known system the result is empty.
    """
    system = case.system
    if system is None:
        return {}
    words = _words(case, draft)
    found = {}
    for component, repository, table in _components(case, draft, system):
        rule = _rule(case, draft, system, table, repository)
        if rule is not None:
            found[component] = _package_set(case, component, repository, rule, words)
    return found if "dcgm" not in found else {**found, "dcgm": _dcgm(case, draft, found["dcgm"])}


def _dcgm(case: Case, draft: Draft, base: PackageSet) -> PackageSet:
    """Add DCGM's package for CUDA 12 if a driver of CUDA 13 runs GPUs that CUDA 13 has dropped; otherwise
    return the packages unchanged.
    """
    dropped = any(gpu.last_cuda and gpu.last_cuda.major == _OLD_GPUS_CUDA for gpu in case.gpus)
    if not dropped or draft.branch is None or draft.branch.native_cuda.major <= _OLD_GPUS_CUDA:
        return base
    return replace(base, names=(*base.names, f"datacenter-gpu-manager-{DCGM}-cuda{_OLD_GPUS_CUDA}"))


def _components(case: Case, draft: Draft, system: System) -> list[tuple[str, str, str]]:
    """Return component, repository and name of its rules for each part of the stack that is to be installed,
    also those that follow from the GPUs, such as the fabric manager.
    """
    home = _home(draft, system)
    switched = draft.fabricmanager is not None
    telemetry = switched and home == "nvidia"  # needs the driver's exact version: one repository
    nvlink5 = fabric.needs_nvlsm(case.gpus)
    cudnn8 = draft.cudnn is not None and draft.cudnn.major == 8
    wanted = [
        ("driver", home, "driver", True),
        ("fabricmanager", home, "fabricmanager", switched),
        ("nscq", "nvidia", "nscq", telemetry and not nvlink5),
        ("nvsdm", "nvidia", "nvsdm", telemetry and nvlink5),
        ("nvlsm", "nvidia", "nvlsm", telemetry and nvlink5),
        ("imex", "nvidia", "imex", fabric.needs_imex(case.gpus)),
        ("cuda", _cuda_repository(system, draft), "cuda", draft.cuda),
        ("compat", "nvidia", "compat", draft.compat),
        ("cudnn", "nvidia", "cudnn8" if cudnn8 else "cudnn", draft.cudnn and draft.cuda),
        ("nccl", "nvidia", "nccl", draft.nccl and draft.cuda),
        ("dcgm", "nvidia", "dcgm", draft.branch and dcgm_there(case, draft)),
        ("docker", _publisher(case, system, "docker"), "docker", "docker" not in case.absent),
        ("containerd", _publisher(case, system, "containerd"), "containerd", True),
        ("podman", _publisher(case, system, "podman"), "podman", case.request.podman not in (None, ABSENT)),
        ("doca_ofed", "doca", "doca_ofed", case.doca),
        ("gds", home, "gds", case.gds),
        ("container_toolkit", "container-toolkit", "container_toolkit", draft.container_toolkit),
        ("profiling_tools", _publisher(case, system, "profiling_tools"), "profiling_tools", True),
        ("node_exporter", _publisher(case, system, "node_exporter"), "node_exporter", True),
    ]
    return [(component, repository, rules) for component, repository, rules, there in wanted if there]


def _publisher(case: Case, system: System, component: str) -> str:
    """Return the repository of a component that NVIDIA does not publish.

    It is the distribution's own, or the first one with a rule for the system's family.
    """
    rules = [rule for rule in case.catalog.tables["packages.packages"] if rule.component == component]
    if any(system.family in rule.repository for rule in rules):
        return system.family
    return next((rule.repository[0] for rule in rules if system.family in rule.family), system.family)


def _home(draft: Draft, system: System) -> str:
    """Return the repository of the driver's packages: `nvidia`, or the id of the distribution's archive."""
    archive = _archived(draft, system)
    return archive.repository if archive else "nvidia"


def _archived(draft: Draft, system: System) -> ArchiveDriver | None:
    """Return the archive's own driver if the driver must come from there, else None."""
    return systems.archive_driver(system, draft.driver) if draft.repository == "distribution" else None


def _cuda_repository(system: System, draft: Draft) -> str:
    """Return NVIDIA's repository, unless only the distribution's archive is known to have the release."""
    own = systems.archive_cuda(system, draft.cuda) if draft.cuda else None
    return (
        own.repository if own and draft.cuda and systems.cuda_held(system, draft.cuda) != "yes" else "nvidia"
    )


def _words(case: Case, draft: Draft) -> dict[str, str]:
    """Return the values for the fields of a rule's texts: `branch` → `580`; empty texts for absent
    components.
    """
    cuda, cudnn = draft.cuda, draft.cudnn
    archive = systems.archive_driver(case.system, draft.driver) if case.system else None
    return {
        "branch": str(draft.driver.major),
        "driver": str(draft.driver),
        "driver_held": _driver_held(case, draft),
        "kernel_flavour": (case.request.kernel or _USUAL_KERNEL).rpartition("-")[2],
        "series": (archive.series if archive else "") or "",
        "cuda": str(cuda or ""),
        "cuda_major": str(cuda.major if cuda else ""),
        "cuda_dashed": str(cuda.minor if cuda else "").replace(".", "-"),
        "compat_dashed": str(draft.compat or "").replace(".", "-"),
        "cudnn": str(cudnn or ""),
        "cudnn3": ".".join(str(cudnn or "").split(".")[:3]),
        "nccl": str(draft.nccl or ""),
        "nccl_cuda": str(draft.nccl_build or f"{cuda.major if cuda else ''}.*"),
        "container_toolkit": str(draft.container_toolkit or ""),
        "gds": str(case.gds_release or ""),
        "driver_cuda_major": str(draft.branch.native_cuda.major if draft.branch else ""),
    }


def _driver_held(case: Case, draft: Draft) -> str:
    """Return the driver's version in an archive known by its branches: the stated version, or a pattern of
    the branch.
    """
    stated = [each for each in (case.driver, case.stated.get("fabricmanager")) if each is not None]
    exact = any(len(each.parts) > 1 for each in stated)
    return str(draft.driver) if exact else f"{draft.driver.major}.*"


def _rule(case: Case, draft: Draft, system: System, component: str, repository: str) -> PackageRule | None:
    """Return the first rule for a component in a repository that applies to the stack, or None."""
    archive = _archived(draft, system)
    facts: dict[str, object] = {
        "manager": system.manager,
        "family": system.family,
        "flavour": draft.flavour,
        "streams": system.streams,
        "arch": case.arch,
        "series": archive is not None and archive.series is not None,
        "precompiled": case.precompiled,
    }
    for rule in case.catalog.tables["packages.packages"]:
        if (
            rule.component == component
            and repository in rule.repository
            and _fits(rule, draft.driver.major, facts)
        ):
            found: PackageRule = rule
            return found
    return None


def _fits(rule: PackageRule, branch: int, facts: dict[str, object]) -> bool:
    """Return whether a rule applies; its empty fields accept any value.

    Args:
        branch: the driver's branch.
        facts: values of the rule's other conditions.
    """
    return (
        (rule.branch_from is None or branch >= rule.branch_from)
        and (rule.branch_to is None or branch <= rule.branch_to)
        and rule.flavour in (None, facts["flavour"])
        and rule.streams in (None, facts["streams"])
        and (not rule.manager or facts["manager"] in rule.manager)
        and (not rule.family or facts["family"] in rule.family)
        and (not rule.arch or facts["arch"] in rule.arch)
        and rule.series == (facts["series"] and rule.component == "driver")
        and rule.precompiled == (facts["precompiled"] and rule.component == "driver")
    )


def _package_set(
    case: Case, component: str, repository: str, rule: PackageRule, words: dict[str, str]
) -> PackageSet:
    """Return the packages of a component, with the fields of the rule's texts filled from `words`.

    Raises:
        InvalidInput: as `fill_name`.
    """

    def named(texts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(fill_name(text, words) for text in texts)

    assert case.system is not None  # noqa: S101
    return PackageSet(
        names=named(rule.names),
        version=(fill(rule.version, words) or None) if rule.version else None,
        repository=repository,
        hold=case.catalog.hold_patterns(component, case.system.manager),
        pin=tuple(fill(text, words) for text in rule.pin),
        stream=fill(rule.stream, words) if rule.stream else None,
        module=fill_name(rule.module, words) if rule.module else None,
        unversioned=named(rule.unversioned),
    )

"""Checks of NVSwitch companions and container engines."""

from __future__ import annotations

from gpuprov.catalog.rules import containers
from gpuprov.catalog.rules import fabric as rules
from gpuprov.locking.resolve.case import Case, Draft
from gpuprov.locking.resolve.checks.findings import Findings, reason, violation, warning
from gpuprov.locking.resolve.packages import fabric_manager_known
from gpuprov.locking.resolve.request import AUTO

_SOURCE = ("fm-guide", "gdc")


def manager(case: Case, draft: Draft) -> Findings:
    """Check for a fabric manager of exactly the driver's version on hosts with NVSwitches, and only there.

    A bare branch matches any version of it. A fabric manager with a driver from an archive without one is a
    violation.
    """
    need = rules.host_need(case.counts)
    boards = ", ".join(gpu.id for gpu in case.gpus if gpu.fabric_manager != "no")
    if draft.fabricmanager is None:
        yield from _without(case, need, boards)
        return
    if need == "never":
        named = ", ".join(gpu.id for gpu in case.gpus)
        text = f"{named} sits on no NVSwitch board: the fabric manager finds no switch there and fails"
        yield violation(case, "fabric-manager-needless", text, *_SOURCE)
    if not rules.matches_driver(draft.fabricmanager, draft.driver):
        text = (
            f"the fabric manager must have the driver's version exactly: {draft.fabricmanager} is not "
            f"{draft.driver}"
        )
        yield violation(case, "fabric-manager-version", text, *_SOURCE)
    elif "fabricmanager" in draft.chosen:
        yield reason(
            case,
            "fabric-manager-version",
            f"{boards} on an NVSwitch board: fabric manager {draft.driver}",
            *_SOURCE,
        )
    if draft.repository == "distribution" and case.system and not fabric_manager_known(case, draft):
        text = (
            f"the archive of {case.system.title} has no fabric manager: an NVSwitch system takes its driver "
            "from NVIDIA's repository"
        )
        yield violation(case, "fabric-manager-packages", text, "debian-apt")


def _without(case: Case, need: rules.Need, boards: str) -> Findings:
    """Yield the finding about a stack without fabric manager: a violation, a warning or a reason, by the
    need.
    """
    if need == "required":
        text = f"{boards} on an NVSwitch board needs a fabric manager: without one CUDA answers error 802"
        yield violation(case, "fabric-manager-missing", text, *_SOURCE)
    elif need == "likely":
        text = (
            f"{boards}: boards with 8 GPUs have NVSwitches and need a fabric manager, boards with 4 have none"
        )
        yield warning(case, "fabric-manager-missing", text, *_SOURCE)
    elif need == "possible":
        text = (
            f"{boards}: no fabric manager; one is needed only where NVSwitch devices are on the "
            "host's own PCI bus"
        )
        yield reason(case, "fabric-manager-missing", text, *_SOURCE)


def docker(case: Case, draft: Draft) -> Findings:
    """Check that Docker is new enough for the container toolkit: the stated one, or else the system's own.

    A stated Docker without `--gpus` is a violation, all else is a warning.
    """
    if draft.docker is None:
        yield from _system_docker(case, draft)
        return
    for need in containers.unmet_docker_needs(case.catalog, draft.docker, draft.container_toolkit):
        text = f"{need.what} needs Docker {need.at_least} or newer, not {draft.docker}"
        if need.from_toolkit:
            yield warning(
                case, "docker-cdi", f"container toolkit {draft.container_toolkit}: {text}", *need.source
            )
        elif draft.container_toolkit is not None:
            yield violation(case, "docker-gpus", text, *need.source)


def _system_docker(case: Case, draft: Draft) -> Findings:
    """Yield a warning for each way to give GPUs to containers for which the system's own Docker is too
    old.
    """
    own = case.system.docker if case.system else None
    if own is None or draft.container_toolkit is None or case.system is None:
        return
    for need in containers.unmet_docker_needs(case.catalog, own, draft.container_toolkit):
        text = (
            f"container toolkit {draft.container_toolkit}: {need.what} needs Docker {need.at_least}; "
            f"{case.system.title} ships {own}"
        )
        yield warning(case, "docker-cdi", text, *need.source)


def podman(case: Case, draft: Draft) -> Findings:
    """Check that the stated Podman is new enough for the container toolkit, without which it gets no GPUs.

    The Container Device Interface is its only way to them, so each need that it does not meet is a violation,
    as is a system whose own Podman is not known.
    """
    if draft.container_toolkit is None or case.system is None:
        return
    if draft.podman is None:
        if case.request.podman == AUTO:
            text = f"no Podman is known in the archive of {case.system.title}; state its version"
            yield violation(case, "podman-on-os", text, *case.system.source)
        return
    for need in containers.unmet_podman_needs(case.catalog, draft.podman, draft.container_toolkit):
        text = f"{need.what} needs Podman {need.at_least} or newer, not {draft.podman}"
        if need.from_toolkit:
            text = f"container toolkit {draft.container_toolkit}: {text}"
        yield violation(case, "podman-cdi" if need.from_toolkit else "podman-gpus", text, *need.source)


def toolkit(case: Case, draft: Draft) -> Findings:
    """Check that the container toolkit is a known release that gpuprov can configure on this system.

    A chosen one yields a reason and is not checked; a stated unknown one is a warning; a known limit is a
    violation or a warning, as its record states.
    """
    if draft.container_toolkit is None or case.system is None:
        return
    if "container_toolkit" in draft.chosen:
        engines = f"Docker {draft.docker}" if draft.docker else "the system's own Docker"
        engines += f" and Podman {draft.podman} work" if draft.podman else " works"
        text = f"container toolkit {draft.container_toolkit}: the newest that {engines} with"
        yield reason(case, "container-toolkit", text, "ctk-repo")
        return
    known = {record.version.minor for record in case.catalog.container_toolkits}
    if draft.container_toolkit.minor not in known:
        text = f"container toolkit {draft.container_toolkit} is in no list of releases"
        yield warning(case, "container-toolkit-known", text, "ctk-repo")
    for limit in case.catalog.tables["containers.limits"]:
        concerned = limit.engine is None or getattr(draft, limit.engine) is not None
        there = not limit.os or case.system.id in limit.os
        stated = draft.container_toolkit
        # `1.18` is the newest of its releases, and not one before 1.18.0.
        if stated < limit.before and not limit.before.within(stated) and concerned and there:
            text = f"container toolkit {stated}: {limit.text}"
            yield (violation if limit.refused else warning)(case, limit.rule, text, *limit.source)


CHECKS = (manager, docker, podman, toolkit)

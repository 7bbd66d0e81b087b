"""Checks of driver branch and kernel-module flavour."""

from __future__ import annotations

from gpuprov.catalog.rules import driver as rules
from gpuprov.catalog.rules import module
from gpuprov.locking.resolve.case import Case, Draft
from gpuprov.locking.resolve.checks.findings import Findings, reason, violation, warning

TYPES = {"LTSB": "long-term support", "PB": "production", "NFB": "new-feature", "evaluation": "evaluation"}


def branch(case: Case, draft: Draft) -> Findings:
    """Check the branch's support, and whether the version is in a list of releases.

    An unknown branch, unknown version or end of life is a warning, a supported branch a reason.
    """
    record = draft.branch
    if record is None:
        text = f"driver branch {draft.driver.major} is not in the catalog: judged by its number alone"
        yield warning(case, "driver-known", text, "dc-supported-615")
        return
    if draft.driver not in case.catalog.known_drivers:
        newest = ", ".join(map(str, record.known_versions[:-4:-1]))
        text = (
            f"driver {draft.driver} is unknown: no list of branch {record.branch} has it (the newest there: "
            f"{newest}), and whether it exists a repository's index tells"
        )
        yield warning(case, "driver-known", text, *record.source)
    kind = TYPES[record.type] if record.type else "branch of unknown support"
    if rules.end_of_life(record, case.catalog.as_of):
        text = f"driver branch {record.branch} ({kind}) reached its end of life in {record.eol}"
        yield warning(case, "driver-end-of-life", text, *record.source)
    else:
        until = f", supported until {record.eol}" if record.eol else ""
        yield reason(case, "driver-branch", f"driver {draft.driver}: {kind}{until}", *record.source)


def gpus_together(case: Case, draft: Draft) -> Findings:
    """Check that a driver branch exists that supports all GPUs of the host; if not, that is a violation."""
    newest = [gpu for gpu in case.gpus if gpu.max_driver_branch is not None]
    if not newest:
        return
    oldest = min(newest, key=lambda gpu: gpu.max_driver_branch or 0)
    youngest = max(case.gpus, key=lambda gpu: gpu.min_driver_branch)
    if youngest.min_driver_branch > (oldest.max_driver_branch or 0):
        text = (
            f"{oldest.id} ends with driver branch {oldest.max_driver_branch} and {youngest.id} starts with "
            f"{youngest.min_driver_branch}: no driver serves both in one host"
        )
        yield violation(case, "gpus-together", text, "dc-arch-matrix", "ogkm")


def flavour(case: Case, draft: Draft) -> Findings:
    """Check that one flavour of kernel modules supports every GPU, and that the branch contains it.

    Each objection is a violation, except that open modules of experimental quality are a warning.
    """
    branch = draft.driver.major
    only = {
        flavour: [g.id for g in case.gpus if module.gpu_flavours(g) == {flavour}]
        for flavour in ("open", "proprietary")
    }
    if only["open"] and only["proprietary"]:
        text = (
            f"{', '.join(only['proprietary'])} runs with the proprietary kernel modules alone, "
            f"{', '.join(only['open'])} with the open ones alone, and a host loads one flavour"
        )
        yield violation(case, "module-flavour", text, "dig-kernel-modules", "blackwell-open")
        return
    shipped = module.branch_flavours(branch, draft.branch)
    if draft.flavour is None:
        needed = "open" if only["open"] else "proprietary"
        text = f"{', '.join(only[needed]) or 'the host'} needs the {needed} modules; branch {branch} has none"
        yield violation(case, "module-flavour", text, "dig-kernel-modules", "dig-kernel-modules-620")
        return
    yield from _stated_flavour(case, draft, only, shipped)


def _stated_flavour(
    case: Case, draft: Draft, only: dict[str, list[str]], shipped: frozenset[str]
) -> Findings:
    """Yield findings about the draft's flavour: a violation if a GPU or the branch excludes it, a warning if
    the open modules are experimental, a reason if it was chosen.

    Args:
        only: flavour → GPUs that run with it only.
        shipped: flavours of the branch.
    """
    other = "proprietary" if draft.flavour == "open" else "open"
    branch = draft.driver.major
    if only[other]:
        text = (
            f"{', '.join(only[other])} runs with the {other} kernel modules alone, not with the "
            f"{draft.flavour} ones"
        )
        yield violation(case, "module-flavour", text, "dig-kernel-modules", "blackwell-open")
    if draft.flavour not in shipped:
        text = (
            f"driver branch {branch} has no {draft.flavour} modules: open ones start at 515, "
            "proprietary ones end at 610"
        )
        yield violation(
            case, "module-shipped", text, "dig-kernel-modules", "dig-kernel-modules-620", "r615-ami-doc"
        )
    elif draft.flavour == "open" and draft.branch:
        experimental = [gpu.id for gpu in case.gpus if module.open_is_experimental(gpu, draft.branch)]
        if experimental:
            level = draft.branch.open_modules_geforce_workstation
            text = f"the open modules of branch {branch} are {level} quality on {', '.join(experimental)}"
            yield warning(case, "module-experimental", text, *draft.branch.source)
    if "flavour" in draft.chosen:
        yield reason(
            case, "module-flavour", f"{draft.flavour} modules: {_why(draft, only)}", "dig-kernel-modules"
        )


def _why(draft: Draft, only: dict[str, list[str]]) -> str:
    """Return the reason for a chosen flavour as text."""
    if only[draft.flavour or "open"]:
        return f"{', '.join(only[draft.flavour or 'open'])} needs them"
    return "the default from branch 560 on" if draft.flavour == "open" else "the default before branch 560"


CHECKS = (branch, gpus_together, flavour)

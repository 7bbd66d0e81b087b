"""The resolver's entry points: one request, one answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuprov.catalog import Catalog, load
from gpuprov.catalog.rules import fabric
from gpuprov.locking.resolve.answer import Answer, RuleFinding, Stack, Verdict
from gpuprov.locking.resolve.candidates import candidates
from gpuprov.locking.resolve.case import Case, Draft, understand
from gpuprov.locking.resolve.checks import check_draft
from gpuprov.locking.resolve.checks.mends import mends
from gpuprov.locking.resolve.choose import Chooser
from gpuprov.locking.resolve.nearest import nearest
from gpuprov.locking.resolve.packages import DCGM, dcgm_there, packages
from gpuprov.locking.resolve.request import ABSENT, AUTO, Request


def resolve(request: Request, catalog: Catalog | None = None) -> Answer:
    """Return the stack for a request, or a refusal with every violated rule and alternatives.

    Versions that the request does not state are chosen. Deterministic: the same request and catalog give the
    same answer.

    Raises:
        InvalidInput: an unknown or ambiguous name or version, or a bad value.
    """
    settled = resolve_once(request, catalog or load())
    if settled.answer.verdict != "refused":
        return settled.answer
    return replace(settled.answer, nearest=nearest(settled.case, settled.answer, _settled_answer))


@dataclass(frozen=True, slots=True)
class Resolution:
    """An answer without alternatives, with its case and its complete draft."""

    answer: Answer
    case: Case
    draft: Draft


def _settled_answer(request: Request, catalog: Catalog) -> Answer:
    """Return the answer to a request, without alternatives; raises as `resolve_once`."""
    return resolve_once(request, catalog).answer


def resolve_once(request: Request, catalog: Catalog) -> Resolution:
    """Return the answer to a request with the best of the drivers to try, without alternatives.

    Drivers are tried until one has no violation that another driver may resolve; of those tried, the first
    with the fewest violations is used.

    Raises:
        InvalidInput: as `resolve`.
    """
    case = understand(catalog, request)
    chooser = Chooser(case)
    judged = []
    for candidate in candidates(case):
        draft = chooser.complete(candidate)
        said: dict[str, list[RuleFinding]] = {"reason": [], "warning": [], "violation": []}
        for level, finding in check_draft(case, draft):
            said[level].append(finding)
        judged.append((draft, said))
        if all("driver" not in mends(finding.rule) for finding in said["violation"]):
            break
    draft, said = min(judged, key=lambda pair: len(pair[1]["violation"]))
    return Resolution(_answer(case, draft, said), case, draft)


def _answer(case: Case, draft: Draft, said: dict[str, list[RuleFinding]]) -> Answer:
    """Return the answer for a complete draft: refused with any violation, with packages only if not refused.

    Args:
        said: findings by level: `reason`, `warning`, `violation`.
    """
    verdict: Verdict = "refused" if said["violation"] else "warn" if said["warning"] else "ok"
    return Answer(
        verdict=verdict,
        stack=_stack(case, draft),
        packages=packages(case, draft) if verdict != "refused" else {},
        reasons=tuple(said["reason"]),
        warnings=tuple(said["warning"]),
        violations=tuple(said["violation"]),
        gpus=tuple(f"{number}x {gpu.id}" if number else gpu.id for gpu, number in case.counts.items()),
    )


def _stack(case: Case, draft: Draft) -> Stack:
    """Return the versions of a complete draft, and the components that follow from it; `none` for one that
    must not be installed, None for one without a version.
    """

    def text(name: str) -> str | None:
        value = getattr(draft, name)
        return str(value) if value is not None else ABSENT if name in case.absent else None

    switched = draft.fabricmanager is not None and draft.repository == "nvidia"
    nvlink5 = switched and fabric.needs_nvlsm(case.gpus)
    nccl = f"{draft.nccl}+cuda{draft.nccl_build}" if draft.nccl and draft.nccl_build else text("nccl")
    return Stack(
        os=case.system.id if case.system else None,
        arch=case.arch,
        driver=str(draft.driver),
        branch=draft.driver.major,
        module=draft.flavour,
        module_build="precompiled" if case.precompiled else None,
        cuda=text("cuda"),
        cudnn=text("cudnn"),
        nccl=nccl,
        container_toolkit=text("container_toolkit"),
        fabricmanager=text("fabricmanager") or ABSENT,
        nscq=str(draft.driver) if switched and not nvlink5 else ABSENT,
        nvsdm=str(draft.driver) if nvlink5 and case.arch == "x86_64" else ABSENT,
        nvlsm=None if nvlink5 else ABSENT,
        imex=str(draft.driver) if fabric.needs_imex(case.gpus) else ABSENT,
        dcgm=DCGM if dcgm_there(case, draft) else ABSENT,
        compat=text("compat") or ABSENT,
        docker=text("docker"),
        podman=text("podman"),
        gds=str(case.gds_release or AUTO) if case.gds else case.request.gds and ABSENT,
        doca_ofed=(str(case.doca_release or AUTO) if case.doca else case.request.doca_ofed and ABSENT),
        kernel=case.request.kernel,
        framework=str(case.framework) if case.framework else None,
        repository=draft.repository,
    )

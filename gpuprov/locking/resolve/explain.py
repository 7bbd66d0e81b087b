"""Explanation of a component's version: its rules, and the requirements of newer versions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from gpuprov.catalog import Catalog, Version, load, version
from gpuprov.errors import InvalidInput, did_you_mean
from gpuprov.locking.resolve.answer import Answer, RuleFinding
from gpuprov.locking.resolve.checks import (
    cuda,
    dates,
    driver,
    fabric,
    frameworks,
    gpus,
    libraries,
    rdma,
    storage,
    system,
)
from gpuprov.locking.resolve.request import Request
from gpuprov.locking.resolve.resolver import Resolution, resolve_once

SCHEMA = "gpuprov.explain/1"
MOST_NEWER, MOST_OLDER = 6, 4
LONG_TERM = "LTSB"

FABRIC_MANAGER, IN_A_STACK = "fabric_manager", "fabricmanager"
"""The component's name on the command line and of its role, and its key in locks and answers."""

COMPONENTS = {
    "driver": (*system.CHECKS, *dates.CHECKS, driver.branch, gpus.supported, driver.gpus_together),
    "module": (driver.flavour,),
    "cuda": (*cuda.CHECKS,),
    "cudnn": (libraries.cudnn, libraries.cudnn_gpus),
    "nccl": (libraries.nccl,),
    "framework": (*frameworks.CHECKS,),
    FABRIC_MANAGER: (fabric.manager,),
    "container_toolkit": (fabric.docker, fabric.podman, fabric.toolkit),
    "doca_ofed": (rdma.doca,),
    "gds": (storage.gds,),
}


@dataclass(frozen=True, slots=True)
class Newer:
    """Another version, newer or older, tried in place of the chosen one."""

    value: str
    verdict: str
    needs: tuple[RuleFinding, ...]
    """Objections: violations, or else warnings that the chosen version does not have."""
    note: str = ""
    """Type and end of support of a driver's branch."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of one component's version."""

    component: str
    value: str | None
    because: tuple[RuleFinding, ...]
    newer: tuple[Newer, ...]
    answer: Answer
    older: tuple[Newer, ...] = ()
    """Newest versions of the `MOST_OLDER` branches before a driver's."""

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as JSON-ready data with its `schema`."""
        return {"schema": SCHEMA, **asdict(self)}


def explain(component: str, request: Request, catalog: Catalog | None = None) -> Explanation:
    """Explain the version of a component in the request's stack, also if the stack is refused.

    Args:
        component: a key of `COMPONENTS`, in any case, also with `-` for `_`.

    Raises:
        InvalidInput: no such component, or as `resolve`.
    """
    name = component.replace("-", "_").lower()
    name = FABRIC_MANAGER if name == IN_A_STACK else name
    if name not in COMPONENTS:
        expected, meant = "one of " + ", ".join(COMPONENTS), did_you_mean(name, COMPONENTS)
        raise InvalidInput(f"no component {component!r}", expected=expected, do=meant)
    catalog = catalog or load()
    settled = resolve_once(request, catalog)
    because = [finding for check in COMPONENTS[name] for _, finding in check(settled.case, settled.draft)]
    name = IN_A_STACK if name == FABRIC_MANAGER else name
    if name == "driver" and request.driver is None:
        because.insert(0, _policy(settled))
    value = getattr(settled.answer.stack, name)
    newer = tuple(_try(name, text, request, catalog, settled.answer) for text in _newer(name, value, catalog))
    older = tuple(_try(name, text, request, catalog, settled.answer) for text in _older(name, value, catalog))
    return Explanation(name, value, tuple(because), newer, settled.answer, older)


def _policy(settled: Resolution) -> RuleFinding:
    """Return the policy that chose the driver, as a reason."""
    policy = settled.case.policy
    return RuleFinding(
        "policy", f"policy {policy.name}: {policy.title}", settled.case.catalog.cite(*policy.source)
    )


def _newer(component: str, value: str | None, catalog: Catalog) -> list[str]:
    """Return at most `MOST_NEWER` newer versions in the catalog, nearest first; of each minor the newest
    release. Driver branches with long-term support are not limited in number.

    Empty if `value` is not a version. Of a driver's branch only the newest version counts.
    """
    if value is None or not value[:1].isdecimal():
        return []
    now = version(value.split("+")[0])
    newest = {
        each.minor if component != "driver" else each: each for each in sorted(_known(component, catalog))
    }
    found = [each for each in newest.values() if each > now]
    kept = [
        each
        for number, each in enumerate(found)
        if number < MOST_NEWER or (component == "driver" and _is_long_term(each, catalog))
    ]
    return [str(each) for each in kept]


def _is_long_term(value: Version, catalog: Catalog) -> bool:
    """Return whether a driver is of a branch with long-term support."""
    branch = catalog.branches.get(int(str(value).partition(".")[0]))
    return branch is not None and branch.type == LONG_TERM


def _older(component: str, value: str | None, catalog: Catalog) -> list[str]:
    """Return the newest version of each of the `MOST_OLDER` driver branches before a version, newest first.

    Empty for other components, which a fleet rarely moves back without the driver.
    """
    if component != "driver" or value is None or not value[:1].isdecimal():
        return []
    now = int(value.partition(".")[0])
    branches = sorted((each.branch, each) for each in catalog.branches.values() if each.branch < now)
    return [str(each.latest_known) for _, each in branches[: -MOST_OLDER - 1 : -1]]


def _known(component: str, catalog: Catalog) -> Iterable[Version]:
    """Return the versions of a component in the catalog; empty for one without a list of releases."""
    if component == "driver":
        return (branch.latest_known for branch in catalog.branches.values())
    records: dict[str, Iterable[Any]] = {
        "cuda": catalog.released_toolkits,
        "cudnn": catalog.cudnn,
        "nccl": catalog.nccl,
        "container_toolkit": catalog.container_toolkits,
    }
    return (record.version for record in records.get(component, ()))


def _try(component: str, value: str, request: Request, catalog: Catalog, now: Answer) -> Newer:
    """Try another version in the chosen stack: a newer driver may change CUDA, a newer CUDA keeps the
    driver.
    """
    kept: dict[str, Any] = {component: value}
    if component != "driver":
        kept["driver"] = now.stack.driver
    if component in ("cudnn", "nccl"):
        kept["cuda"] = now.stack.cuda
    answer = resolve_once(replace(request, **kept), catalog).answer
    needs = tuple(answer.violations) or tuple(_added(answer, now))
    return Newer(value, answer.verdict, needs, _support(value, catalog) if component == "driver" else "")


def _support(value: str, catalog: Catalog) -> str:
    """Return the type and the end of support of a driver's branch, as far as they are known."""
    branch = catalog.branches.get(int(value.partition(".")[0]))
    ends = f"until {branch.eol}" if branch and branch.eol else ""
    kind = driver.TYPES[branch.type] if branch and branch.type else ""
    return ", ".join(filter(None, [kind, ends]))


def _added(answer: Answer, now: Answer) -> Iterator[RuleFinding]:
    """Yield warnings of an answer by rules that do not warn about the chosen stack."""
    known = {finding.rule for finding in now.warnings}
    yield from (finding for finding in answer.warnings if finding.rule not in known)

"""Explanation of a component's version: its rules, and the requirements of newer versions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from gpuprov.catalog import Catalog, Version, load, version
from gpuprov.errors import InvalidInput, did_you_mean
from gpuprov.locking.resolve.answer import Answer, RuleFinding
from gpuprov.locking.resolve.checks import cuda, driver, fabric, gpus, libraries, system
from gpuprov.locking.resolve.request import Request
from gpuprov.locking.resolve.resolver import Resolution, resolve_once

SCHEMA = "gpuprov.explain/1"
MOST_NEWER = 6

FABRIC_MANAGER, IN_A_STACK = "fabric_manager", "fabricmanager"
"""The component's name on the command line and of its role, and its key in locks and answers."""

COMPONENTS = {
    "driver": (*system.CHECKS, driver.branch, gpus.supported, driver.gpus_together),
    "module": (driver.flavour,),
    "cuda": (*cuda.CHECKS,),
    "cudnn": (libraries.cudnn, libraries.cudnn_gpus),
    "nccl": (libraries.nccl,),
    "framework": (libraries.framework,),
    FABRIC_MANAGER: (fabric.manager,),
    "container_toolkit": (fabric.docker, fabric.podman, fabric.toolkit),
}


@dataclass(frozen=True, slots=True)
class Newer:
    """A newer version, tried in place of the chosen one."""

    value: str
    verdict: str
    needs: tuple[RuleFinding, ...]
    """Objections: violations, or else warnings that the chosen version does not have."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of one component's version."""

    component: str
    value: str | None
    because: tuple[RuleFinding, ...]
    newer: tuple[Newer, ...]
    answer: Answer

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
    return Explanation(name, value, tuple(because), newer, settled.answer)


def _policy(settled: Resolution) -> RuleFinding:
    """Return the policy that chose the driver, as a reason."""
    policy = settled.case.policy
    return RuleFinding(
        "policy", f"policy {policy.name}: {policy.title}", settled.case.catalog.cite(*policy.source)
    )


def _newer(component: str, value: str | None, catalog: Catalog) -> list[str]:
    """Return at most `MOST_NEWER` newer versions in the catalog, nearest first; of each minor the newest
    release.

    Empty if `value` is not a version. Of a driver's branch only the newest version counts.
    """
    if value is None or not value[:1].isdigit():
        return []
    now = version(value.split("+")[0])
    newest = {
        each.minor if component != "driver" else each: each for each in sorted(_known(component, catalog))
    }
    return [str(each) for each in newest.values() if each > now][:MOST_NEWER]


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
    """Try a newer version in the chosen stack: a newer driver may change CUDA, a newer CUDA keeps the
    driver.
    """
    kept: dict[str, Any] = {component: value}
    if component != "driver":
        kept["driver"] = now.stack.driver
    if component in ("cudnn", "nccl"):
        kept["cuda"] = now.stack.cuda
    answer = resolve_once(replace(request, **kept), catalog).answer
    return Newer(value, answer.verdict, tuple(answer.violations) or tuple(_added(answer, now)))


def _added(answer: Answer, now: Answer) -> Iterator[RuleFinding]:
    """Yield warnings of an answer by rules that do not warn about the chosen stack."""
    known = {finding.rule for finding in now.warnings}
    yield from (finding for finding in answer.warnings if finding.rule not in known)

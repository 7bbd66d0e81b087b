"""Nearest stacks that would work: the same request with one change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from gpuprov.catalog import Catalog
from gpuprov.catalog.identity import kin
from gpuprov.catalog.platforms import tested
from gpuprov.errors import InvalidInput
from gpuprov.locking.resolve.answer import Alternative, Answer
from gpuprov.locking.resolve.case import Case
from gpuprov.locking.resolve.checks.mends import one_change_mends
from gpuprov.locking.resolve.request import Request

Settle = Callable[[Request, Catalog], Answer]

# in the order in which an administrator would prefer to change fields
_ORDER = (
    "driver",
    "cuda",
    "cudnn",
    "nccl",
    "framework",
    "module",
    "module_build",
    "fabricmanager",
    "container_toolkit",
    "docker",
    "podman",
    "doca_ofed",
    "gds",
    "compat",
    "kernel",
    "repository",
    "arch",
    "os",
    "gpus",
)


def nearest(case: Case, refusal: Answer, settle: Settle) -> tuple[Alternative, ...]:
    """Return alternatives that are not refused, each one change away from the case's request; empty: none
    works.

    Only fields whose change may resolve all violations at once are tried; a changed request that is invalid
    is skipped.

    Args:
        settle: returns the answer to a request.
    """
    found = []
    for change in sorted(one_change_mends(refusal.violations), key=_ORDER.index):
        for request in _changed(case, change):
            try:
                answer = settle(request, case.catalog)
            except InvalidInput:
                continue
            if answer.verdict != "refused":
                found.append(_alternative(change, case.request, request, answer))
    return tuple(found)


def _changed(case: Case, change: str) -> Iterator[Request]:
    """Yield the case's request with one field changed: not stated, or set to each value to try."""
    if change in ("gpus", "os", "kernel"):
        yield from {"gpus": _fewer_gpus, "os": _other_systems, "kernel": _other_kernels}[change](case)
        return
    if getattr(case.request, change) is not None:
        yield _with(case.request, change, None)
    if change == "framework" and case.framework and case.framework.name == "torch":
        for cuda in case.framework.builds:
            build = str(cuda).replace(".", "")
            yield _with(case.request, "framework", f"torch=={case.framework.version}+cu{build}")


def _with(request: Request, name: str, value: object) -> Request:
    """Return a copy of a request with one field changed."""
    changed: dict[str, Any] = {name: value}
    return replace(request, **changed)


def _fewer_gpus(case: Case) -> Iterator[Request]:
    """Yield the request without one of the host's models, for each of them; nothing if there is only one."""
    if len(case.gpus) > 1:
        for gpu in case.gpus:
            kept = [(number, other) for other, number in case.counts.items() if other is not gpu]
            yield _with(case.request, "gpus", tuple(f"{n}x {each.id}" if n else each.id for n, each in kept))


def _other_systems(case: Case) -> Iterator[Request]:
    """Yield the request with each other release of the family.

    For a system that no repository serves, with those that can replace it, and without any with those on
    which node tests have shown the roles.
    """
    systems = case.catalog.systems
    if case.system:
        akin = [each for each in systems.values() if each.family == case.system.family]
    else:
        akin = kin(case.catalog, case.request.os) or [systems[name] for name in tested() if name in systems]
    for system in akin:
        if system is not case.system:
            yield _with(case.request, "os", system.id)


def _other_kernels(case: Case) -> Iterator[Request]:
    """Yield the request with each last kernel that builds by a known failure; nothing if it states no
    kernel.
    """
    if case.request.kernel:
        for issue in case.catalog.known_issues:
            for series in issue.kernels:
                if series.builds_to:
                    yield _with(case.request, "kernel", str(series.builds_to))


def _alternative(change: str, before: Request, after: Request, answer: Answer) -> Alternative:
    """Return the description of a changed request that works."""
    value = _value(change, after, answer)
    was = " + ".join(before.gpus) if change == "gpus" else getattr(before, change)
    text = f"{change} {value} instead of {was}" if was is not None else f"{change} {value}"
    return Alternative(change, value, answer.verdict, text)


def _value(change: str, after: Request, answer: Answer) -> str:
    """Return the changed value as text: the request's, or the resolver's choice; `left out` for neither."""
    if change == "gpus":
        return " + ".join(after.gpus)
    if change in ("os", "framework", "kernel") and getattr(after, change) is not None:
        return str(getattr(after, change))
    return str(getattr(answer.stack, change, None) or "left out")

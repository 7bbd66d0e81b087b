"""The nearest stacks that would work: the same request with one thing changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from gpuprov.catalog import Catalog
from gpuprov.errors import InvalidInput
from gpuprov.resolve.answer import Alternative, Answer
from gpuprov.resolve.case import Case
from gpuprov.resolve.request import Request

Settle = Callable[[Request, Catalog], Answer]

_OPEN = (
    "driver",
    "cuda",
    "cudnn",
    "nccl",
    "module",
    "fabricmanager",
    "container_toolkit",
    "compat",
    "framework",
    "docker",
)


def nearest(case: Case, settle: Settle) -> tuple[Alternative, ...]:
    """Alternatives that are not refused, each one change away from the case's request."""
    found = []
    for change, request in _changes(case):
        try:
            answer = settle(request, case.catalog)
        except InvalidInput:
            continue
        if answer.verdict != "refused":
            found.append(_alternative(change, case.request, request, answer))
    return tuple(found)


def _changes(case: Case) -> Iterator[tuple[str, Request]]:
    request = case.request
    for name in _OPEN:
        if getattr(request, name) is not None:
            yield name, _without(request, name)
    if case.framework and case.framework.name == "torch":
        for cuda in case.framework.builds:
            build = f"{case.framework.name}=={case.framework.version}+cu{str(cuda).replace('.', '')}"
            yield "framework", replace(request, framework=build)
    if request.repository is not None:
        yield "repository", replace(request, repository=None)
    if request.arch is not None:
        yield "arch", replace(request, arch=None)
    yield from _other_systems(case)
    if len(case.gpus) > 1:
        for gpu in case.gpus:
            rest = tuple(
                f"{n}x {other.id}" if n else other.id for other, n in case.counts.items() if other is not gpu
            )
            yield "gpus", replace(request, gpus=rest)


def _without(request: Request, name: str) -> Request:
    left_open: dict[str, Any] = {name: None}
    return replace(request, **left_open)


def _other_systems(case: Case) -> Iterator[tuple[str, Request]]:
    """The other releases of the family, as the catalog lists them; for an unserved system those named alike."""
    name = re.sub(r"[^a-z].*", "", case.request.os.lower())
    for system in case.catalog.systems.values():
        if case.system:
            akin = system.family == case.system.family and system is not case.system
        else:
            akin = bool(name) and system.id.startswith(name)
        if akin:
            yield "os", replace(case.request, os=system.id)


def _alternative(change: str, before: Request, after: Request, answer: Answer) -> Alternative:
    value = _value(change, after, answer)
    was = " + ".join(before.gpus) if change == "gpus" else getattr(before, change)
    text = f"{change} {value} instead of {was}" if was is not None else f"{change} {value}"
    return Alternative(change, value, answer.verdict, text)


def _value(change: str, after: Request, answer: Answer) -> str:
    if change == "gpus":
        return " + ".join(after.gpus)
    if change in ("os", "framework") and getattr(after, change) is not None:
        return str(getattr(after, change))
    return str(getattr(answer.stack, change, None) or "left out")

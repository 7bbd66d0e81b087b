"""Rule of limits: combinations in the catalog to which all of a stack's values apply."""

from __future__ import annotations

from collections.abc import Mapping

from gpuprov.catalog.records import Limit, Span
from gpuprov.catalog.version import Version

Values = Mapping[str, Version | None]
"""Versions of a stack by the names of `Limit`'s fields; None: not stated, or not known."""
SPANS = (
    *("driver", "kernel", "cuda", "cudnn", "nccl", "container_toolkit", "docker", "gds", "doca_ofed"),
    *("glibc", "python", "release", "framework_cuda", "nccl_build"),
)
"""The fields of `Limit` with the releases of one component."""


def within(span: Span, value: Version) -> bool:
    """Return whether a release is in a span; one with fewer digits than a bound is the newest that it
    names.
    """
    after = span.first is None or value >= span.first or span.first.within(value)
    return after and (span.before is None or (value < span.before and not span.before.within(value)))


def concerned(limit: Limit) -> tuple[str, ...]:
    """Return the names of the components whose releases a limit states."""
    return tuple(name for name in SPANS if getattr(limit, name) is not None)


def applies(limit: Limit, values: Values) -> bool:
    """Return whether all releases that a limit states contain those of a stack."""
    for name in concerned(limit):
        value = values.get(name)
        if value is None or not within(getattr(limit, name), value):
            return False
    return True

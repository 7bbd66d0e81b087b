"""An answer of the resolver as text: the stack with its reasons and warnings, or the refusal with
alternatives.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from shutil import get_terminal_size
from textwrap import wrap

from gpuprov.locking.resolve import ABSENT, Answer, RuleFinding
from gpuprov.locking.resolve.explain import Explanation
from gpuprov.model.lock import Component

_PARTS = (
    ("driver", "driver"),
    ("module", "kernel modules"),
    ("cuda", "CUDA toolkit"),
    ("compat", "cuda-compat"),
    ("cudnn", "cuDNN"),
    ("nccl", "NCCL"),
    ("container_toolkit", "container toolkit"),
    ("fabricmanager", "fabric manager"),
    ("nscq", "NSCQ"),
    ("nvsdm", "NVSDM"),
    ("imex", "IMEX"),
    ("dcgm", "DCGM"),
    ("doca_ofed", "DOCA-OFED"),
    ("gds", "nvidia-fs"),
    ("framework", "framework"),
)
_WIDEST = 100


def _width() -> int:
    """Return the width of lines: that of the terminal, at most `_WIDEST`; `_WIDEST` without one."""
    return min(_WIDEST, get_terminal_size((_WIDEST, 24)).columns) if sys.stdout.isatty() else _WIDEST


def describe(answer: Answer) -> Iterator[str]:
    """Yield lines for a terminal, stack first; a refusal has the rules first."""
    stack = answer.stack
    machine = f"{', '.join(answer.gpus)} · {stack.os or 'unsupported system'} {stack.arch}"
    yield f"{answer.verdict}: {machine}"
    if answer.verdict == "refused":
        yield from _section("violated", answer.violations)
        yield from _nearest(answer)
        yield from _section("warnings", answer.warnings)
        return
    yield ""
    yield from _table(answer)
    yield from _section("warnings", answer.warnings)
    yield from _section("because", answer.reasons)


def _table(answer: Answer) -> Iterator[str]:
    """Yield a line for each component that the stack has, with its version, and its packages if the answer
    names them.
    """
    for name, title in _PARTS:
        value = getattr(answer.stack, name)
        if value is None or value == ABSENT:
            continue
        packages = answer.packages.get(name)
        names = (
            " ".join([*packages.pin, *packages.names])
            if packages and "*" not in "".join(packages.pin)
            else ""
        )
        yield f"  {title:<18}{value:<20}{names}".rstrip()


def _section(title: str, findings: Iterable[RuleFinding]) -> Iterator[str]:
    """Yield findings under a title, each with its rule; nothing without findings."""
    lines = [line for finding in findings for line in _lines(finding)]
    if lines:
        yield f"\n{title}"
        yield from lines


def _lines(finding: RuleFinding) -> Iterator[str]:
    """Yield the lines of a finding, wrapped at the width of the terminal, at most `_WIDEST`."""
    yield from wrap(
        f"{finding.rule}: {finding.text}",
        _width(),
        initial_indent="  - ",
        subsequent_indent="    ",
        break_on_hyphens=False,
    )


def _nearest(answer: Answer) -> Iterator[str]:
    """Yield the alternatives of a refusal, or one line if it has none."""
    yield "\nwhat would work, with one change"
    for each in answer.nearest:
        note = "" if each.verdict == "ok" else f"  ({each.verdict})"
        yield f"  - {each.text}{note}"
    if not answer.nearest:
        yield "  - no stack with only one change"


def sources(answer: Answer) -> Iterator[str]:
    """Yield each source once, in the order of the findings."""
    findings = (*answer.violations, *answer.warnings, *answer.reasons)
    yield from dict.fromkeys(part for finding in findings for part in finding.source.split("; "))


def describe_explanation(explanation: Explanation) -> Iterator[str]:
    """Yield the version, its reasons, each newer version with the objections to it, and older branches."""
    title = dict(_PARTS).get(explanation.component, explanation.component)
    yield f"{title} {explanation.value or ABSENT} ({explanation.answer.verdict})"
    yield from _section("because", explanation.because)
    yield from other_versions(explanation, title)


def other_versions(explanation: Explanation, title: str) -> Iterator[str]:
    """Yield each newer version with the objections to it, and each older branch with the first objection."""
    for newer in explanation.newer:
        yield f"\n{title} {newer.value}: {newer.verdict}{f' ({newer.note})' if newer.note else ''}"
        if newer.needs:
            yield from (line for finding in newer.needs for line in _lines(finding))
        else:
            yield "  - would work, but the policy or an earlier choice excludes it"
    if explanation.older:
        yield "\nolder branches"
    for older in explanation.older:
        note = f" ({older.note})" if older.note else ""
        need = f": {older.needs[0].rule}: {older.needs[0].text}" if older.needs else ""
        yield from wrap(
            f"  - {older.value}{note}, {older.verdict}{need}",
            _width(),
            subsequent_indent="    ",
            break_on_hyphens=False,
        )


def describe_locked(group: str, title: str, locked: Component, other: Explanation | None) -> Iterator[str]:
    """Yield a locked version of a group with its reason and source, then other versions if
    `other` is given.
    """
    yield f"{group}: {title} {locked.version}"
    for word, text in (("because", locked.reason), ("source", locked.source)):
        yield from wrap(
            f"{word}: {text}", _width(), initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
        )
    if other:
        yield from other_versions(other, title)

"""Results of accept as lines for a terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from gpuprov.accept.dcgm import summary
from gpuprov.accept.judge import Acceptance
from gpuprov.accept.rates import Rate
from gpuprov.model.nodeset import fold
from gpuprov.report.table import aligned
from gpuprov.untrusted import on_one_line

HEAD = ("measured", "least", "middle", "most", "unit", "of peak", "floor")


def accept_lines(judged: Iterable[Acceptance]) -> Iterator[str]:
    """Yield a line per node with its findings below, bad ones first, without those that are ok; then, for
    each GPU model, a table of the measurements on all nodes.
    """
    nodes = list(judged)
    for each in nodes:
        yield f"{each.node}: {on_one_line(_summary(each))}"
        for found in sorted(each.findings, key=lambda found: found.level != "bad"):
            if found.level != "ok":
                yield f"  {found.level:<5} {on_one_line(found.text)}  [{found.rule}]"
    for gpu in dict.fromkeys(each.gpu for each in nodes if each.rates):
        alike = [each for each in nodes if each.rates and each.gpu == gpu]
        yield ""
        yield f"{on_one_line(gpu) or 'GPU with an unknown name'} on {fold(each.node for each in alike)}"
        yield from aligned(_table([rate for each in alike for rate in each.rates]), indent="  ")


def _summary(each: Acceptance) -> str:
    """Return a node's verdict with its error, or with its GPUs, the level, the seconds, DCGM's result if it
    ran, and the number of faults.
    """
    if each.failure is not None:
        return f"{each.verdict}: {each.failure}"
    result = each.document or {}
    size = f"{len(result.get('gpus', ()))} x {each.gpu}, {result.get('level')}, {result.get('seconds')} s"
    if (diagnosis := summary(result)) is not None:
        size += f"; DCGM: {diagnosis}"
    return f"{each.verdict} ({size})" + (f", {len(each.faults)} faults" if each.faults else "")


def _table(rates: list[Rate]) -> Iterator[tuple[str, ...]]:
    """Yield the header, then a row for each measurement: its least, middle and highest value on all nodes,
    its unit, and the middle value's share of the peak and floor.
    """
    alike: dict[str, list[Rate]] = defaultdict(list)
    for rate in rates:
        alike[rate.measure].append(rate)
    yield HEAD
    for measure, found in alike.items():
        ordered = sorted(found, key=lambda rate: rate.value)
        middle = ordered[len(ordered) // 2]
        share = "unknown" if middle.share is None else f"{middle.share:.0%}"
        floor = f"{middle.floor.bad:g}: {middle.floor.who}" if middle.floor else "no threshold known"
        values = (f"{rate.value:.1f}" for rate in (ordered[0], middle, ordered[-1]))
        yield (measure, *values, middle.unit, share, floor)

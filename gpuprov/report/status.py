"""The fleet's status as lines, and as a table that fits a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gpuprov.doctor.status import GpuNow, NodeNow, odd, usual
from gpuprov.report.table import aligned
from gpuprov.untrusted import on_one_line

if TYPE_CHECKING:
    from rich.table import Table

HEAD = ("NODE", "GPU", "BUSY", "MEMORY", "POWER", "TEMP", "CLOCK", "WHO", "ODD")


def status_lines(nodes: Sequence[NodeNow], *, folded: bool = False) -> Iterator[str]:
    """Yield plain lines, the header first; differences from the majority at the end of a line."""
    yield from aligned([HEAD, *(cells for cells, _ in status_rows(nodes, folded=folded))])


def status_rows(nodes: Sequence[NodeNow], *, folded: bool) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the cells of each line and whether to highlight it: a line per GPU, or per node if `folded`.

    A node without an answer has one highlighted line with its error.
    """
    common = usual(nodes)
    for node in nodes:
        if node.failure is not None:
            yield (node.name, "-", "", "", "", "", "", "", on_one_line(node.failure)), True
        elif folded:
            yield _folded(node, common)
        else:
            for gpu in node.gpus:
                wrong = odd(gpu, common)
                yield tuple(map(on_one_line, (node.name, *_cells(gpu), "; ".join(wrong)))), bool(wrong)


def _cells(gpu: GpuNow) -> tuple[str, ...]:
    """Return the cells of a GPU's line, without its node and its differences; at most two programs are
    named.
    """
    return (
        str(gpu.index),
        _share(gpu.busy),
        f"{_gib(gpu.used_mib)}/{_gib(gpu.total_mib)} GiB",
        f"{_whole(gpu.power_w)}/{_whole(gpu.limit_w)} W",
        f"{_whole(gpu.temperature)} C",
        f"{_whole(gpu.clock)}/{_whole(gpu.max_clock)}",
        ", ".join(gpu.programs[:2]) + (f" +{len(gpu.programs) - 2}" if len(gpu.programs) > 2 else ""),
    )


def _folded(node: NodeNow, common: dict[str, Any]) -> tuple[tuple[str, ...], bool]:
    """Return the cells of a node's line, and whether a GPU differs from the majority.

    Busy is the average of its GPUs, memory and power their sum, temperature the highest, clock the lowest,
    with 0 for an unknown one. At most two programs and differences are named, others counted.

    Args:
        common: the usual values, from `usual`.
    """
    gpus = node.gpus
    busy = [gpu.busy for gpu in gpus if gpu.busy is not None]
    wrong = [f"GPU {gpu.index} {text}" for gpu in gpus for text in odd(gpu, common)]
    who = list(dict.fromkeys(name for gpu in gpus for name in gpu.programs))
    cells = (
        node.name,
        f"{len(gpus)}x",
        _share(sum(busy) / len(busy) if busy else None),
        f"{_gib(_total(gpus, 'used_mib'))}/{_gib(_total(gpus, 'total_mib'))} GiB",
        f"{_whole(_total(gpus, 'power_w'))}/{_whole(_total(gpus, 'limit_w'))} W",
        f"{_whole(max((gpu.temperature or 0 for gpu in gpus), default=None))} C",
        f"{_whole(min((gpu.clock or 0 for gpu in gpus), default=None))}+",
        ", ".join(who[:2]) + (f" +{len(who) - 2}" if len(who) > 2 else ""),
        "; ".join(wrong[:2]) + (f" +{len(wrong) - 2}" if len(wrong) > 2 else ""),
    )
    return tuple(map(on_one_line, cells)), bool(wrong)


def _total(gpus: Sequence[GpuNow], name: str) -> float | None:
    """Return the sum of a field of all GPUs; None if one of them lacks it."""
    values = [getattr(gpu, name) for gpu in gpus]
    return None if None in values else sum(values)


def _share(value: float | None) -> str:
    """Return a share as a percentage; `-` for None."""
    return "-" if value is None else f"{value:.0%}"


def _whole(value: float | None) -> str:
    """Return a number without decimals; `-` for None."""
    return "-" if value is None else f"{value:.0f}"


def _gib(mib: float | None) -> str:
    """Convert MiB to GiB without decimals; `-` for None."""
    return "-" if mib is None else f"{mib / 1024:.0f}"


def status_table(
    nodes: Sequence[NodeNow], lines: int, *, folded: bool, only_odd: bool, top: int
) -> tuple[Table, int]:
    """Return a table for a terminal, and the row at its top.

    Args:
        lines: height of the terminal.
        folded: a line per node instead of per GPU.
        only_odd: only lines that differ from the majority.
        top: the row to begin with; a lower one is used if the rows after it would not fill the table.
    """
    from rich.table import Table
    from rich.text import Text

    rows = list(status_rows(nodes, folded=folded))
    shown = [row for row in rows if row[1]] if only_odd else rows
    room = max(1, lines - 4)
    top = max(0, min(top, len(shown) - room))
    away = sum(node.failure is not None for node in nodes)
    gpus = sum(len(node.gpus) for node in nodes)
    odd_ones = sum(stands for _, stands in rows)
    table = Table(
        title=f"{len(nodes)} nodes, {gpus} GPUs, {away} without an answer, {odd_ones} lines differ",
        caption=f"q quit  f {'GPUs' if folded else 'fold'}  o {'all' if only_odd else 'odd only'}  up/down  "
        f"{top + 1}-{min(len(shown), top + room)} of {len(shown)}",
        box=None,
        expand=True,
        pad_edge=False,
    )
    for name in HEAD:
        table.add_column(name, no_wrap=True, overflow="ellipsis", ratio=2 if name in ("WHO", "ODD") else None)
    for cells, stands in shown[top : top + room]:
        table.add_row(*(Text(cell) for cell in cells), style="bold red" if stands else "")
    return table, top

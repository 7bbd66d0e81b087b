"""SVG picture of one node: NUMA nodes as boxes, GPUs above, NICs below, and their links.

Self-contained, without scripts or fonts; colours follow the reader's light or dark scheme.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from gpuprov.topology.matrix import Link, Topology
from gpuprov.topology.verdict import distance, nearest_nics
from gpuprov.untrusted import html_text

_BOX, _GAP, _PAD, _HEIGHT = 108, 18, 18, 46
_NEAR, _THROUGH_CPU = distance("PXB"), distance("NODE")
# Plain rules, each stated twice: several viewers and converters do not support CSS variables.
_STYLE = """
  svg { font: 13px system-ui, sans-serif } text { fill: #1b1f24; text-anchor: middle }
  .soft { fill: #5b6570; font-size: 11px } .left { text-anchor: start } .title { font-size: 15px }
  path { fill: none; stroke-width: 2 } .bar { stroke-width: 6 } .paper { fill: #ffffff }
  .numa { fill: #f3f5f7; stroke: #c9cfd6 } .gpu { fill: #dff3d8; stroke: #7a8794 }
  .nic { fill: #dcebfb; stroke: #7a8794 } .near { stroke: #2f7d32 } .mid { stroke: #b26a00 }
  .far { stroke: #c0362c; stroke-dasharray: 5 4 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6e9ec } .soft { fill: #a6b0ba } .paper { fill: #15181c }
    .numa { fill: #1f242a; stroke: #3a424b } .gpu { fill: #24452a } .nic { fill: #203a56 }
    .near { stroke: #7bd07f } .mid { stroke: #f0b04c } .far { stroke: #ff8a80 }
  }
"""


def draw(topology: Topology, title: str = "") -> str:
    """Return the node as an SVG document: NUMA nodes, GPUs, NICs and their links; a GPU or NIC takes 126
    pixels of width.
    """
    columns = _columns(topology)
    places, boxes, width = _places(columns, top=_top(topology))
    height = max(y for _, y in places.values()) + _HEIGHT + _PAD + 46
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{html_text(title or "GPU topology")}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        f'<text class="title left" x="{_PAD}" y="26">{html_text(title)}</text>' if title else "",
        *boxes,
        *_gpu_lines(topology, places),
        *_nic_lines(topology, places),
        *(_device(name, _label(topology, name), places[name]) for name in places),
        f'<text class="soft left" x="{_PAD}" y="{height - 12}">{html_text(_summary(topology))}</text>',
        "</svg>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


Columns = dict[str, tuple[list[str], list[str]]]
Places = dict[str, tuple[int, int]]


def _columns(topology: Topology) -> Columns:
    """Return label of a NUMA node → its GPUs, and the NICs nearest to them; `node` for GPUs without a known
    NUMA node.
    """
    home: dict[str, str] = {}
    columns: Columns = defaultdict(lambda: ([], []))
    for gpu in topology.gpus:
        near = topology.affinity.get(gpu)
        home[gpu] = f"NUMA {near.numa}" if near and near.numa is not None else "node"
        columns[home[gpu]][0].append(gpu)
    for nic in topology.nics:
        gpu = min(topology.gpus, key=lambda gpu: distance(topology.link(gpu, nic.name).kind))
        columns[home[gpu]][1].append(nic.name)
    return columns


def _top(topology: Topology) -> int:
    """Return the height in pixels above the GPUs, for the title and the arcs between them."""
    return 110 if len(topology.gpus) < 2 or _uniform(topology) else 70 + 22 * len(topology.gpus)


def _places(columns: Columns, top: int) -> tuple[Places, list[str], int]:
    """Return device → left and top pixel, the boxes of the NUMA nodes, and the picture's width."""
    places: Places = {}
    boxes: list[str] = []
    x = _PAD
    deep = any(nics for _, nics in columns.values())
    for label, (gpus, nics) in columns.items():
        wide = max(len(gpus), len(nics)) * (_BOX + _GAP) + _GAP
        tall = (2 * _HEIGHT + 110 if deep else _HEIGHT + 30) + 14
        boxes.append(f'<rect class="numa" x="{x}" y="{top - 14}" width="{wide}" height="{tall}" rx="8"/>')
        boxes.append(
            f'<text class="soft" x="{x + wide // 2}" y="{top - 20 + tall}">{html_text(label)}</text>'
        )
        for names, y in ((gpus, top), (nics, top + _HEIGHT + 80)):
            start = x + (wide - len(names) * (_BOX + _GAP) + _GAP) // 2
            places |= {name: (start + index * (_BOX + _GAP), y) for index, name in enumerate(names)}
        x += wide + _GAP
    return places, boxes, max(x - _GAP + _PAD, 420)


def _uniform(topology: Topology) -> str | None:
    """Return the kind of link between all pairs of GPUs, or None if there are several or no pairs."""
    kinds = {link.kind for link in topology.gpu_pairs}
    return kinds.pop() if len(kinds) == 1 else None


def _gpu_lines(topology: Topology, places: Places) -> list[str]:
    """Return one bar over all GPUs if every pair has the same link, else arcs: of the pairs with NVLink,
    without any of the nearest pairs.
    """
    kind = _uniform(topology)
    if kind is None:
        shown = [link for link in topology.gpu_pairs if link.nvlinks] or _nearest_pairs(topology)
        return [_arc(link, places) for link in shown]
    y, tone = 62, _tone(kind)
    drops = [
        f'<path class="{tone}" d="M{places[g][0] + _BOX // 2} {y} V{places[g][1]}"/>' for g in topology.gpus
    ]
    first, last = (places[gpu][0] + _BOX // 2 for gpu in (topology.gpus[0], topology.gpus[-1]))
    bar = f'<path class="{tone} bar" d="M{first} {y} H{last}"/>'
    return [*drops, bar, f'<text x="{(first + last) // 2}" y="{y - 9}">every pair {html_text(kind)}</text>']


def _nearest_pairs(topology: Topology) -> list[Link]:
    """Return the pairs of GPUs with the least distance."""
    least = min((distance(link.kind) for link in topology.gpu_pairs), default=0)
    return [link for link in topology.gpu_pairs if distance(link.kind) == least]


def _arc(link: Link, places: Places) -> str:
    """Return an arc between two GPUs with its kind as label; the longer, the higher."""
    (x1, y), (x2, _) = places[link.a], places[link.b]
    x1, x2 = x1 + _BOX // 2, x2 + _BOX // 2
    peak = y - 18 - 22 * max(1, abs(x2 - x1) // (_BOX + _GAP))
    label = (
        f'<text class="soft" x="{(x1 + x2) // 2}" y="{(y + 3 * peak) // 4 - 4}">{html_text(link.kind)}</text>'
    )
    return f'<path class="{_tone(link.kind)}" d="M{x1} {y} C{x1} {peak} {x2} {peak} {x2} {y}"/>{label}'


def _nic_lines(topology: Topology, places: Places) -> list[str]:
    """Return lines from each GPU to its nearest NICs, labelled near the middle."""
    lines = []
    for links in nearest_nics(topology).values():
        for link in links:
            (x1, y1), (x2, y2) = places[link.a], places[link.b]
            x1, y1, x2 = x1 + _BOX // 2, y1 + _HEIGHT, x2 + _BOX // 2
            lines.append(f'<path class="{_tone(link.kind)}" d="M{x1} {y1} L{x2} {y2}"/>')
            lines.append(
                f'<text class="soft" x="{x1 + (x2 - x1) // 3 + 18}" y="{y1 + 28}">'
                f"{html_text(link.kind)}</text>"
            )
    return lines


def _tone(kind: str) -> str:
    """Return the style of a path by its distance: `near` up to PCIe bridges, `mid` through one CPU, else
    `far`.
    """
    if distance(kind) <= _NEAR:
        return "near"
    return "mid" if distance(kind) <= _THROUGH_CPU else "far"


def _label(topology: Topology, name: str) -> str:
    """Return the second line of a device's box: its nearest CPUs, or the RDMA device of a NIC; empty without
    either.
    """
    if name in topology.affinity:
        cpus = topology.affinity[name].cpus
        return f"CPU {cpus}" if cpus else ""
    return next((nic.device for nic in topology.nics if nic.name == name and nic.device != name), "")


def _device(name: str, label: str, place: tuple[int, int]) -> str:
    """Return the box of a device with its name and label; a long label is cut, and whole in the tooltip."""
    x, y = place
    kind = "gpu" if name.startswith("GPU") else "nic"
    short = label if len(label) <= 15 else label[:14] + "…"
    return (
        f"<g><title>{html_text(f'{name} {label}'.strip())}</title>"
        f'<rect class="{kind}" x="{x}" y="{y}" width="{_BOX}" height="{_HEIGHT}" rx="6"/>'
        f'<text x="{x + _BOX // 2}" y="{y + (20 if short else 28)}">{html_text(name)}</text>'
        f'<text class="soft" x="{x + _BOX // 2}" y="{y + 37}">{html_text(short)}</text></g>'
    )


def _summary(topology: Topology) -> str:
    """Return `GPU pairs: 28 by NV18`, or `one GPU`."""
    counts = Counter(link.kind for link in topology.gpu_pairs)
    pairs = ", ".join(f"{count} by {kind}" for kind, count in counts.most_common())
    return f"GPU pairs: {pairs}" if pairs else "one GPU"

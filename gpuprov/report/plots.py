"""Plots of acceptance measurements: each measurement over the nodes, and over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, log10
from pathlib import Path
from statistics import median
from typing import Any

from gpuprov.accept.neighbours import middle_of_nodes
from gpuprov.accept.rates import part_name
from gpuprov.errors import InvalidInput
from gpuprov.files.runs import run_folders, state_dir
from gpuprov.model.documents import write_text
from gpuprov.model.nodeset import fold
from gpuprov.report import across
from gpuprov.report.pages import page_template
from gpuprov.untrusted.stated import read_stated_json, stated_file

KEPT = "accept.json"
"""The file in a run's folder, written by `gpuprov accept`."""
RUNS = 30
"""Most runs in a plot over time."""
WIDTH, HEIGHT, LEFT, TOP = 620, 190, 52, 12
INNER, BASE = WIDTH - LEFT - 12, HEIGHT - 34


@dataclass(frozen=True)
class Dot:
    """One value; `kind` is a class of the style sheet."""

    x: float
    y: float
    kind: str
    title: str


@dataclass(frozen=True)
class Rule:
    """A horizontal line with a label."""

    y: float
    kind: str
    text: str


@dataclass
class Panel:
    """One plot."""

    title: str
    rules: list[Rule] = field(default_factory=list)
    dots: list[Dot] = field(default_factory=list)
    traces: list[tuple[str, str]] = field(default_factory=list)
    places: list[tuple[float, str]] = field(default_factory=list)
    scale: list[tuple[float, str]] = field(default_factory=list)


@dataclass
class Measure:
    """A measurement with its two plots."""

    name: str
    unit: str
    over_nodes: Panel
    over_time: Panel | None


@dataclass(frozen=True)
class Kept:
    """An earlier run: its id, and its JSON document."""

    run: str
    nodes: Sequence[Mapping[str, Any]]

    def values(self, measure: str) -> dict[str, list[Mapping[str, Any]]]:
        """Return each node's rates of a measurement, without those that were too large to be stored; a node
        without any is left out.
        """
        found = {
            str(node["node"]): [
                rate
                for rate in node.get("rates", ())
                if rate["measure"] == measure and rate["value"] is not None
            ]
            for node in self.nodes
        }
        return {node: rates for node, rates in found.items() if rates}


def read_kept(run: str) -> Kept | None:
    """Return the measurements of a run of accept, or None if none are stored.

    Measurements between nodes are used if the run has no others.

    Raises:
        InvalidInput: the file was not written by accept.
    """
    for name, nodes in ((KEPT, _nodes), (across.KEPT, across.nodes_with_rates)):
        path = state_dir() / "runs" / run / name
        if path.is_file():
            expected = "measurements saved by `gpuprov accept`"
            with stated_file(path, expected=expected):
                return Kept(run, nodes(read_stated_json(path, expected=expected)))
    return None


def _nodes(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the nodes of a stored document; KeyError if it has none."""
    return list(document["nodes"])


def write_page(run: str, path: Path) -> None:
    """Write the plots of a run and of the runs of accept before it, at most `RUNS` in all.

    Raises:
        InvalidInput: it has no stored measurements, or the file cannot be written.
    """
    now = read_kept(run)
    if now is None:
        raise InvalidInput(f"there are no saved measurements of {run}", do="run `gpuprov accept` again")
    earlier = (folder.name for folder in run_folders("accept") if folder.name < run)
    before = [kept for kept in map(read_kept, earlier) if kept is not None]
    write_text(path, render([*before[1 - RUNS :], now]))


def render(runs: Sequence[Kept]) -> str:
    """Return the HTML of runs; the last one is the subject, the others are shown over time. Accepted nodes
    are listed together, others each.
    """
    template = page_template("accept.html.j2")
    now = runs[-1]
    return template.render(
        run=now.run,
        nodes=[node for node in now.nodes if node["verdict"] != "accepted"],
        accepted=fold(str(node["node"]) for node in now.nodes if node["verdict"] == "accepted"),
        measures=list(measures(runs)),
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=WIDTH - 12,
        base=BASE,
    )


def measures(runs: Sequence[Kept]) -> Iterator[Measure]:
    """Yield every measurement of the last run, with its plot over time if there are several runs."""
    now = runs[-1]
    units = {rate["measure"]: rate["unit"] for node in now.nodes for rate in node.get("rates", ())}
    for name, unit in units.items():
        of_nodes = now.values(name).values()
        alike = [rate for rates in of_nodes for rate in rates]
        everything = [
            rate["value"] for kept in runs for rates in kept.values(name).values() for rate in rates
        ]
        peak = max((rate["peak"] for rate in alike if rate["peak"]), default=None)
        least = max((rate["floor"]["bad"] for rate in alike if rate["floor"]), default=None)
        top = 1.06 * max(*everything, *(value for value in (peak, least) if value), 1e-9)
        middle = middle_of_nodes([[rate["value"] for rate in rates] for rates in of_nodes])
        rules = _rules(top, peak, least, middle, unit)
        time = _over_time(runs, name, top, unit) if len(runs) > 1 else None
        yield Measure(name, unit, _over_nodes(now, name, top, unit, rules), time)


def _y(value: float, top: float) -> float:
    """Return the vertical position of a value in a plot whose highest value is `top`."""
    return round(BASE - (BASE - TOP) * value / top, 1)


def _rules(top: float, peak: float | None, least: float | None, middle: float, unit: str) -> list[Rule]:
    """Return the lines for the median, and for the peak and the floor if they are known."""
    found = [Rule(_y(middle, top), "middle", f"median {middle:.1f} {unit}")]
    if peak:
        found.append(Rule(_y(peak, top), "peak", f"peak {peak:g} {unit}"))
    if least:
        found.append(Rule(_y(least, top), "floor", f"floor {least:g} {unit}"))
    return found


def _scale(top: float) -> list[tuple[float, str]]:
    """Return round numbers from 0 up to the top, three to seven of them, each with its position."""
    power = 10.0 ** floor(log10(top))
    step = next(power * part for part in (0.2, 0.5, 1.0, 2.0) if top / (power * part) <= 6)
    return [(_y(step * number, top), f"{step * number:g}") for number in range(int(top / step) + 1)]


def _spread(count: int) -> list[float]:
    """Return `count` horizontal positions, evenly spaced."""
    return [round(LEFT + INNER * (place + 0.5) / count, 1) for place in range(count)]


def _labelled(places: Sequence[float], names: Iterable[str], most: int) -> list[tuple[float, str]]:
    """Return at most `most` positions with their names, evenly spaced."""
    step = -(-len(places) // most)
    return [
        (x, name) for number, (x, name) in enumerate(zip(places, names, strict=True)) if number % step == 0
    ]


def _blamed(node: Mapping[str, Any], measure: str) -> set[str]:
    """Return the GPUs, pairs, drives and ports that the node's findings of level `bad` about the measurement
    concern, and `all` if there is such a finding.
    """
    rules = (f"{measure}.", "across.") if measure == "between_nodes" else (f"{measure}.",)
    texts = [
        found["text"]
        for found in node.get("findings", ())
        if found["level"] == "bad" and found["rule"].startswith(rules)
    ]
    return {"all", *(text.removeprefix("GPU ").split(" ", 1)[0] for text in texts)} if texts else set()


def _over_nodes(now: Kept, name: str, top: float, unit: str, rules: list[Rule]) -> Panel:
    """Return each value of a measurement, node by node; values that a finding concerns are marked."""
    found = now.values(name)
    places = _spread(len(found))
    by_name = {str(node["node"]): node for node in now.nodes}
    panel = Panel("over the nodes", rules, scale=_scale(top), places=_labelled(places, found, 8))
    for x, (node, rates) in zip(places, found.items(), strict=True):
        blamed = _blamed(by_name[node], name)
        for rate in rates:
            kind = "bad" if rate["gpu"] in blamed else "fine"
            who = node if rate["gpu"] == "all" else f"{node} {part_name(rate['gpu'])}"
            panel.dots.append(Dot(x, _y(rate["value"], top), kind, f"{who}: {rate['value']:.1f} {unit}"))
    return panel


def _over_time(runs: Sequence[Kept], name: str, top: float, unit: str) -> Panel:
    """Return the median of each node in each run, connected by lines. A median is marked if a finding
    concerns a value of its node.
    """
    places = _spread(len(runs))
    lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
    panel = Panel("over time, the median of each node", scale=_scale(top))
    panel.places = _labelled(places, [_day(kept.run) for kept in runs], 6)
    for x, kept in zip(places, runs, strict=True):
        by_name = {str(node["node"]): node for node in kept.nodes}
        for node, rates in kept.values(name).items():
            middle = median(rate["value"] for rate in rates)
            y = _y(middle, top)
            lines[node].append((x, y))
            bad = not _blamed(by_name[node], name).isdisjoint(rate["gpu"] for rate in rates)
            title = f"{node}, {kept.run}: {middle:.1f} {unit}"
            panel.dots.append(Dot(x, y, "bad" if bad else "fine", title))
    for node, points in lines.items():
        if len(points) > 1:
            panel.traces.append((node, " ".join(f"{x},{y}" for x, y in points)))
    return panel


def _day(run: str) -> str:
    """Return `11-22 18:05` from the id of a run."""
    return f"{run[4:6]}-{run[6:8]} {run[9:11]}:{run[11:13]}"

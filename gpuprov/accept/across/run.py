"""Execution of rounds on nodes: make communicators, measure, and report to the search."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from gpuprov.accept.across.evidence import Heard
from gpuprov.accept.across.mesh import Mesh, Result, failed
from gpuprov.accept.across.rounds import Group, tournament
from gpuprov.accept.across.search import FEW, Search
from gpuprov.accept.judge import Acceptance, refusal
from gpuprov.accept.rates import GPUS, number, part, rows
from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov.finding import Finding
from gpuprov.model.nodeset import fold
from gpuprov.nccl.log import read_log
from gpuprov.nccl.verdict import ExpectedPaths, Inter, judge_log

MIB = 2**20
START_S, ROUND_S = 90.0, 120.0
"""Time limits in seconds for the first access to a node's GPUs, and for a round."""
FIRST_BYTES, TURNS = 16 * MIB, 4
SHORT_S = 0.01
"""Target duration in seconds of one direction of an exchange, once its rate is known."""
REDUCED_BYTES, REDUCED_TURNS = 256 * MIB, 8
INDICES, PORTS = 1024, 1024
"""Limits of a node's description of itself: of an index or a number of links, and of its RDMA ports."""
Note = Callable[[str], None]


@dataclass
class Outcome:
    """Result of a search across nodes.

    Args:
        refused: node → why it was not loaded.
        paths: findings about NCCL's paths, each once, with the nodes of the group.
        documents: node → its description of itself.
        rounds: for each round, the groups with the GB/s of their all-reduce and of their slowest exchange.
    """

    search: Search
    refused: dict[str, GpuprovError] = field(default_factory=dict)
    paths: dict[Finding, tuple[str, ...]] = field(default_factory=dict)
    documents: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    rounds: list[list[dict[str, Any]]] = field(default_factory=list)

    def judged(self) -> list[Acceptance]:
        """Return every node with its findings; a finding about a link counts for both ends."""
        found: dict[str, list[Finding]] = {name: [] for name in (*self.search.nodes, *self.refused)}
        for verdict in self.search.verdicts():
            for node in (*verdict.nodes, *verdict.others) or self.search.nodes:
                found[node].append(verdict.finding)
        for path, nodes in self.paths.items():
            for node in nodes:
                found[node].append(path)
        return [
            Acceptance(node, findings=tuple(alike), failure=self.refused.get(node))
            for node, alike in found.items()
        ]


def search_across(
    mesh: Mesh,
    names: list[str],
    inter: Inter | None = None,
    note: Note = lambda _: None,
    floors: Mapping[str, Mapping[str, float]] | None = None,
) -> Outcome:
    """Find the node or link that slows the others.

    Args:
        names: nodes of `mesh`, neighbours next to each other.
        inter: the fabric that must carry the traffic; None: RDMA if all nodes have an active port.
        note: called with a line of progress.
        floors: node → measurement → the site's own floor.
    """
    looks = mesh.ask({name: {"do": "look"} for name in names}, START_S)
    outcome = Outcome(Search([]))
    for name, result in looks.items():
        if isinstance(result, GpuprovError):
            outcome.refused[name] = result
        elif why := result.get("refused") or result.get("error"):
            outcome.refused[name] = refusal(str(why))
        elif why := _objection(result):
            outcome.refused[name] = NodeFailed(f"its description of itself is invalid: {why}")
        else:
            outcome.documents[name] = result
    outcome.search = Search([name for name in names if name in outcome.documents])
    wanted = inter or expected_fabric(outcome.documents.values())
    conductor = _Conductor(mesh, outcome, wanted)
    while groups := outcome.search.next():
        size = ", ".join(f"{count} of {nodes}" for nodes, count in _sizes(groups).items())
        note(f"round {outcome.search.rounds}: {size}")
        outcome.search.take(conductor.round(groups))
    outcome.paths |= _below(outcome.rounds, floors or {})
    return outcome


def _objection(document: Mapping[str, Any]) -> str | None:
    """Return the reason why a node's description of itself cannot be used; None if it can be."""
    gpus = document.get("gpus")
    if not isinstance(gpus, list) or not 0 < len(gpus) <= GPUS:
        return f"gpus is not a list of 1 to {GPUS} numbers"
    if not all(type(index) is int and 0 <= index < INDICES for index in gpus):
        return f"gpus has an index that is not a number from 0 to {INDICES - 1}"
    links, ports = document.get("nvlinks", 0), document.get("rdma", [])
    if type(links) is not int or not 0 <= links < INDICES:
        return f"nvlinks is not a number from 0 to {INDICES - 1}"
    if not isinstance(ports, list) or len(ports) > PORTS:
        return f"rdma is not a list of at most {PORTS} ports"
    return None


def _below(
    rounds: list[list[dict[str, Any]]], floors: Mapping[str, Mapping[str, float]]
) -> dict[Finding, tuple[str, ...]]:
    """Return finding → nodes, for groups whose least rate in any round is below the highest of the site's
    floors for their nodes.
    """
    least: dict[tuple[str, str, tuple[str, ...]], float] = {}
    for group in (group for groups in rounds for group in groups):
        for name, key, what in _FLOORED:
            if group[key] is not None:
                place = (name, what, tuple(group["nodes"]))
                least[place] = min(group[key], least.get(place, group[key]))
    found = {}
    for (name, what, nodes), value in least.items():
        limit = max((floors[node][name] for node in nodes if name in floors.get(node, {})), default=0.0)
        if value < limit:
            text = f"{what} {fold(nodes)}: {value:.1f} GB/s; at least {limit:g} is expected (the site's own)"
            found[Finding("bad", f"{name}.slow", text)] = nodes
    return found


_FLOORED = (
    ("between_nodes", "slowest", "from node to node of"),
    ("across_nodes", "all_reduce", "all-reduce of"),
)


def expected_fabric(documents: Any) -> Inter | None:
    """Return InfiniBand or RoCE if every node has an active port of it (traffic must not use sockets then),
    or None.
    """
    kinds = []
    for result in documents:
        layers = {str(port.get("layer")) for port in rows(result, "rdma") if port.get("active") is True}
        kinds.append("ib" if "InfiniBand" in layers else "roce" if "Ethernet" in layers else None)
    if not kinds or None in kinds:
        return None
    return "ib" if set(kinds) == {"ib"} else "roce" if set(kinds) == {"roce"} else None


def _sizes(groups: list[Group]) -> dict[int, int]:
    """Return number of nodes in a group → number of such groups."""
    sizes: dict[int, int] = {}
    for group in groups:
        sizes[len(group.nodes)] = sizes.get(len(group.nodes), 0) + 1
    return sizes


class _Conductor:
    """Runner of rounds."""

    def __init__(self, mesh: Mesh, outcome: Outcome, inter: Inter | None) -> None:
        self._mesh, self._outcome, self._inter = mesh, outcome, inter
        self._bytes = FIRST_BYTES

    def round(self, groups: list[Group]) -> dict[str, Heard]:
        """Make the groups' communicators, measure, and return node → its report; a group whose first node
        makes no id is not measured.
        """
        ids = self._mesh.ask({group.nodes[0]: {"do": "id"} for group in groups}, START_S)
        orders: dict[str, Mapping[str, Any]] = {}
        heard: dict[str, Heard] = {}
        for group in groups:
            result = ids[group.nodes[0]]
            if (failure := failed(result)) is not None:
                heard |= {node: Heard(error=f"{group.nodes[0]} made no id") for node in group.nodes}
                heard[group.nodes[0]] = Heard(lost=str(failure))
            else:
                orders |= self._orders(group, str(part(result).get("value", "")))
        answers = self._mesh.ask(orders, ROUND_S)
        for group in groups:
            if group.nodes[0] in orders:
                heard |= {node: self._heard(answers[node], group, node) for node in group.nodes}
        self._outcome.rounds.append([_summary(group, heard) for group in groups])
        rates = [rate for each in heard.values() for rate in each.rates.values()]
        if rates:
            self._bytes = (
                int(min(max(median(rates) * 1e9 * SHORT_S / TURNS, MIB), 256 * MIB)) // 65536 * 65536
            )
        self._paths(groups, answers)
        return heard

    def _orders(self, group: Group, made: str) -> dict[str, Mapping[str, Any]]:
        """Return node → order to join the group's communicator with the id `made`, exchange and reduce."""
        members, first = [], 0
        for node in group.nodes:
            gpus = self._outcome.documents[node]["gpus"]
            members.append([first, gpus])
            first += len(gpus)
        steps = tournament(len(group.nodes)) if group.exchange else []
        result = {"id": made, "members": members, "bytes": self._bytes, "turns": TURNS}
        result |= {"reduce": [REDUCED_BYTES, REDUCED_TURNS], "log": len(group.nodes) <= FEW}
        return {
            node: {"do": "join", "with": {**result, "me": place, "steps": _of(place, steps)}}
            for place, node in enumerate(group.nodes)
        }

    def _heard(self, result: Result, group: Group, node: str) -> Heard:
        """Return a node's answer as a report; wrong sums of the all-reduce without a corrupted exchange are
        an error of the group. What it states about an exchange with itself is ignored.
        """
        if isinstance(result, GpuprovError):
            return Heard(lost=str(result))
        if "error" in result:
            step, peer = number(result.get("step")), _peer(result, group, node)
            stuck = (int(step), peer) if step is not None and step >= 0 and peer is not None else None
            return Heard(error=str(result["error"]), stuck=stuck)
        rates, times, wrong = {}, {}, set()
        for row in rows(result, "value", "exchange"):
            if (peer := _peer(row, group, node)) is None:
                continue
            if (rate := number(row.get("value"))) is not None:
                rates[peer] = rate
            if (time := number(row.get("us"))) is not None:
                times[peer] = time
            if row.get("wrong"):
                wrong.add(peer)
        reduced = part(result, "value", "reduced")
        value = None if reduced.get("wrong") else number(reduced.get("value"))
        if reduced.get("wrong") and not wrong:
            return Heard(rates=rates, times=times, error="all-reduce gives wrong sums")
        return Heard(rates=rates, times=times, wrong=frozenset(wrong), reduced=value)

    def _paths(self, groups: list[Group], answers: Mapping[str, Result]) -> None:
        """Add findings from NCCL's own logs about the paths between these nodes; skip groups of more than
        `FEW` nodes, or with a missing log.
        """
        for group in groups:
            logs = [str(part(answers.get(node), "value").get("log", "")) for node in group.nodes]
            if len(group.nodes) > FEW or not all(logs):
                continue
            links = [number(self._outcome.documents[node].get("nvlinks")) or 0 for node in group.nodes]
            several = all(len(self._outcome.documents[node]["gpus"]) > 1 for node in group.nodes)
            expected = ExpectedPaths("nvlink" if several and min(links) > 0 else None, self._inter)
            named = (_HOST.sub(f"{node}:", log) for node, log in zip(group.nodes, logs, strict=True))
            for found in judge_log(read_log(io.StringIO(log) for log in named), expected):
                if found.rule in _OF_PATHS:
                    judged = Finding(found.level, f"nccl.{found.rule}", found.text)
                    self._outcome.paths.setdefault(judged, group.nodes)


_OF_PATHS = {"intra.transport", "inter.transport", "inter.gdrdma", "interface.local", "version.mixed"}
_HOST = re.compile(r"(?m)^[^\s:]+:(?=\d+:\d+ \[)")
"""Host name at the start of a line of NCCL's log; replaced by the inventory's name, as host names may repeat.
"""


def _peer(row: Mapping[str, Any], group: Group, node: str) -> str | None:
    """Return the other node of its group that a node's row names; None if it names none."""
    place = number(row.get("member"))
    if place is None or not 0 <= place < len(group.nodes):
        return None
    peer = group.nodes[int(place)]
    return None if peer == node else peer


def _of(place: int, steps: list[list[tuple[int, int]]]) -> list[list[int]]:
    """Return the steps of one member as rows of step number and pair."""
    return [[step, *pair] for step, pairs in enumerate(steps) for pair in pairs if place in pair]


def _summary(group: Group, heard: Mapping[str, Heard]) -> dict[str, Any]:
    """Return a group's rates in GB/s, the median time of small messages in µs and its errors as plain data;
    None for a value that was not measured.
    """
    result = [heard[node] for node in group.nodes]
    rates = [rate for each in result for rate in each.rates.values()]
    times = [time for each in result for time in each.times.values()]
    reduced = [each.reduced for each in result if each.reduced is not None]
    return {
        "nodes": list(group.nodes),
        "all_reduce": min(reduced, default=None),
        "slowest": min(rates, default=None),
        "middle": median(rates) if rates else None,
        "us": median(times) if times else None,
        "failed": {
            node: each.lost or each.error
            for node, each in zip(group.nodes, result, strict=True)
            if each.lost or each.error
        },
    }

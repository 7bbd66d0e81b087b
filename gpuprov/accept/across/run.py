"""Execution of rounds on nodes: make communicators, measure, and report to the search."""

from __future__ import annotations

import io
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from statistics import median
from typing import Any

from gpuprov.accept.across.evidence import Heard, centres
from gpuprov.accept.across.fabric import expected_fabric, missing_port
from gpuprov.accept.across.meeting import INTERFACES, Address, Meeting, interfaces_of
from gpuprov.accept.across.mesh import BEYOND_S, Mesh, Result, failed
from gpuprov.accept.across.rounds import Group, tournament
from gpuprov.accept.across.search import AFTER, FEW, MOST, Search
from gpuprov.accept.across.verdicts import Verdict
from gpuprov.accept.judge import Acceptance, refusal
from gpuprov.accept.node.nccl import LOG_LIMIT
from gpuprov.accept.rates import GPUS, number, part, rows
from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov.finding import Finding, shortened
from gpuprov.model.nodeset import fold
from gpuprov.nccl.log import read_log
from gpuprov.nccl.verdict import ExpectedPaths, Inter, judge_log, mixed_versions
from gpuprov.ssh.contained import contained

MIB = 2**20
START_S, ROUND_S = 90.0, 120.0
"""Time limits in seconds for the first access to a node's GPUs, and for a round."""
LONGEST_S = START_S + BEYOND_S + (MOST + AFTER) * (START_S + ROUND_S + 2 * BEYOND_S)
"""Longest search in seconds, if a node answers each order just in time: the first access, then an id and a
measurement in each round. A program that waits for orders ends itself after it, not before: the other nodes
would be lost.
"""
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
        paths: findings about NCCL's paths and rates below floors, each once, with the nodes at fault.
        documents: node → its description of itself.
        rounds: for each round, the groups with the GB/s of their all-reduce and of their slowest exchange.
        reports: the groups of all rounds, each with its nodes' reports.
    """

    search: Search
    refused: dict[str, GpuprovError] = field(default_factory=dict)
    paths: dict[Finding, tuple[str, ...]] = field(default_factory=dict)
    documents: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    rounds: list[list[dict[str, Any]]] = field(default_factory=list)
    reports: list[Mapping[str, Heard]] = field(default_factory=list)

    def blame(self, found: Finding, nodes: Iterable[str]) -> None:
        """Add nodes to those of a finding."""
        self.paths[found] = tuple(dict.fromkeys((*self.paths.get(found, ()), *nodes)))

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """Return the verdicts of the search after its end; they are computed once."""
        return self.search.verdicts()

    def judged(self) -> list[Acceptance]:
        """Return every node with its findings, also refused ones; a finding about a link counts for both
        ends, one without nodes for all.
        """
        found: dict[str, list[Finding]] = {name: [] for name in (*self.search.nodes, *self.refused)}
        for verdict in self.verdicts:
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
    known: Mapping[str, Collection[Address]] | None = None,
) -> Outcome:
    """Find the node or link that slows the others.

    A node that cannot be examined, or refuses the load, is in `refused` of the result and takes no part.

    Args:
        names: nodes of `mesh`, neighbours next to each other.
        inter: the fabric that must carry the traffic; None: see `expected_fabric`.
        note: called with a line of progress.
        floors: node → measurement → the site's own floor.
        known: node → addresses to which the controller connects, see `meeting.known_addresses`.
    """
    looks = mesh.ask({name: {"do": "look"} for name in names}, START_S)
    outcome = Outcome(Search([]))
    for name, result in looks.items():
        description = contained(name, partial(_description, result))
        if isinstance(description, GpuprovError):
            outcome.refused[name] = description
        else:
            outcome.documents[name] = description
    outcome.search = Search([name for name in names if name in outcome.documents])
    wanted, without = (inter, []) if inter else expected_fabric(outcome.documents)
    for name in without:
        outcome.blame(missing_port(name, wanted, len(outcome.documents) - len(without)), [name])
    stated = {name: interfaces_of(document) for name, document in outcome.documents.items()}
    conductor = _Conductor(mesh, outcome, wanted, Meeting(known or {}, stated), without)
    while groups := outcome.search.next():
        size = ", ".join(f"{count} of {nodes}" for nodes, count in _sizes(groups).items())
        note(f"round {outcome.search.rounds}: {size}")
        outcome.search.take(conductor.round(groups))
    for found, nodes in _below(outcome.reports, floors or {}):
        outcome.blame(found, nodes)
    return outcome


def _description(result: Result) -> Mapping[str, Any]:
    """Return a node's description of itself.

    Raises:
        GpuprovError: the node gives no description, refuses the load, or its description cannot be used.
    """
    if isinstance(result, GpuprovError):
        raise result
    if why := result.get("refused") or result.get("error"):
        raise refusal(shortened(str(why)))
    if why := _objection(result):
        raise NodeFailed(f"its description of itself is invalid: {why}")
    return result


def _objection(document: Mapping[str, Any]) -> str | None:
    """Return the reason why a node's description of itself cannot be used, by form and size of its lists;
    None if it can be.
    """
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
    addresses = document.get("addresses", [])
    if not isinstance(addresses, list) or len(addresses) > INTERFACES:
        return f"addresses is not a list of at most {INTERFACES} addresses"
    return None


def _below(
    reports: Iterable[Mapping[str, Heard]], floors: Mapping[str, Mapping[str, float]]
) -> Iterator[tuple[Finding, list[str]]]:
    """Yield finding and nodes at fault, for groups with a rate in any round below the highest of the site's
    floors for their nodes.

    Args:
        reports: the groups of all rounds, each with its nodes' reports.
    """
    low: dict[tuple[str, str, tuple[str, ...], float], dict[tuple[str, ...], float]] = defaultdict(dict)
    for heard in reports:
        for name, what, values in _floored(heard):
            limit = max((floors[node][name] for node in heard if name in floors.get(node, {})), default=0.0)
            found = low[name, what, tuple(heard), limit]
            for place, value in values.items():
                if value < limit:
                    found[place] = min(value, found.get(place, value))
    for (name, what, nodes, limit), found in low.items():
        if found:
            text = f"{what} {fold(nodes)}: {min(found.values()):.1f} GB/s"
            text += f"; at least {limit:g} is expected (the site's own)"
            yield Finding("bad", f"{name}.slow", text), _at_fault(found, nodes)


def _floored(heard: Mapping[str, Heard]) -> Iterator[tuple[str, str, Mapping[tuple[str, ...], float]]]:
    """Yield the measurements of a group that can have a floor: name, text, and rates in GB/s by sender and
    receiver, or by the node that reports it. Of an all-reduce each has the median, as for `Search`.
    """
    rates: dict[tuple[str, ...], float] = {
        (peer, node): rate for node, each in heard.items() for peer, rate in each.rates.items()
    }
    yield "between_nodes", "from node to node of", rates
    reduced = {(node,): each.reduced for node, each in heard.items() if each.reduced is not None}
    yield "across_nodes", "all-reduce of", dict.fromkeys(reduced, median(reduced.values() or [0.0]))


def _at_fault(low: Collection[tuple[str, ...]], nodes: Sequence[str]) -> list[str]:
    """Return the nodes of a group to which rates that are too low are attributed: those that send to, or
    receive from, more than half of the others so slowly, those of `centres`, and both ends of other links.
    """
    times = Counter((node, end) for place in low for end, node in enumerate(place))
    mostly = {node for (node, _), count in times.items() if 2 * count > len(nodes) - 1}
    links = {frozenset(place) for place in low if not mostly & set(place)}
    mostly.update(centres(links, dict.fromkeys(links, ())))
    blamed = mostly.union(*(place for place in low if not mostly & set(place)))
    return [node for node in nodes if node in blamed]


def _sizes(groups: list[Group]) -> dict[int, int]:
    """Return number of nodes in a group → number of such groups."""
    sizes: dict[int, int] = {}
    for group in groups:
        sizes[len(group.nodes)] = sizes.get(len(group.nodes), 0) + 1
    return sizes


class _Conductor:
    """Runner of rounds."""

    def __init__(
        self,
        mesh: Mesh,
        outcome: Outcome,
        inter: Inter | None,
        meeting: Meeting,
        without: Collection[str],
    ) -> None:
        self._mesh, self._outcome, self._meeting = mesh, outcome, meeting
        self._inter, self._without = inter, frozenset(without)
        self._bytes = FIRST_BYTES

    def round(self, groups: list[Group]) -> dict[str, Heard]:
        """Make the groups' communicators, measure, and return node → its report; a group whose first node
        makes no id is not measured, and its nodes get an error.

        The result is also added to the outcome, with findings of NCCL's logs, and sets the size of the next
        round's messages.
        """
        ids = self._mesh.ask({group.nodes[0]: {"do": "id"} for group in groups}, START_S)
        orders: dict[str, Mapping[str, Any]] = {}
        heard: dict[str, Heard] = {}
        for group in groups:
            made = contained(group.nodes[0], partial(self._id, group.nodes[0], ids))
            if isinstance(made, GpuprovError):
                heard |= {node: Heard(error=f"{group.nodes[0]} made no id") for node in group.nodes}
                heard[group.nodes[0]] = Heard(lost=shortened(str(made)))
            else:
                orders |= self._orders(group, made)
        answers = self._mesh.ask(orders, ROUND_S)
        for group in groups:
            if group.nodes[0] in orders:
                heard |= {node: _heard(answers[node], group, node) for node in group.nodes}
        self._outcome.rounds.append([_summary(group, heard) for group in groups])
        self._outcome.reports += [{node: heard[node] for node in group.nodes} for group in groups]
        rates = [rate for each in heard.values() for rate in each.rates.values()]
        if rates:
            self._bytes = (
                int(min(max(median(rates) * 1e9 * SHORT_S / TURNS, MIB), 256 * MIB)) // 65536 * 65536
            )
        self._paths(groups, answers)
        return heard

    def _id(self, node: str, results: Mapping[str, Result]) -> str:
        """Return the id of a communicator that a node made.

        Raises:
            GpuprovError: the node made no id, or its answer has none that other nodes may receive.
        """
        if (failure := failed(results[node])) is not None:
            raise failure
        return self._meeting.check(node, part(results[node]).get("value"))

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

    def _paths(self, groups: list[Group], answers: Mapping[str, Result]) -> None:
        """Add findings from NCCL's own logs about the paths between these nodes; skip groups of more than
        `FEW` nodes, or in which a node did not measure.
        """
        for group in groups:
            said = {node: part(answers.get(node), "value") for node in group.nodes}
            if len(group.nodes) <= FEW and all(said.values()):
                logs = {node: str(value.get("log", ""))[:LOG_LIMIT] for node, value in said.items()}
                self._judge_paths({node: _HOST.sub(f"{node}:", log) for node, log in logs.items()})

    def _judge_paths(self, logs: Mapping[str, str]) -> None:
        """Add the findings from the logs of a group's nodes. What a log shows of its node, such as several
        versions, is judged for that node; only what several logs show together counts for all. Sockets
        with a node that has no port of the fabric are that node's fault, which has its finding.
        """
        excused = bool(self._without & logs.keys())
        ranks = [node for node in logs for _ in self._outcome.documents[node]["gpus"]]
        versions: dict[str, str | None] = {}
        for node, text in logs.items():
            version = contained(
                node, partial(self._judge_node, node, text, ranks, None if excused else self._inter)
            )
            if isinstance(version, GpuprovError):
                self._outcome.blame(Finding("bad", "nccl.log.unread", f"NCCL's log: {version}"), [node])
            else:
                versions[node] = version
        stated = {node: version for node, version in versions.items() if version is not None}
        self._blame(mixed_versions(stated.values()), {"version.mixed"}, stated)
        if self._inter is None and not excused:
            whole = read_log(io.StringIO(logs[node]) for node in versions)
            self._blame(judge_log(whole), {"inter.transport"}, versions)

    def _judge_node(self, node: str, text: str, ranks: Sequence[str], inter: Inter | None) -> str | None:
        """Add the findings from one node's log and return its version of NCCL; None if it has not one.

        Args:
            ranks: the node of each rank of the group.
            inter: the fabric that must carry its traffic; None for any.
        """
        log = read_log([io.StringIO(text)])
        log.communicators.place(ranks)
        document = self._outcome.documents[node]
        linked = len(document["gpus"]) > 1 and document.get("nvlinks", 0) > 0
        expected = ExpectedPaths("nvlink" if linked else None, inter)
        rules = _OF_NODE | ({"inter.transport"} if inter else set())
        self._blame(judge_log(log, expected), rules, [node])
        versions = {version for version, _cuda in log.versions}
        return versions.pop() if len(versions) == 1 else None

    def _blame(self, findings: Iterable[Finding], rules: Collection[str], nodes: Iterable[str]) -> None:
        """Add nodes to the findings of these rules."""
        for found in findings:
            if found.rule in rules:
                self._outcome.blame(Finding(found.level, f"nccl.{found.rule}", found.text), nodes)


# NCCL writes its log to /tmp, which a user can fill: without it the paths are not known.
_OF_NODE = {"log.empty", "intra.transport", "inter.gdrdma", "interface.local", "version.mixed"}
_HOST = re.compile(r"(?m)^[^\s:]+:(?=\d+:\d+ \[)")
"""Host name at the start of a line of NCCL's log; replaced by the inventory's name, as host names may repeat.
"""


def _heard(result: Result, group: Group, node: str) -> Heard:
    """Return a node's answer as a report; a node whose answer cannot be read is lost."""
    heard = contained(node, lambda: _report(result, group, node))
    return Heard(lost=shortened(str(heard))) if isinstance(heard, GpuprovError) else heard


def _report(result: Result, group: Group, node: str) -> Heard:
    """Return a node's answer as a report; wrong sums of the all-reduce without a corrupted exchange are
    an error of the group. What it states about an exchange with itself, or without one, is ignored.
    """
    if isinstance(result, GpuprovError):
        return Heard(lost=shortened(str(result)))
    if "error" in result:
        step, peer = number(result.get("step")), _peer(result, group, node) if group.exchange else None
        stuck = (int(step), peer) if step is not None and step >= 0 and peer is not None else None
        return Heard(error=shortened(str(result["error"])), stuck=stuck)
    rates, times, wrong = {}, {}, set()
    for row in rows(result, "value", "exchange") if group.exchange else ():
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
    """Return a group's `nodes`, its `all_reduce`, `slowest` and `middle` rate in GB/s, the median time of
    small messages in `us`, and `failed` (node → error); None for a value that was not measured.
    """
    result = [heard[node] for node in group.nodes]
    rates = [rate for each in result for rate in each.rates.values()]
    times = [time for each in result for time in each.times.values()]
    reduced = [each.reduced for each in result if each.reduced is not None]
    return {
        "nodes": list(group.nodes),
        "all_reduce": median(reduced) if reduced else None,
        "slowest": min(rates, default=None),
        "middle": median(rates) if rates else None,
        "us": median(times) if times else None,
        "failed": {
            node: each.lost or each.error
            for node, each in zip(group.nodes, result, strict=True)
            if each.lost or each.error
        },
    }

"""Results of accept between nodes, as lines for a terminal and as a document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from gpuprov.model.nodeset import fold
from gpuprov.untrusted import on_one_line

if TYPE_CHECKING:
    from gpuprov.accept.across.run import Outcome

SCHEMA = "gpuprov.accept.across/1"
KEPT = "across.json"
"""The file in a run's folder, written by `gpuprov accept --across`."""
_DRAWN = (
    ("between_nodes", "slowest", "GB/s"),
    ("across_nodes", "all_reduce", "GB/s"),
    ("message", "us", "µs"),
)


def across_lines(outcome: Outcome) -> Iterator[str]:
    """Yield refused nodes, the findings with faults first, the verdict if there are several nodes, then a
    line per round.

    Rejected means that any finding is bad.
    """
    for node, error in outcome.refused.items():
        yield f"{node}: {on_one_line(str(error))}"
    found = [(verdict.level, verdict.finding) for verdict in outcome.verdicts]
    found += [(path.level, path) for path in outcome.paths]
    for level, finding in sorted(found, key=lambda pair: pair[0] != "bad"):
        yield f"{level:<5} {on_one_line(finding.text)}  [{finding.rule}]"
    nodes = outcome.search.nodes
    bad = any(level == "bad" for level, _ in found)
    if len(nodes) > 1:
        yield f"{fold(nodes)}: {'rejected' if bad else 'accepted'} after {outcome.search.rounds} rounds"
    for number, groups in enumerate(outcome.rounds, 1):
        yield f"  round {number}: {_reached(groups)}"


def _reached(groups: Sequence[Mapping[str, Any]]) -> str:
    """Return a round as text: its groups, the median of each measurement that was made, and how many groups
    did not end.
    """
    sizes = sorted({len(group["nodes"]) for group in groups})
    result = (
        f"{len(groups)} groups of {' and '.join(map(str, sizes))}"
        if len(groups) > 1
        else f"{sizes[0]} together"
    )
    for key, words, unit in (
        ("middle", "from node to node", "GB/s"),
        ("us", "small message", "µs"),
        ("all_reduce", "all-reduce", "GB/s"),
    ):
        values = [group[key] for group in groups if group[key] is not None]
        if values:
            result += f"; {words} {median(values):.1f} {unit}"
    broken = sum(bool(group["failed"]) for group in groups)
    return result + (f"; {broken} did not end" if broken else "")


def across_document(outcome: Outcome) -> dict[str, Any]:
    """Return the document of the schema `gpuprov.accept.across/1`."""
    return {
        "schema": SCHEMA,
        "nodes": [
            {
                "node": each.node,
                "verdict": each.verdict,
                "error": None if each.failure is None else str(each.failure),
                "findings": [found.as_dict() for found in each.findings],
                "measured": dict(outcome.documents.get(each.node, {})),
            }
            for each in outcome.judged()
        ],
        "verdicts": [
            {
                "level": each.level,
                "rule": each.rule,
                "nodes": list(each.nodes),
                "others": list(each.others),
                "round": each.round,
                "text": each.text,
            }
            for each in outcome.verdicts
        ],
        "rounds": outcome.rounds,
    }


def nodes_with_rates(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the nodes of a stored document, each with the rates of its groups in the form of plots.

    A rate of a group is given to each of its nodes, as a rate of all GPUs without peak and floor.
    """
    nodes = [{**node, "rates": []} for node in document["nodes"]]
    by_name = {node["node"]: node for node in nodes}
    for group in (group for groups in document["rounds"] for group in groups):
        for measure, key, unit in _DRAWN:
            if group[key] is None:
                continue
            rate = {"measure": measure, "gpu": "all", "value": group[key], "unit": unit}
            for name in group["nodes"]:
                by_name[name]["rates"].append({**rate, "peak": None, "floor": None})
    return nodes

"""The fabric that must carry the traffic between nodes, from the RDMA ports that they state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuprov.accept.rates import rows
from gpuprov.finding import Finding
from gpuprov.nccl.verdict import Inter

NAMES: dict[Inter | None, str] = {"ib": "InfiniBand", "roce": "RoCE"}
"""Names of the fabrics with RDMA ports, in the order in which they are expected."""


def expected_fabric(documents: Mapping[str, Mapping[str, Any]]) -> tuple[Inter | None, list[str]]:
    """Return InfiniBand or RoCE if more than half of the nodes have an active port of it, and the nodes that
    have none: traffic between the others must not use sockets. Else return None and no nodes.

    Args:
        documents: node → its description of itself.
    """
    kinds: dict[str, Inter | None] = {}
    for node, document in documents.items():
        layers = {str(port.get("layer")) for port in rows(document, "rdma") if port.get("active") is True}
        kinds[node] = "ib" if "InfiniBand" in layers else "roce" if "Ethernet" in layers else None
    for kind in NAMES:
        without = [node for node, each in kinds.items() if each != kind]
        if 2 * len(without) < len(kinds):
            return kind, without
    return None, []


def missing_port(node: str, fabric: Inter | None, others: int) -> Finding:
    """Return the finding about a node without an active port of a fabric that `others` other nodes have."""
    text = f"{node}: no active {NAMES[fabric]} port; {others} of the other nodes have one"
    return Finding("bad", "across.fabric", f"{text}; run `gpuprov doctor` on it, or state --fabric")

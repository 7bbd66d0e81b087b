"""Variables and expectations of a node's metrics for Prometheus."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from gpuprov.model.lock import LockedGroup
from gpuprov.roles.components import closure, unwanted
from gpuprov.roles.expectation import Expectation
from gpuprov.roles.overruling import BY_HAND, CONDITION, OTHER_FILE, OTHER_PROGRAM, fails, mends

TEXTFILE = "gpuprov.prom"
EXPORTER_UNIT = "prometheus-node-exporter.service"
DCGM_UNIT = "nvidia-dcgm.service"
UNITS = {"monitoring.exporter": EXPORTER_UNIT, "monitoring.dcgm": DCGM_UNIT}

OVERRULED = (
    *mends("monitoring", "monitoring.textfile", "a manual edit"),
    *mends("node_exporter", "monitoring.exporter", BY_HAND),
    *fails("node_exporter", "monitoring.exporter", OTHER_FILE, OTHER_PROGRAM, CONDITION),
    *mends("dcgm", "monitoring.dcgm", BY_HAND),
    *fails("dcgm", "monitoring.dcgm", OTHER_FILE, OTHER_PROGRAM, CONDITION),
)


def expectations(group: LockedGroup, others: Iterable[Expectation]) -> list[Expectation]:
    """Return the expected exporters, and the checksum of the textfile with the other expectations.

    Only the locked exporters, and the textfile only if its folder is stated.

    Args:
        others: expectations of all other roles.
    """
    role = "monitoring"
    exporter, dcgm, path = group.components.node_exporter, group.components.dcgm, textfile_path(group)
    found = []
    if exporter is not None:
        found.append(Expectation("monitoring.packages", exporter.closure, role))
        found.append(Expectation("monitoring.exporter", "enabled", role))
    if dcgm is not None:
        found.append(Expectation("monitoring.dcgm_packages", dcgm.closure, role))
        found.append(Expectation("monitoring.dcgm", "enabled", role))
    if path is not None:
        digest = hashlib.sha256(textfile(group, others).encode()).hexdigest()
        found.append(Expectation("monitoring.textfile", digest, role, subject=path))
    return found


def variables(group: LockedGroup, others: Iterable[Expectation]) -> dict[str, Any]:
    """Return packages, unwanted packages, and path and text of the textfile for Prometheus; None and "" if it
    is not stated.

    Args:
        others: expectations of all other roles.
    """
    components, path = group.components, textfile_path(group)
    return {
        "monitoring_packages": closure(components.node_exporter),
        "monitoring_dcgm_packages": closure(components.dcgm),
        "monitoring_unwanted": unwanted(group, "node_exporter"),
        "monitoring_dcgm_unwanted": unwanted(group, "dcgm"),
        "monitoring_textfile": path,
        "monitoring_text": textfile(group, others) if path else "",
    }


def textfile_path(group: LockedGroup) -> str | None:
    """Return the path of the textfile on the node, or None if it is not stated."""
    folder = (group.setting("monitoring") or {}).get("textfile")
    return f"{folder.rstrip('/')}/{TEXTFILE}" if folder else None


def textfile(group: LockedGroup, stated: Iterable[Expectation]) -> str:
    """Return a node's expectations, and its number of GPUs as `gpuprov_expected_gpus`, in Prometheus' text
    format.

        gpuprov_expected_info{check="driver.loaded",subject="",value="535.309.01"} 1.0

    A mapping or a list gives a line per item, so that a query can join each with an exporter's value.
    """
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    registry = CollectorRegistry()
    expected = Gauge(
        "gpuprov_expected_info",
        "What the lock expects of this node",
        ["check", "subject", "value"],
        registry=registry,
    )
    for each in stated:
        for subject, value in _items(each.expected):
            expected.labels(each.check, subject, value).set(1)
    gpus = Gauge("gpuprov_expected_gpus", "GPUs that the lock expects in this node", registry=registry)
    gpus.set(group.hardware.gpu_count)
    return str(generate_latest(registry).decode())


def _items(expected: Any) -> Iterator[tuple[str, str]]:
    """Yield pairs of key and value of a mapping; of a list or a single value the key is empty."""
    if isinstance(expected, dict):
        yield from ((str(key), _text(value)) for key, value in expected.items())
    elif isinstance(expected, list | tuple):
        yield from (("", _text(item)) for item in expected)
    else:
        yield "", _text(expected)


def _text(value: Any) -> str:
    """Return a value as text, booleans in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)

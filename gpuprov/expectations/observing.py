"""Profilers, and what a node tells Prometheus of itself."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from gpuprov.expectations.statement import Expectation
from gpuprov.model.lock import LockedGroup

TEXTFILE = "gpuprov.prom"
EXPORTER_UNIT = "prometheus-node-exporter.service"
DCGM_UNIT = "nvidia-dcgm.service"


def profiling(group: LockedGroup) -> list[Expectation]:
    """Profilers of the lock, and whether everybody may read a GPU's counters."""
    role = "profiling_tools"
    tools, counters = group.components.profiling_tools, group.setting("profiling_counters")
    found = [Expectation("profiling.packages", tools.closure, role)] if tools else []
    if counters is not None:
        everybody = "everybody" if counters else "root"
        found.append(Expectation("profiling.counters", everybody, role))
        found.append(Expectation("profiling.counters_now", everybody, None, reboot=True, needs_driver=True))
    return found


def monitoring(group: LockedGroup, stated: Iterable[Expectation]) -> list[Expectation]:
    """The exporters, and the file that says what else is expected of the node.

    Args:
        stated: everything else that the lock says.
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
        digest = hashlib.sha256(textfile(group, stated).encode()).hexdigest()
        found.append(Expectation("monitoring.textfile", digest, role, subject=path))
    return found


def textfile_path(group: LockedGroup) -> str | None:
    """Where the file lies on the node; None where none is wanted."""
    folder = (group.setting("monitoring") or {}).get("textfile")
    return f"{folder.rstrip('/')}/{TEXTFILE}" if folder else None


def textfile(group: LockedGroup, stated: Iterable[Expectation]) -> str:
    """What is expected of a node, in Prometheus' text format.

        gpuprov_expected_info{check="driver.loaded",subject="",value="535.309.01"} 1.0

    A mapping or a list gives a line an item, so that a query can join each with what an exporter sees.
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
    if isinstance(expected, dict):
        yield from ((str(key), _text(value)) for key, value in expected.items())
    elif isinstance(expected, list | tuple):
        yield from (("", _text(item)) for item in expected)
    else:
        yield "", _text(expected)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

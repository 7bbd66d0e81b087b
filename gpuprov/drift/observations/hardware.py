"""Readings of what a node is made of."""

from __future__ import annotations

from typing import Any

from gpuprov.drift.observations import server
from gpuprov.drift.observations.registry import observes
from gpuprov.expectations import Expectation
from gpuprov.model.hardware import NicHardware
from gpuprov.probe.facts import Facts


@observes("gpu.nvswitches", "pci")
def _nvswitches(facts: Facts, expectation: Expectation) -> Any:
    return at_least(expectation.expected, server.nvswitches(facts))


@observes("hardware.cpu_cores", "cpu")
def _cores(facts: Facts, expectation: Expectation) -> Any:
    return at_least(expectation.expected, server.cores(facts))


@observes("hardware.memory_mib", "memory")
def _memory(facts: Facts, expectation: Expectation) -> Any:
    return at_least(expectation.expected, facts.memory.total_mib)


@observes("hardware.nvme", "pci", "disks")
def _nvme(facts: Facts, expectation: Expectation) -> Any:
    seen = {"count": server.nvme_drives(facts), "total_tb": server.nvme_tb(facts)}
    return {
        key: least if seen[key] is None else at_least(least, round(float(seen[key] or 0), 2))
        for key, least in expectation.expected.items()
    }


@observes("hardware.nics", "hcas", "nics", "pci")
def _nics(facts: Facts, expectation: Expectation) -> Any:
    have = server.ports(facts)
    return [
        text if server.fulfilled(wanted, have) else server.instead(wanted, have)
        for text, wanted in ((text, parse_nic(text)) for text in expectation.expected)
    ]


def at_least(least: Any, seen: Any) -> Any:
    """What is expected where there is as much or more, otherwise what there is."""
    return least if seen >= least else seen


def parse_nic(text: str) -> NicHardware:
    """`8 x 400 Gb/s RDMA` again as a record."""
    count, _, speed, _, word = text.split()
    kinds = {word: kind for kind, word in server.WORDS.items()}
    return NicHardware.model_validate({"kind": kinds[word], "speed_gbits": speed, "count": count})

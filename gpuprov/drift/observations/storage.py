"""Readings of scratch file systems and of clients of others."""

from __future__ import annotations

from typing import Any

from gpuprov.drift.observations.registry import observes
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation


@observes("scratch.mounted", "scratch")
def _mounted(facts: Facts, expectation: Expectation) -> Any:
    return {mount: facts.scratch[mount]["filesystem"] for mount in expectation.expected}


@observes("scratch.at_boot", "scratch")
def _at_boot(facts: Facts, expectation: Expectation) -> Any:
    sources = {mount: facts.scratch[mount]["fstab"] for mount in expectation.expected}
    return {
        mount: "by UUID" if (source or "").startswith("UUID=") else source
        for mount, source in sources.items()
    }


@observes("scratch.read_ahead", "scratch")
def _read_ahead(facts: Facts, expectation: Expectation) -> Any:
    return {mount: facts.scratch[mount]["read_ahead_kib"] for mount in expectation.expected}


@observes("storage.clients", "packages")
def _clients(facts: Facts, expectation: Expectation) -> Any:
    return [name for name in expectation.expected if facts.packages.version(name)]

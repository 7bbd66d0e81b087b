"""Observations of containerd and its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuprov.drift.observations.documents import within
from gpuprov.drift.observations.registry import names_who, observes
from gpuprov.drift.observations.units import reads_elsewhere, replaced_by, unit_state
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation
from gpuprov.roles.containerd import CONFIG, CONTAINERD_UNIT, CRI

observes("containerd.unit", "units")(unit_state)
names_who("containerd.unit")(replaced_by)


@names_who("containerd.config")
def _places(facts: Facts, expectation: Expectation) -> Iterator[str | None]:
    """Yield the place that makes containerd read another file, or None."""
    yield reads_elsewhere(facts, CONTAINERD_UNIT, CONFIG)


@observes("containerd.config", "containerd", "units")
def _containerd_config(facts: Facts, expectation: Expectation) -> Any:
    """Return the expected part of the Kubernetes plugin's configuration, {} if containerd reads another file.

    `disabled_plugins` is added if the plugin is disabled.
    """
    if reads_elsewhere(facts, CONTAINERD_UNIT, CONFIG):
        return {}
    said = facts.containerd
    table = next((said.plugins[name] for name in CRI if name in said.plugins), None)
    # Before 1.7 containerd has neither the key nor CDI.
    seen = within({"enable_cdi": False, **table}, expectation.expected) if table else {}
    off = [name for name in said.disabled if name in ("cri", *CRI)]
    return {**seen, "disabled_plugins": off} if off else seen

"""Readings of Docker, containerd, their configuration and the container toolkit."""

from __future__ import annotations

from typing import Any

from gpuprov.drift.observations.registry import observes
from gpuprov.expectations import Expectation
from gpuprov.expectations.containers import CRI, FORERUNNERS
from gpuprov.probe.facts import Facts


@observes("container_toolkit.forerunners", "packages")
def _forerunners(facts: Facts, expectation: Expectation) -> Any:
    return [name for name in FORERUNNERS if facts.packages.version(name)]


@observes("containerd.config", "containerd")
def _containerd_config(facts: Facts, expectation: Expectation) -> Any:
    said = facts.containerd
    table = next((said.plugins[name] for name in CRI if name in said.plugins), None)
    # Before 1.7 there is no such key, and no such way.
    seen = within({"enable_cdi": False, **table}, expectation.expected) if table else {}
    off = [name for name in said.disabled if name in ("cri", *CRI)]
    return {**seen, "disabled_plugins": off} if off else seen


@observes("docker.config", "daemon_json")
def _config(facts: Facts, expectation: Expectation) -> Any:
    return within(facts.daemon_json or {}, expectation.expected)


def within(document: Any, wanted: Any) -> Any:
    """The parts of a document that `wanted` speaks of: a site's own keys and items are its own."""
    if isinstance(document, dict) and isinstance(wanted, dict):
        return {key: within(document[key], value) for key, value in wanted.items() if key in document}
    if isinstance(document, list) and isinstance(wanted, list):
        return [item for item in wanted if item in document]
    return document

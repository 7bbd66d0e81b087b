"""Readings of sshd's effective configuration, and of who listens."""

from __future__ import annotations

from typing import Any

from gpuprov.drift.observations.registry import observes
from gpuprov.probe.facts import Facts
from gpuprov.roles import Expectation

# sshd prints the older of two names for the same thing.
SYNONYMS = {"without-password": "prohibit-password"}


@observes("ssh.options", "sshd")
def _options(facts: Facts, expectation: Expectation) -> Any:
    found = {keyword: " ".join(facts.sshd.get(keyword, ())) or None for keyword in expectation.expected}
    return {keyword: SYNONYMS.get(value or "", value) for keyword, value in found.items()}


@observes("ssh.ports", "listening")
def _ports(facts: Facts, expectation: Expectation) -> Any:
    """Where sshd listens; systemd may listen in its place (ssh.socket)."""
    by_systemd = {port for port in facts.listening.get("systemd", ()) if port in expectation.expected}
    return sorted({*facts.listening.get("sshd", ()), *by_systemd})


@observes("ssh.undone", "undone")
def _undone(facts: Facts, expectation: Expectation) -> Any:
    return facts.undone

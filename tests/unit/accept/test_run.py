"""Documents of nodes under load, as they arrive."""

from __future__ import annotations

from typing import Any

import pytest

from gpuprov.accept import run
from gpuprov.accept.judge import document, judge
from gpuprov.errors import NodeFailed
from gpuprov.model.connection import Connection
from gpuprov.ssh.transport import Target
from gpuprov.untrusted import json_text
from tests.unit.accept.recorded import recorded

WILD: dict[str, Any] = {
    "gpus": [{}],
    "other": {f"k{at}": [0] for at in range(60_000)},
    "text": "<" * 7_000_000,
}
"""An answer within the limits of one answer, 8 MiB and 131,072 values."""


def answering(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any]) -> list[Target]:
    """Let nodes answer with these documents; return their targets."""
    nodes = [Target(name, "127.0.0.1", Connection()) for name in answers]
    monkeypatch.setattr(run, "fan_out", lambda *_, **__: ((node, answers[node.name]) for node in nodes))
    return nodes


def test_a_document_of_measurements_has_a_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit what is kept: the documents of all nodes are judged together, and written as a whole."""
    good = recorded("quick", "h200x4")
    nodes = answering(monkeypatch, {"wild": {**good, **WILD}, "good": good})
    answers = dict(run.measure_there(nodes, "quick"))
    assert isinstance(answers["wild"], NodeFailed)
    assert str(answers["wild"]).endswith("characters of measurements; expected at most 2097152")
    assert answers["good"] == good
    wild, fine = judge(answers)
    assert (wild.verdict, fine.verdict) == ("failed", "accepted")
    assert len(json_text(document([wild]))) < 1000


def test_a_document_of_frameworks_has_a_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = answering(monkeypatch, {"wild": WILD, "good": {"frameworks": {}}})
    answers = dict(run.frameworks_there(nodes, "python3"))
    assert isinstance(answers["wild"], NodeFailed)
    assert answers["good"] == {"frameworks": {}}

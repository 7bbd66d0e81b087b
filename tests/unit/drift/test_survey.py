"""A survey of several nodes: every answer is reported while it runs."""

from __future__ import annotations

from typing import Any

import pytest

from gpuprov.drift import survey as module
from gpuprov.errors import NodeFailed
from gpuprov.model.lock import read_lock
from tests import RECORDED_LOCK


def test_each_answer_is_reported_when_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = read_lock(RECORDED_LOCK)
    [(name, group)] = lock.groups.items()
    hosts = {"gpu01": "10.0.0.1", "gpu02": "10.0.0.2"}
    lock = lock.model_copy(update={"groups": {name: group.model_copy(update={"hosts": hosts})}})
    said: list[str] = []

    def gather(*_: Any, **__: Any) -> Any:
        for host in hosts:
            said.append(host)
            yield host, NodeFailed("no Python")

    monkeypatch.setattr(module, "gather", gather)
    found = module.survey(lock, hosts, answered=lambda: said.append("answered"))
    assert [(node.name, node.status) for node in found] == [("gpu01", "error"), ("gpu02", "error")]
    assert said == ["gpu01", "answered", "gpu02", "answered"]

"""Nodes that are unreachable for some time."""

from __future__ import annotations

from typing import Any

import pytest

from gpuprov.apply.context import Options
from gpuprov.errors import Unreachable
from gpuprov.model.lock import read_lock
from gpuprov.upgrade import remote
from tests import RECORDED_LOCK


@pytest.mark.parametrize(("back_after", "seconds", "asked"), [(1, 60.0, 1), (3, 60.0, 3), (99, -1.0, 1)])
def test_a_cut_line_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, back_after: int, seconds: float, asked: int
) -> None:
    asks: list[int] = []

    def fan_out(nodes: list[Any], *_: Any, **__: Any) -> list[tuple[Any, Unreachable | None]]:
        asks.append(len(nodes))
        return [(node, Unreachable("cut") if len(asks) < back_after else None) for node in nodes]

    monkeypatch.setattr(remote, "fan_out", fan_out)
    monkeypatch.setattr(remote, "AGAIN_S", 0.0)
    lock = read_lock(RECORDED_LOCK)
    remote.await_nodes(lock, lock.hosts(), Options(), seconds)
    assert len(asks) == asked

"""Output of the first script on a new node, with limited numbers of lines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpuprov.bootstrap import run
from gpuprov.bootstrap.run import Goal, NodeResult


def test_a_node_adds_a_limited_number_of_lines_to_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    said = ["changed x", "note y", "hostkey ssh-ed25519 AAAA"] * 10_000
    output = SimpleNamespace(stdout="\n".join([*said, "done"]).encode(), stderr=b"", code=0)
    monkeypatch.setattr(run, "as_root", lambda *_: output)
    target: Any = SimpleNamespace(route=SimpleNamespace(user="root"))
    session: Any = SimpleNamespace(target=target)
    node = NodeResult("gpu01", target)
    run._prepare(node, session, Goal({"gpu01": ("ssh-ed25519 AAAA",)}), None)
    assert (node.changed[0], node.notes[0]) == ("x", "y")
    assert {len(node.changed), len(node.notes), len(node.host_keys)} == {100}

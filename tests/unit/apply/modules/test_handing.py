"""Modules on their way from a node: every piece, in order, and nothing that changed."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpuprov.apply.modules import handing
from gpuprov.apply.modules.build import Build, digest
from gpuprov.errors import NodeFailed
from gpuprov.model.connection import Connection
from gpuprov.ssh.transport import Target

BUILD = Build("535.1", "open", "nvidia-kernel-dkms=535.1-1", "6.1", "x86_64", "gcc")
WAY = Target("a1", "127.0.0.1", Connection())
CONTENT = bytes(range(256)) * 3


class Node:
    """A node that hands out modules; `sent` is what really comes of them."""

    def __init__(self, sent: bytes = CONTENT, size: int = len(CONTENT)) -> None:
        self.sent, self.size, self.acts = sent, size, list[str]()

    def asked(self, session: object, password: object, act: str, *arguments: Any) -> Any:
        self.acts.append(act)
        match act, arguments:
            case "pack", _:
                return {"path": "p", "size": self.size, "sha256": digest(CONTENT)}
            case "piece", ("p", int(offset)):
                return base64.b64encode(self.sent[offset : offset + 300]).decode()
        return None


def fetched(node: Node, monkeypatch: pytest.MonkeyPatch) -> bytes:
    @contextmanager
    def opened(*_: object) -> Iterator[None]:
        yield None

    monkeypatch.setattr(handing, "open_session", opened)
    monkeypatch.setattr(handing, "_asked", node.asked)
    return handing.fetched(WAY, BUILD, None)


def test_pieces_make_the_archive_and_the_node_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    assert fetched(node, monkeypatch) == CONTENT
    assert node.acts == ["pack", "piece", "piece", "piece", "forget"]


@pytest.mark.parametrize("sent", [CONTENT[:-1] + b"x", CONTENT[:500], b""])
def test_what_changed_or_broke_off_is_refused(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    with pytest.raises(NodeFailed, match="changed on the way"):
        fetched(Node(sent), monkeypatch)


def test_more_than_modules_can_be_is_not_even_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(size=handing.SIZE_LIMIT + 1)
    with pytest.raises(NodeFailed, match="expected at most 256"):
        fetched(node, monkeypatch)
    assert node.acts == ["pack"]

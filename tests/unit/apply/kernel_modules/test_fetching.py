"""Transfer of modules from a node: all pieces arrive in order, and changed content is refused."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuprov.apply.kernel_modules import fetching
from gpuprov.apply.kernel_modules.build import Build, digest
from gpuprov.apply.node import built
from gpuprov.errors import NodeFailed
from gpuprov.model.connection import Connection
from gpuprov.probe.node.base import Failed
from gpuprov.ssh.transport import Target

BUILD = Build("535.1", "open", "nvidia-kernel-dkms=535.1-1", "6.1", "x86_64", "gcc", ("a1",))
WAY = Target("a1", "127.0.0.1", Connection())
CONTENT = bytes(range(256)) * 3


class Node:
    """Fake node that offers modules; `sent` is the content that it really sends."""

    def __init__(self, sent: bytes = CONTENT, size: int = len(CONTENT)) -> None:
        self.sent, self.size, self.acts = sent, size, list[str]()
        self.piece = 300

    def asked(self, session: object, password: object, act: str, *arguments: Any) -> Any:
        """Answer a question of the transfer: the archive's size and hash, or a piece of it; None
        to others.
        """
        self.acts.append(act)
        match act, arguments:
            case "pack", _:
                return {"path": "/p", "size": self.size, "sha256": digest(CONTENT)}
            case "piece", ("/p", int(offset)):
                return base64.b64encode(self.sent[offset : offset + self.piece]).decode()
        return None


def fetch(node: Node, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Fetch the module from a fake node, in pieces of 300 bytes."""

    @contextmanager
    def opened(*_: object) -> Iterator[None]:
        yield None

    monkeypatch.setattr(fetching, "open_session", opened)
    monkeypatch.setattr(fetching, "_asked", node.asked)
    monkeypatch.setattr(fetching, "PIECE", 300)
    return fetching.fetch(WAY, BUILD, "a1", None)


def test_pieces_make_the_archive_and_the_node_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    assert fetch(node, monkeypatch) == CONTENT
    assert node.acts == ["pack", "piece", "piece", "piece", "forget"]


def test_what_changed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that an archive with another hash than stated is refused."""
    with pytest.raises(NodeFailed, match="changed on the way"):
        fetch(Node(CONTENT[:-1] + b"x"), monkeypatch)


@pytest.mark.parametrize("sent", [CONTENT[:500], b""])
def test_what_broke_off_is_refused(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """Check that an archive with a missing or short piece is refused."""
    with pytest.raises(NodeFailed, match="a piece of"):
        fetch(Node(sent), monkeypatch)


@pytest.mark.parametrize("size", [1, 299, 301])
def test_pieces_have_the_size_that_the_program_sends(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Refuse pieces of another size: pieces of one byte would keep the connection open for days."""
    node = Node()
    node.piece = size
    with pytest.raises(NodeFailed, match=f"a piece of {size} bytes.*expected 300 bytes"):
        fetch(node, monkeypatch)
    assert node.acts == ["pack", "piece"]


def test_all_pieces_together_have_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, fetching.DEADLINE_S + 1])
    monkeypatch.setattr(fetching.time, "monotonic", lambda: next(clock))
    with pytest.raises(NodeFailed, match="after 900 s"):
        fetch(Node(), monkeypatch)


def test_more_than_modules_can_be_is_not_even_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(size=fetching.PACKED_LIMIT + 1)
    with pytest.raises(NodeFailed, match="expected at most 128"):
        fetch(node, monkeypatch)
    assert node.acts == ["pack"]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "path",
        {},
        {"path": "/p", "size": "9", "sha256": "0" * 64},
        {"path": "/p", "size": True, "sha256": "0" * 64},
        {"path": "/p", "size": -1, "sha256": "0" * 64},
        {"path": "/p", "size": 9, "sha256": "x"},
        {"path": "../p", "size": 9, "sha256": "0" * 64},
        {"path": ["/p"], "size": 9, "sha256": "0" * 64},
    ],
)
def test_an_answer_of_another_shape_is_refused(answer: Any) -> None:
    with pytest.raises(NodeFailed):
        fetching.Archive.of(answer)


@pytest.mark.parametrize(
    ("log", "fits"),
    [
        (None, True),
        ("DKMS make.log for nvidia", True),
        ("compiled by a1", True),
        ("compiled by a2", False),
        ("compiled by a1+a2", False),
        ("compiled on another node", False),
    ],
)
def test_what_another_builder_made_is_not_passed_off_as_ones_own(
    tmp_path: Path, log: str | None, fits: bool
) -> None:
    assert packed_by(tmp_path, "a1", log) == fits


def packed_by(folder: Path, builder: str, log: str | None) -> bool:
    """Return whether the node's program offers a module with this DKMS log as compiled by `builder`."""
    own = folder / "dkms/nvidia/535.1/6.1/x86_64"
    (own / "module").mkdir(parents=True)
    (own / "module/nvidia.ko").write_bytes(b"module")
    if log is not None:
        (own / "log").mkdir()
        (own / "log/make.log").write_text(log + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(built, "TREE", str(folder / "dkms"))
        patch.setattr(built, "PACKED", str(folder / "packed"))
        try:
            return built.pack("6.1", "535.1", "x86_64", builder)["size"] > 0
        except Failed as failed:
            return "dkms remove" not in str(failed)

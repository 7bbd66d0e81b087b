"""Transfer of modules from the node that compiled them: packed there, fetched in pieces, within limits."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpuprov.apply.kernel_modules.build import Build, digest
from gpuprov.apply.kernel_modules.packing import PACKED_LIMIT
from gpuprov.apply.node.built import PIECE
from gpuprov.errors import NodeFailed
from gpuprov.probe.payload import pack
from gpuprov.ssh.transport import ConnectionLimits, Session, Target, open_session
from gpuprov.untrusted import AbsolutePath, absolute_path

PROGRAM = (
    "gpuprov.probe.node.base",
    "gpuprov.probe.node.main",
    "gpuprov.apply.node.built",
)
LIMITS = ConnectionLimits(command_s=120)
DEADLINE_S = 900.0
"""Seconds for all pieces of an archive; 1 Mbit/s suffices for NVIDIA's modules."""
Ask = Callable[..., Any]
"""Function: an act of `gpuprov.apply.node.built` and its arguments → the result."""


@dataclass(frozen=True)
class Archive:
    """Description of an archive of modules that a node packed."""

    path: AbsolutePath
    size: int
    sha256: str

    @classmethod
    def of(cls, answer: object) -> Archive:
        """Return the archive that an answer describes.

        Raises:
            NodeFailed: the answer is invalid, or the archive is larger than `PACKED_LIMIT`.
        """
        stated = answer if isinstance(answer, Mapping) else {}
        size, sha256 = stated.get("size"), stated.get("sha256")
        if type(size) is not int or not isinstance(sha256, str) or not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise NodeFailed("an answer without an archive", expected="its path, size and SHA-256")
        if not 0 < size <= PACKED_LIMIT:
            raise NodeFailed(f"modules of {size >> 20} MB", expected=f"at most {PACKED_LIMIT >> 20}")
        return cls(absolute_path(stated.get("path")), size, sha256)


def fetch(
    way: Target, build: Build, builder: str, password: str | None, about: Mapping[str, Any] | None = None
) -> bytes:
    """Fetch the archive of a build from a builder, compare it with its checksum, and remove it there.

    Args:
        builder: the name of the node as a builder; modules that another builder compiled are refused.
        about: path, size and sha256 of the archive, if the node has already packed it.

    Raises:
        NodeFailed: the node does not have the build, or the archive is damaged, too large or too slow.
        Unreachable: the node cannot be reached.
    """
    end = time.monotonic() + DEADLINE_S
    with open_session(way, LIMITS) as session:
        ask = partial(_asked, session, password)
        archive = Archive.of(about or ask("pack", build.kernel, build.driver, build.arch, builder))
        packed = bytearray()
        while len(packed) < archive.size:
            if time.monotonic() > end:
                raise NodeFailed(
                    f"{len(packed) >> 20} of {archive.size >> 20} MB of modules after {DEADLINE_S:.0f} s"
                )
            packed += _piece(ask, archive, len(packed))
        ask("forget", archive.path)
    content = bytes(packed)
    if digest(content) != archive.sha256:
        raise NodeFailed("an archive of modules that changed on the way", do="try again")
    return content


def _piece(ask: Ask, archive: Archive, offset: int) -> bytes:
    """Fetch the piece that starts at an offset in bytes.

    Raises:
        NodeFailed: it has more or fewer bytes than `PIECE` or the rest of the archive.
    """
    expected, answer = min(PIECE, archive.size - offset), ask("piece", archive.path, offset)
    try:
        piece = base64.b64decode(answer, validate=True) if isinstance(answer, str) else b""
    except ValueError:
        piece = b""
    if len(piece) != expected:
        raise NodeFailed(
            f"a piece of {len(piece)} bytes of an archive of modules", expected=f"{expected} bytes"
        )
    return piece


def _asked(session: Session, password: str | None, act: str, *arguments: Any) -> Any:
    """Run an act of `gpuprov.apply.node.built` on the node; return its result, None if it has none.

    Raises:
        NodeFailed: the act failed.
    """
    payload = pack(PROGRAM, {"act": act, "arguments": list(arguments)}, password=password)
    output = session.run(payload.command, payload.stdin)
    answer = payload.answer(output.stdout, output.stderr)
    if "error" in answer:
        raise NodeFailed(str(answer["error"]))
    return answer.get("result")

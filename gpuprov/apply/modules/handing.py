"""How modules come from the node that compiled them: packed there, sent piece by piece, proven here."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from gpuprov.apply.modules.build import Build, digest
from gpuprov.errors import NodeFailed
from gpuprov.probe.payload import pack
from gpuprov.ssh.transport import ConnectionLimits, Session, Target, open_session

PROGRAM = (
    "gpuprov.probe.node.base",
    "gpuprov.probe.node.main",
    "gpuprov.apply.node.built",
)
SIZE_LIMIT = 256 << 20
"""Bytes of an archive of modules; NVIDIA's proprietary ones have a tenth of it."""
LIMITS = ConnectionLimits(command_s=120)


def fetched(way: Target, build: Build, password: str | None, about: Mapping[str, Any] | None = None) -> bytes:
    """The archive of a build.

    Args:
        about: its path, size and sha256, where a node has packed it already.

    Raises:
        NodeFailed: the node does not have it, or it changed on the way.
        Unreachable: no way in.
    """
    with open_session(way, LIMITS) as session:
        told = about or _asked(session, password, "pack", build.kernel, build.driver, build.arch)
        path, size, sha256 = str(told["path"]), int(told["size"]), str(told["sha256"])
        if size > SIZE_LIMIT:
            raise NodeFailed(f"modules of {size >> 20} MB", expected=f"at most {SIZE_LIMIT >> 20}")
        packed = b""
        while len(packed) < size:
            piece = base64.b64decode(_asked(session, password, "piece", path, len(packed)), validate=True)
            if not piece:
                break
            packed += piece
        _asked(session, password, "forget", path)
    if digest(packed) != sha256:
        raise NodeFailed("an archive of modules that changed on the way", do="try again")
    return packed


def _asked(session: Session, password: str | None, act: str, *arguments: Any) -> Any:
    payload = pack(PROGRAM, {"act": act, "arguments": list(arguments)}, password=password)
    output = session.run(payload.command, payload.stdin)
    answer = payload.answer(output.stdout, output.stderr)
    if "error" in answer:
        raise NodeFailed(str(answer["error"]))
    return answer["result"]

"""OpenSSH's master processes, which keep connections open for later commands."""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path

EXIT = struct.pack(">6I", 8, 0x00000001, 4, 8, 0x10000005, 0)
"""MUX_MSG_HELLO with the protocol's version, and MUX_C_TERMINATE, as OpenSSH's PROTOCOL.mux defines them."""
ANSWER_S = 1.0


def end_masters(folder: Path) -> None:
    """End the masters whose control sockets are in a folder, as `ssh -O exit` does.

    Without this a master exits after ControlPersist, but not while a node keeps one of its channels open.
    """
    for path in folder.glob("*"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as control:
            control.settimeout(ANSWER_S)
            control.connect(str(path))
            control.sendall(EXIT)
            while control.recv(4096):
                pass

"""Error messages of NCCL and the frameworks above it, with their usual causes.

Sources: NCCL's user guide (Troubleshooting), its published sources, and its public issue tracker.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

# Pattern of a message → its likely cause. The first that matches counts; all of these break a job.
_CAUSES: tuple[tuple[str, str], ...] = (
    (
        r"ProcessGroupNCCL.*(?:Watchdog|Timeout)|Watchdog caught collective",
        "a collective never ended: a rank crashed, hangs, or calls another collective",
    ),
    (
        r"posix_fallocate|/dev/shm|shared memory segment|No space left on device",
        "shared memory is full: give the container --shm-size=1g or more, or --ipc=host",
    ),
    (r"Duplicate GPU", "two ranks use one GPU: set the device from LOCAL_RANK"),
    (
        r"ibv_reg_mr|Cannot allocate memory",
        "locked memory is limited: --ulimit memlock=-1, LimitMEMLOCK=infinity",
    ),
    (
        r"ibv_modify_qp.*failed|error 12\b|vendor err 129|ibv_poll_cq.*failed|Got completion",
        "the RDMA path breaks: cable or port, wrong NCCL_IB_GID_INDEX on RoCE, or no route between subnets",
    ),
    (
        r"Connection (?:refused|closed)|timed? ?out|No route to host|Network is unreachable|reset by peer",
        "a peer ended or cannot be reached: firewall, wrong NCCL_SOCKET_IFNAME, or another rank failed first",
    ),
    (r"no (?:socket )?interface found", "NCCL_SOCKET_IFNAME names no interface of this node"),
    (r"out of memory", "GPU memory is full before NCCL can allocate its buffers"),
    (
        r"driver version is insufficient|unsupported PTX|no kernel image",
        "NCCL was built for a newer CUDA than the driver serves",
    ),
    (
        r"peer mapping resources exhausted|peer access is not supported",
        "the driver refuses P2P between these GPUs",
    ),
    (
        r"unhandled (?:system|cuda) error|nccl(?:System|UnhandledCuda|Internal|Remote)Error",
        "NCCL gave up: the first NCCL WARN above it names the cause",
    ),
    (r"mismatch|invalid usage|ncclInvalid(?:Usage|Argument)", "the ranks do not call the same collective"),
    (
        r"Cuda failure|CUDA error|uncorrectable|unspecified launch failure",
        "the GPU failed during the NCCL operation: look in `dmesg` for Xid",
    ),
)
_FRAMEWORK = re.compile(
    r"nccl(?:System|UnhandledCuda|Internal|Remote)Error|ncclInvalid(?:Usage|Argument)|NCCL error"
    r"|Test NCCL failure|Test CUDA failure"
)
_PYTORCH = re.compile(r"Watchdog caught|exception|timeout")
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")
_MOST = 200


@dataclass
class Complaints:
    """Error messages of one log; those that differ only in numbers are counted, the first is kept."""

    _first: dict[str, str] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)

    def warned(self, text: str) -> None:
        """Add the first 400 characters of an `NCCL WARN`; beyond `_MOST` different texts, new ones are
        ignored.
        """
        key = _NUMBERS.sub("#", text[:400])
        if key in self._first or len(self._first) < _MOST:
            self._first.setdefault(key, text[:400])
            self._counts[key] += 1

    def feed(self, line: str) -> None:
        """Add a line of a framework or of nccl-tests if it reports an NCCL failure."""
        if _FRAMEWORK.search(line) or _PYTORCH.search(line.partition("ProcessGroupNCCL")[2]):
            self.warned(line.strip())

    @property
    def errors(self) -> list[dict[str, Any]]:
        """Return the messages that break a job: text, count, likely cause."""
        return [entry for entry in self._entries() if entry["cause"]]

    @property
    def warnings(self) -> list[dict[str, Any]]:
        """Return the other messages: text and count."""
        return [{"text": e["text"], "count": e["count"]} for e in self._entries() if not e["cause"]]

    def _entries(self) -> list[dict[str, Any]]:
        """Return each message with its count and its likely cause, or None."""
        return [
            {"text": text, "count": self._counts[key], "cause": cause_of(text)}
            for key, text in self._first.items()
        ]


def cause_of(text: str) -> str | None:
    """Return the likely cause of a message that breaks jobs; None for any other message."""
    return next((cause for words, cause in _CAUSES if re.search(words, text, re.IGNORECASE)), None)

"""Parsers of NCCL's log lines from 2.4 on, as pure functions of one line.

A line is `HOST:PID:TID [GPU] NCCL INFO text`, and `HOST:PID:TID [GPU] file.cc:12 NCCL WARN text` for
warnings (newer versions add the time in front and the function's name after the file). Launchers add
their own prefix (`[1,0]<stdout>:`, `worker-0: `), and ranks that write to one stream can interrupt
each other's lines. The formats are from NCCL's published sources and from public logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gpuprov.untrusted.kept import SHORT, kept

# Numbers have at most 18 digits: Python converts no longer ones than 4,300, and a log can have them.
_MARK = re.compile(r"[NR]CCL (INFO|WARN) ")
_SPEAKER = re.compile(
    r"(?<![\w.-])(?P<host>[\w.-]{1,64}):(?P<pid>\d{1,18}):(?P<tid>\d{1,18}) \[-?\d{1,18}\] "
    r"(?:\S+:\d{1,18}(?: \([^)]*\))? )?\Z"
)
_LONGEST_PREFIX, _LONGEST_NAME = 400, 64
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Message(NamedTuple):
    """One message: host and pid (None if the prefix is cut off), level and text."""

    host: str | None
    pid: int | None
    level: str
    text: str


def messages(line: str) -> Iterator[Message]:
    """Yield the messages of a line: several if ranks interrupted each other's lines; none without NCCL's
    prefix.
    """
    if "\x1b" in line:
        line = _TERMINAL_CODES.sub("", line)
    pieces = _MARK.split(line)
    last = len(pieces) - 1
    for at in range(1, last, 2):
        host, pid, _ = _speaker(pieces[at - 1][-_LONGEST_PREFIX:])
        text = pieces[at + 1]
        if at + 1 < last:
            text = text[: len(text) - _speaker(text[-_LONGEST_PREFIX:])[2]]
        yield Message(host, pid, pieces[at], text.strip())


@kept(4096, SHORT)
def _speaker(text: str) -> tuple[str | None, int | None, int]:
    """Return host, pid and length of the prefix at the end of `text`."""
    found = _SPEAKER.search(text)
    return (found["host"], int(found["pid"]), len(text) - found.start()) if found else (None, None, 0)


# --- paths between ranks ------------------------------------------------------------------------------

_PATH = re.compile(
    r"(?:Channel|Ring|Coll\w*) \d{1,18}(?:/\d{1,18})? : (?P<source>\d{1,18})(?:\[\w+\])?"
    r"(?: -> (?P<target>\d{1,18})(?:\[\w+\])?)?"
    r"(?: \[(?P<way>send|receive)\])? via (?P<via>.+)"
)


class Path(NamedTuple):
    """A connection of one channel: ranks, transport (`P2P/CUMEM`, `SHM`, `NET/IB`), and whether by GDRDMA.

    `receiving` is true for the second of the two lines of a NET connection. CollNet, which connects to the
    network, has no `target`.
    """

    source: int
    target: int | None
    receiving: bool
    transport: str
    gdrdma: bool


def path(text: str) -> Path | None:
    """Return the connection that a message reports (`Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM`), or None."""
    found = _PATH.match(text)
    if found is None:
        return None
    transport, gdrdma = _transport(found["via"])
    target = found["target"]
    return Path(
        int(found["source"]), int(target) if target else None, found["way"] == "receive", transport, gdrdma
    )


@kept(1024, SHORT)
def _transport(via: str) -> tuple[str, bool]:
    """Return transport and GDRDMA: `NET/IB/0(1)/GDRDMA(PCI) comm 0x1 nRanks 2` → (`NET/IB`, True)."""
    parts = via.split(" comm 0x")[0].strip().split("/")
    kind = parts[0].upper()
    gdrdma = any(part.startswith("GDRDMA") for part in parts[1:])
    if kind == "SHM" or parts[0] == "direct shared memory":
        return "SHM", False
    if kind in ("P2P", "NET", "COLLNET") and len(parts) > 1:
        return f"{kind}/{parts[1][:_LONGEST_NAME]}", gdrdma
    return (kind if kind in ("P2P", "NET", "COLLNET", "NVLS") else "other"), gdrdma


# --- communicators ------------------------------------------------------------------------------------

_MEMBER = re.compile(
    r"comm (?P<pointer>0x[0-9a-f]{1,16}) rank (?P<rank>\d{1,18}) n[rR]anks (?P<nranks>\d{1,18})\b"
)
_COMM_ID = re.compile(r"commId (0x[0-9a-f]{1,16})\b")
_LAYOUT = re.compile(r"nNodes (\d{1,18}) localRanks (\d{1,18})\b")
_MULTI_NODE_NVLINK = re.compile(r"MNNVL 1\b")
_STAGES = {
    "Init START": "started",
    "Init COMPLETE": "complete",
    "Destroy COMPLETE": "gone",
    "Abort COMPLETE": "gone",
}


@dataclass(frozen=True, slots=True)
class Member:
    """A rank of a communicator in a process's line; `stage` is started, complete, gone or empty."""

    pointer: str
    rank: int
    nranks: int
    comm_id: str | None
    layout: tuple[int, int] | None
    stage: str
    multi_node_nvlink: bool


def member(text: str) -> Member | None:
    """Return the member of a communicator that a message reports, or None."""
    found = _MEMBER.search(text)
    if found is None:
        return None
    comm_id, layout = _COMM_ID.search(text), _LAYOUT.search(text)
    return Member(
        found["pointer"],
        int(found["rank"]),
        int(found["nranks"]),
        comm_id[1] if comm_id else None,
        (int(layout[1]), int(layout[2])) if layout else None,
        next((stage for words, stage in _STAGES.items() if words in text), ""),
        _MULTI_NODE_NVLINK.search(text) is not None,
    )


# --- versions, environment, network ---------------------------------------------------------------------

_VERSION = re.compile(
    r"\b[NR]CCL version\s*:?\s*(\d{1,18}(?:\.\d{1,18}){1,4})[^\s+]*(?:\+(?:cuda|hip)(\d[\d.]{0,31}))?"
)
_SET = re.compile(r"\b(NCCL_[A-Z0-9_]{1,59}) set (?:by environment )?to (.{0,1024})")
_ADDRESS = re.compile(
    r"(?:^|[\s\]])([A-Za-z][\w.@-]{0,63}):([0-9A-Fa-f][0-9A-Fa-f.:]{0,63}(?:%[\w.-]{1,63})?)<\d{1,18}>"
)
_HCA = re.compile(r"\[\d{1,18}\]\s?([A-Za-z][\w.+-]{0,63})(?::uverbs\d{1,18})?:(\d{1,18})/(\w{1,16})")


@dataclass(frozen=True, order=True)
class Interface:
    """A network interface in use by NCCL: name, address, and use (`bootstrap`, `data` or `oob`)."""

    name: str
    address: str
    use: str


@dataclass(frozen=True, order=True)
class LoggedHca:
    """A port of an RDMA device in use by NCCL, and its link: `IB` or `RoCE`."""

    device: str
    port: int
    link: str

    def __str__(self) -> str:
        return f"{self.device}:{self.port}"


def version(text: str) -> tuple[str, str | None] | None:
    """Return NCCL's version and the CUDA version that it was built for, or None."""
    found = _VERSION.search(text)
    return (found[1], found[2]) if found else None


def environment(text: str) -> tuple[str, str] | None:
    """Return the variable that a message reports as set, and its value, or None."""
    found = _SET.search(text)
    return (found[1], found[2].strip().removesuffix(".")) if found else None


def interfaces(text: str) -> list[Interface]:
    """Return the interfaces, with address and use, that a message `Bootstrap …`, `NET/Socket : Using …` or
    `NET/IB : Using …; OOB …` names.
    """
    use = "bootstrap" if text.startswith("Bootstrap") else "data"
    data, _, oob = text.partition("OOB ")
    return [Interface(name, address, use) for name, address in _ADDRESS.findall(data)] + [
        Interface(name, address, "oob") for name, address in _ADDRESS.findall(f" {oob}")
    ]


def hcas(text: str) -> list[LoggedHca]:
    """Return the RDMA ports in a `NET/IB : Using [0]mlx5_0:1/RoCE …` or `NET/IB: [0] mlx5_0:uverbs0:1/IB`
    line.
    """
    return [LoggedHca(device, int(port), link) for device, port, link in _HCA.findall(text)]

"""Collector of the kernel's log: the lines since boot about GPUs, buses, memory, disks and hangs."""

import os
import re
import subprocess
import threading
import time
from collections import deque

from gpuprov.probe.node.base import CHILDREN, ENVIRONMENT, Failed, collector, find_program, redact, stop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from gpuprov.probe.node.base import Values

LINES_AT_MOST = 4000
LINE_LIMIT = 600
"""Maximum length of a line in characters."""
WANTED = re.compile(
    r"NVRM|\bS?Xid\b|nvidia|nouveau|\bnova|PCIe Bus Error|\bAER:|pciehp|fallen off|PCIe bandwidth|BAR \d"
    r"|[Ll]ockdown|unavailable key|module verification|Key was rejected|Out of memory|oom-kill|Killed process"
    r"|blocked for more than|soft lockup|hard LOCKUP|rcu.*stall|Machine [Cc]heck|\bmce:|EDAC|Hardware Error"
    r"|nvme|I/O error|Remounting filesystem|EXT4-fs error|XFS .*(?:[Cc]orrupt|shut)|md/raid|\bata\d.*failed"
    r"|nfs: server|not responding|mlx[45]|infiniband|DMAR|AMD-Vi|IOMMU|thermal|throttl|segfault|peer_mem"
    r"|version magic|disagrees about version of symbol|Unknown symbol|GPL-only symbol|gdrdrv"
)
"""Pattern of the lines that are kept."""


@collector(seconds=20)
def kernel_log(parameters: "Values") -> "Any":
    """Return time and text of the last 4000 relevant lines, the oldest first, from journal or /dev/kmsg.

    Times are in seconds since the epoch; secrets are hidden. `lines` counts all lines read: an empty log
    proves nothing, so it is a failure.

    Raises:
        Failed: no log can be read, or it is empty.
    """
    reason = "no kernel log can be read"
    for source in (_journal, _ring):
        kept, count = deque(maxlen=LINES_AT_MOST), 0  # type: deque[Any], int
        try:
            for seconds, text in source():
                count += 1
                if WANTED.search(text):
                    kept.append([seconds, redact(text[:LINE_LIMIT])])
        except (Failed, OSError) as error:
            reason = f"{reason}; {error}"
            continue
        if count:
            return {"source": source.__name__.strip("_"), "lines": count, "kept": list(kept)}
    raise Failed(reason)


def _journal() -> "Iterator[tuple[float, str]]":
    """Yield time and text of the kernel's messages in the journal since boot.

    Raises:
        Failed: journalctl is not installed, or did not end within 15 s.
    """
    program = find_program("journalctl")
    if program is None:
        raise Failed("journalctl is not installed")
    child = subprocess.Popen(
        (program, "-b", "-t", "kernel", "-o", "short-unix", "--no-pager", "-q", "--no-hostname"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=ENVIRONMENT,
        cwd="/",
        start_new_session=True,
    )
    CHILDREN.add(child)
    watch = threading.Timer(15, stop, (child,))
    watch.daemon = True
    watch.start()
    try:
        assert child.stdout is not None  # noqa: S101
        with child.stdout:
            for stamp, text in _whole(line.decode("utf-8", "replace") for line in child.stdout):
                yield stamp, text.partition("kernel: ")[2].strip() or text.strip()
        if child.wait(1) < 0:
            raise Failed("journalctl did not end in time")
    finally:
        watch.cancel()
        CHILDREN.discard(child)
        stop(child)


def _whole(lines: "Iterable[str]") -> "Iterator[tuple[float, str]]":
    """Yield time and text of complete messages: a line without a time continues the previous one.

    Messages of NVRM often have several lines. Lines after the 16th are ignored.
    """
    begun, parts = 0.0, []  # type: float, list[str]
    for line in lines:
        stamp, _, text = line.partition(" ")
        if re.fullmatch(r"\d{1,12}\.\d+", stamp):
            if parts:
                yield begun, " ".join(parts)
            begun, parts = float(stamp), [text.strip()]
        elif parts and len(parts) < 16 and not line.startswith("--"):
            parts.append(line.strip())
    if parts:
        yield begun, " ".join(parts)


def _ring() -> "Iterator[tuple[float, str]]":
    """Yield time and text of the kernel's records in /dev/kmsg up to the newest; times since the epoch.

    A record has priority, number, microseconds since boot, and the text.
    """
    handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    boot = time.time() - time.monotonic()
    try:
        for _ in range(200000):
            try:
                record = os.read(handle, 8192).decode("utf-8", "replace")
            except BrokenPipeError:  # the record was overwritten before it was read
                continue
            except BlockingIOError:
                return
            if not record:
                return
            head, _, text = record.partition(";")
            fields = head.split(",")
            if len(fields) > 2 and fields[0].isdigit() and int(fields[0]) < 8 and fields[2].isdigit():
                yield (
                    round(boot + int(fields[2]) / 1e6, 6),
                    text.partition("\n")[0].replace("\\x0a", " ").strip(),
                )
    finally:
        os.close(handle)

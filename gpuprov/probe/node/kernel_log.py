"""Collector of the kernel's log: the lines since boot about GPUs, buses, memory, disks and hangs."""

import os
import re
import stat
import subprocess
import threading
import time
from collections import deque
from glob import glob
from itertools import islice

from gpuprov.probe.node.base import CHILDREN, ENVIRONMENT, Failed, collector, find_program, redact, run, stop
from gpuprov.probe.node.kernel_messages import WANTED, Kinds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from gpuprov.probe.node.base import Values

LINE_LIMIT = 600
"""Maximum length of a line in characters."""
RING = "/dev/kmsg"
TRUSTED = ("_TRANSPORT=kernel", "SYSLOG_IDENTIFIER=kernel")
OF_JOURNALD = ("+", "_TRANSPORT=driver")
_GAP = re.compile(r"systemd-journald\[\d{1,9}\]: (?:Missed \d|Time spent on flushing to )")
"""The journal's own messages that it has missed some of the kernel, or was kept in /run until then, as on a
full disk: there it removes messages for itself.
"""
_FLUSHED, _IN_RUN = "/run/systemd/journal/flushed", "/run/log/journal/*/*.journal*"
_ON_DISK = "/var/log/journal/*/*.journal*"
_FIRST = re.compile(
    r"Linux version \d+\.\d+\.\d+|Booting Linux on physical CPU 0x\d|Initializing cgroup subsys cpuset"
)
"""One of the first messages of a boot; longer than a name that a user can choose."""
_BEGUN = "basic.target"
_ORIGIN = re.compile(r"kernel(?:\[\d{1,9}\])?: ")
"""Beginning of a message of the kernel itself in journalctl's output."""


@collector(seconds=20)
def kernel_log(parameters: "Values") -> "Any":
    """Return time and text of the last relevant lines of each kind, the oldest first.

    Only lines of the kernel itself count. Times are in seconds since the epoch; secrets are hidden. `lines`
    is the number of all lines read, `left_out` of relevant ones that are not returned: an empty log proves
    nothing, so it is a failure. `since` is there if messages from before this time may be missing.

    Raises:
        Failed: no log can be read, or it is empty.
    """
    sources, count, kinds, since = read_log()
    kept, left_out = kinds.lines()
    result = {
        "source": " and ".join(sources),
        "lines": count,
        "left_out": left_out,
        "kept": [[seconds, redact(text)] for seconds, text in kept],
    }
    return dict(result, since=since) if since and since > _services_since() else result


def read_log() -> "tuple[list[str], int, Kinds, float]":
    """Return the sources of the kernel's log, the number of lines read, and the relevant ones, cut to
    `LINE_LIMIT`; and the time since when one of the sources has all messages, 0.0 if it has all since boot.
    A source that cannot be read is left out.

    They are those of the journal, and of /dev/kmsg: who fills the journal, as each user can, makes it forget
    the kernel's messages too. The journal is read from its end: with millions of messages, which users can
    cause, its beginning is not reached in time.

    Raises:
        Failed: no log can be read, or it is empty.
    """
    reason, sources, count, kinds, whole = "no kernel log can be read", [], 0, Kinds(), time.time()
    for source in (_journal, _ring):
        before, since = count, 0.0
        kinds.begin_source(newest_first=source is _journal)
        try:
            for seconds, text in source():
                if text is None:
                    since = max(since, seconds)
                    continue
                count += 1
                if WANTED.search(text):
                    kinds.add(seconds, text[:LINE_LIMIT])
        except (Failed, OSError) as error:
            reason = f"{reason}; {error}"
            continue
        if count > before:
            sources.append(source.__name__.strip("_"))
            whole = min(whole, since)
    if not sources:
        raise Failed(reason)
    return sources, count, kinds, time.time() if kinds.overflow() else whole


def _services_since() -> float:
    """Return the time when services began after boot, in seconds since the epoch; 0.0 if it is not known.

    Large machines write more messages before it than the ring holds, and no user is the cause: programs of
    users begin with services, as cron.
    """
    try:
        began = run("systemctl", "show", "--property=ActiveEnterTimestampMonotonic", "--value", _BEGUN)
        return time.time() - time.monotonic() + int(began) / 1e6 if int(began) else 0.0
    except (Failed, ValueError):
        return 0.0


def _journal() -> "Iterator[tuple[float, str | None]]":
    """Yield time and text of the kernel's messages in the journal since boot, the newest first, those that
    can be read in 15 s; and None in place of the text where messages before this time are missing.

    `_TRANSPORT` is what the journal itself notes; any user can write SYSLOG_IDENTIFIER. Without --all
    journalctl prints `[111B blob data]` in place of a message with an unprintable byte, as of a name.

    Raises:
        Failed: journalctl is not installed.
    """
    program = find_program("journalctl")
    if program is None:
        raise Failed("journalctl is not installed")
    child = subprocess.Popen(
        (program, "-b", "--all", "--reverse", "-o", "short-unix", "--no-pager", "-q", "--no-hostname")
        + (*TRUSTED, *OF_JOURNALD),
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
    stamp, oldest = 0.0, deque(maxlen=16)  # type: float, deque[str]
    try:
        assert child.stdout is not None  # noqa: S101
        with child.stdout:
            lines = (line.decode("utf-8", "replace") for line in child.stdout if line.endswith(b"\n"))
            for stamp, text in _whole(lines):
                origin = _ORIGIN.match(text)
                if origin:
                    oldest.append(text[origin.end() :].strip())
                    yield stamp, oldest[-1]
                elif _GAP.match(text):
                    yield stamp, None
        if child.wait() > 0 or _is_in_run():  # or it could not read all files
            yield time.time(), None
        elif not any(map(_FIRST.match, oldest)):
            yield stamp, None
    finally:
        watch.cancel()
        CHILDREN.discard(child)
        stop(child)


def _is_in_run() -> bool:
    """Return whether the journal is in /run now although it was on the disk after boot."""
    boot = time.time() - time.monotonic()
    was_on_disk = any(os.path.getmtime(path) > boot for path in glob(_ON_DISK))
    return was_on_disk and os.path.exists(_FLUSHED) and bool(glob(_IN_RUN))


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


def _ring() -> "Iterator[tuple[float, str | None]]":
    """Yield time and text of the kernel's records in /dev/kmsg up to the newest, and None in place of the
    text before a record that follows missing ones; raises as `open_ring`.
    """
    handle = open_ring()
    try:
        yield from islice(records(handle, since_boot=True), 200000)
    finally:
        os.close(handle)


def open_ring(place: int = os.SEEK_SET) -> int:
    """Return a descriptor of /dev/kmsg, at the oldest record, or after the newest one (os.SEEK_END).

    Raises:
        Failed: it is no device, as in some containers.
        OSError: it cannot be opened.
    """
    handle = os.open(RING, os.O_RDONLY | os.O_NONBLOCK)
    if stat.S_ISCHR(os.fstat(handle).st_mode):
        os.lseek(handle, 0, place)
        return handle
    os.close(handle)
    raise Failed(RING + " is no device")


def records(handle: int, word: bytes = b"", since_boot: bool = False) -> "Iterator[tuple[float, str | None]]":
    """Yield time and text of the kernel's records with a word from /dev/kmsg up to the newest; times since
    the epoch, and None in place of the text before a record that follows others which were overwritten before
    they were read.

    A record has priority, number since boot, microseconds since boot, and the text.

    Args:
        since_boot: whether records before the first one that is read count, too.
    """
    boot, is_lost = time.time() - time.monotonic(), since_boot
    while True:
        try:
            raw = os.read(handle, 8192)
        except BrokenPipeError:
            is_lost = True
            continue
        except BlockingIOError:
            return
        if not raw:
            return
        # Without more for each record, so that it is as fast as a user who writes them.
        if not is_lost and word not in raw:
            continue
        head, _, text = raw.decode("utf-8", "replace").partition(";")
        fields = head.split(",")
        if len(fields) < 3 or not all(field.isdecimal() for field in fields[:3]):
            continue
        seconds = round(boot + int(fields[2]) / 1e6, 6)
        if is_lost and int(fields[1]):
            yield seconds, None
        is_lost = False
        if int(fields[0]) < 8 and word in raw:
            yield seconds, _unescaped(text.partition("\n")[0])


def _unescaped(text: str) -> str:
    """Return the text of a record of /dev/kmsg, as one line: `\\x0a` there is the end of one."""
    raw = re.sub(rb"\\x([0-9a-f]{2})", lambda code: bytes([int(code.group(1), 16)]), text.encode())
    return " ".join(line.strip() for line in raw.decode("utf-8", "replace").splitlines()).strip()

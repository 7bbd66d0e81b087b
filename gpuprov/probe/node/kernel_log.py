"""Collector of the kernel's log: the lines since boot about GPUs, buses, memory, disks and hangs."""

import os
import re
import stat
import subprocess
import threading
import time
from collections import Counter, deque
from itertools import islice

from gpuprov.probe.node.base import CHILDREN, ENVIRONMENT, Failed, collector, find_program, redact, stop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from gpuprov.probe.node.base import Values

LINES_AT_MOST = 4000
OF_A_KIND, KINDS = 200, 512
"""Maximum numbers of lines of one kind, and of kinds, with as many more for errors with a code: further kinds
are one together. So no line, however often it comes, pushes out one of another kind. `_BEGIN` and `_SAID` are
closed lists, so that the kinds of a user's messages are few.
"""
LINE_LIMIT = 600
"""Maximum length of a line in characters."""
RING = "/dev/kmsg"
TRUSTED = ("_TRANSPORT=kernel", "SYSLOG_IDENTIFIER=kernel")
_MISSED = ("+", "_TRANSPORT=driver", "MESSAGE_ID=e9bf28e6e834481bb6f48f548ad13606")
"""The journal's own messages that it has missed some of the kernel."""
_START_S = 600
"""Seconds after boot in which missed messages do not count: large machines write more than the ring holds."""
UNREAD = (
    "journalctl was ended before the beginning of the boot",
    "the journal has missed messages of the kernel",
    "there were too many kinds of messages",
)
"""Reasons why errors may be missing from what is read."""
WANTED = re.compile(
    r"NVRM|\bS?Xid\b|nvidia|nouveau|\bnova|PCIe Bus Error|\bAER:|pciehp|fallen off|PCIe bandwidth|BAR \d"
    r"|[Ll]ockdown|unavailable key|module verification|Key was rejected|Out of memory|oom-kill|Killed process"
    r"|blocked for more than|soft lockup|hard LOCKUP|rcu.*stall|Machine [Cc]heck|\bmce:|EDAC|Hardware Error"
    r"|nvme|I/O error|Remounting filesystem|EXT4-fs error|XFS .*(?:[Cc]orrupt|shut)|md/raid|\bata\d.*failed"
    r"|nfs: server|not responding|mlx[45]|infiniband|DMAR|AMD-Vi|IOMMU|thermal|throttl|segfault|peer_mem"
    r"|D3cold|change power state|BUG: (?:kernel NULL|unable to handle)|Oops: |general protection fault, "
    r"|version magic|disagrees about version of symbol|Unknown symbol|GPL-only symbol|gdrdrv|libspdm_"
)
"""Pattern of the lines that are kept."""
_PCI = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d"
_NAMED = (
    r"(?!.{1,15}?(?:\[\d{1,10}\]| ?\(\d{1,10}\)[: ]| invoked oom-killer:| cpuset=|: page allocation "
    r"|: vmalloc\b)|[^\s:/]{1,15}(?: \(\w{1,20}\))?: "
    r"(?:option \w{1,32}: |Mode \"|Recording |renamed from |[Pp]ort (?:device )?\S|\(slave "
    r"|Caught tx_queue_len|Setting \S{1,15} as |Device \S{1,15} |(?:entered|left) \w{1,20} mode))"
)
"""No beginning of a message about a program (`NAME[PID]: segfault at 0 … in FILE[…]`) or a network interface
(`NAME: option mode: invalid value (TEXT)`), which a user can have in a namespace of their own.

Name and text are the user's, as are the names of the file and of a control group. An interface's name has up
to 15 characters, without blanks and colons; a program's may have both.
"""
_BEGIN = (
    r"NVRM[: ]|(?:nvidia(?:[_-](?:modeset|uvm|drm|peermem|fs|nvlink|nvswitch\d{0,3}|vgpu[_-]vfio|gpu|caps"
    r"|current(?:[_-](?:open|modeset|uvm|drm|peermem))?))?|nv_peer_mem|nouveau|nova(?:[_-](?:core|drm))?)"
    rf"(?:: | {_PCI}| (?=nv_))|gdrdrv: |The NVIDIA |\[drm[\]:]|libspdm_(?=\w{{12,40}}: )|BAR\d: |AER: "
    rf"|(?:mlx[45]_(?:core|ib|en)|pcieport|pciehp|pci|vfio-pci) {_PCI}"
    r"|mlx[45]_(?:core|ib|en|vdpa|(?:bond_)?\d{1,3}): "
    r"|mce: \[Hardware|mce: CPU|(?:\{\d{1,9}\})?\[Hardware Error\]|EDAC (?:MC\d|(?=\w{3,20}:))"
    r"|rcu: (?:INFO|rcu_)|(?:watchdog: |NMI watchdog: )?BUG: soft lockup|(?:NMI )?watchdog: |nvme nvme\d{1,4}"
    r"|sd \d{1,4}:\d|ata\d{1,4}[.:]|(?:blk_update_request|print_req_error): |Buffer I/O error on|md/raid[\d:]"
    r"|(?:I/O|critical \w{6}) error, dev |EXT4-fs (?:error|warning)? ?\(|XFS \(|nfs: server |DMAR: |AMD-Vi: "
    r"|Lockdown: |Loading of (?:un|mod)|PKCS#7 |Required key not|Key was rejected|Kernel is locked"
)
OF_DEVICES = re.compile(_NAMED + f"(?:{_BEGIN})")
"""Beginnings of the messages of drivers, and of the kernel about devices: a closed list.

All others may begin with a name that a user chooses, or quote a path.
"""
_OF_PROGRAMS = re.compile(
    _NAMED + r"(?:INFO: task |BUG: (?:kernel|unable) |Oops: (?=[0-9a-f]{4}\b)|general protection fault, "
    r"|RIP: (?=[0-9a-f]{4}:)|(?:Memory cgroup o|O)ut of memory: )"
)
"""Beginnings of the kernel's messages about programs that no name of a user has pushed out."""
_SAID = re.compile(
    r"API mismatch|[Vv]ersion m(?:ismatch|agic)|fallen off|[nN]it_?[aA]dapter[: ]|module->open|probe routine"
    r"|installed in |supported |this system|driver release|Legacy |legacy GPU|only ready|open kernel"
    r"|I/O region|BAR ?\d(?=\S? )|64-bit BAR|NV_ERR_(?:RESET_REQUIRED|NO_MEMORY)|global fatal|find an IRQ"
    r"|pci_enable_device|request_mem_region|copy vbios|WPR2 already|for GFW|GSP (?:firmware|task|RM|heart)"
    r"|irmware load|gsp\w{0,20}\.bin|_?k[fg]sp(?=\w{1,60}: )|CrashCat Report"
    r"|eartbeat timed|SPDM: |onfCompute: "
    r"|GSP-DMA |to remove|GPU removal|loading |Loading |p2p_free_callback|disagrees about|Unknown symbol"
    r"|GPL-only symbol|module verif|out-of-tree|HMM |n't recover|device recovery|IO_PAGE_FAULT|\[DMA "
    r"|rror(?:: severity=(?:Unc|C)orrect)?(?!\])|severity: \w{4}|AER: (?:Multiple )?(?:Unc|C)orrect"
    r"|ink [Dd](?:own|OWN)|not present"
    r"|power state|insufficient power|Port module|health compromised|synd 0x|ink [Uu]p|lost carrier"
    r"|\d (?:CE|UE)\b|achine [Cc]heck|timeout|reset controller|controller is|orruption|[Ss]hut|not resp"
)
"""Texts that the doctor's rules look for, and some others: the closed list for the second part of a kind."""
_CODE = re.compile(
    r"NVRM: (?:GPU at )?Xid \([0-9a-zA-Z:. -]{1,60}\)[^:]{0,100}: \d{1,3}\b"
    r"|nvidia-nvswitch\d{1,3}: SXid \([0-9a-zA-Z:.]{1,40}\): \d{3,6}\b"
)
XID = re.compile(_NAMED + r"NVRM: (?:GPU at )?Xid \(")
"""Beginning of a message about an error of a GPU."""
_ORIGIN = re.compile(r"kernel(?:\[\d{1,9}\])?: ")
"""Beginning of a message of the kernel itself in journalctl's output."""


@collector(seconds=20)
def kernel_log(parameters: "Values") -> "Any":
    """Return time and text of the last relevant lines of each kind, the oldest first.

    Only lines of the kernel itself count. Times are in seconds since the epoch; secrets are hidden. `lines`
    is the number of all lines read, `left_out` of relevant ones that are not returned: an empty log proves
    nothing, so it is a failure. `unread` is there if errors may be missing: one of `UNREAD`.

    Raises:
        Failed: no log can be read, or it is empty.
    """
    sources, count, kinds, unread = read_log()
    kept, left_out = kinds.lines()
    result = {
        "source": " and ".join(sources),
        "lines": count,
        "left_out": left_out,
        "kept": [[seconds, redact(text)] for seconds, text in kept],
    }
    return dict(result, unread=unread) if unread else result


def read_log() -> "tuple[list[str], int, Kinds, str]":
    """Return the sources of the kernel's log, the number of lines read, and the relevant ones, cut to
    `LINE_LIMIT`. A source that cannot be read is left out. The last value is one of `UNREAD`, or empty.

    They are those of the journal, and of /dev/kmsg: who fills the journal, as each user can, makes it forget
    the kernel's messages too. The journal is read from its end: with millions of messages, which users can
    cause, its beginning is not reached in time.

    Raises:
        Failed: no log can be read, or it is empty.
    """
    reason, sources, count, kinds, unread = "no kernel log can be read", [], 0, Kinds(), ""
    for source in (_journal, _ring):
        before = count
        kinds.begin_source(newest_first=source is _journal)
        try:
            for seconds, text in source():
                if seconds is None:
                    unread = text
                    continue
                count += 1
                if WANTED.search(text):
                    kinds.add(seconds, text[:LINE_LIMIT])
        except (Failed, OSError) as error:
            reason = f"{reason}; {error}"
            continue
        if count > before:
            sources.append(source.__name__.strip("_"))
    if not sources:
        raise Failed(reason)
    return sources, count, kinds, unread or (UNREAD[2] if kinds.overflow() else "")


class Kinds:
    """The last lines of each kind of message, from sources that may have the same lines.

    A kind is an error's code with its device, or the beginning of a message about a device and what it says;
    all lines that begin with the name of a program or of a user's interface are one kind.
    """

    def __init__(self) -> None:
        """Begin without lines."""
        self._newest_first = False
        self._kinds = {}  # type: dict[str, deque[tuple[float, str]]]
        self._known = {}  # type: dict[str, Counter[str]]
        self._full = set()  # type: set[str]
        self._totals = Counter()  # type: Counter[str]

    def begin_source(self, newest_first: bool = False) -> None:
        """Begin with another source: each known line is expected once more, with another clock's time.

        A kind that is full has its last lines; older ones of this source would push them out.
        """
        self._newest_first = newest_first
        self._known = {kind: Counter(text for _, text in lines) for kind, lines in self._kinds.items()}
        self._full = {kind for kind, lines in self._kinds.items() if len(lines) == OF_A_KIND}

    def add(self, seconds: float, text: str) -> None:
        """Add a line, unless an earlier source has had it; of a kind at most the last `OF_A_KIND` are kept,
        all are counted.

        Beyond `KINDS` kinds, or twice as many for an error with a code, further ones are put together as
        `others`.
        """
        kind = kind_of(text)
        if kind not in self._kinds and len(self._kinds) >= KINDS * (2 if _CODE.match(kind) else 1):
            kind = "others"
        known = self._known.get(kind, Counter())
        if kind in self._full or known[text]:
            known[text] -= 1
            return
        lines = self._kinds.setdefault(kind, deque(maxlen=OF_A_KIND))
        if not self._newest_first:
            lines.append((seconds, text))
        elif len(lines) < OF_A_KIND:
            lines.appendleft((seconds, text))
        self._totals[kind] += 1

    def overflow(self) -> bool:
        """Return whether lines of kinds beyond the limits are left out."""
        return self._totals["others"] > OF_A_KIND

    def lines(self) -> "tuple[list[tuple[float, str]], int]":
        """Return at most `LINES_AT_MOST` lines, the oldest first, and the number of those left out.

        If there are more, each kind has the same share.
        """
        all_of = [sorted(lines) for lines in self._kinds.values()]
        if sum(map(len, all_of)) > LINES_AT_MOST:
            share = LINES_AT_MOST // len(all_of)
            all_of = [lines[-share:] for lines in all_of]
        kept = sorted(line for lines in all_of for line in lines)
        return kept, sum(self._totals.values()) - len(kept)


def kind_of(text: str) -> str:
    """Return the kind of a message; its numbers, which differ from line to line, do not count. `program` for
    a message that is not about a device.
    """
    begin = OF_DEVICES.match(text)
    if begin is None:
        about = _OF_PROGRAMS.match(text)
        return about.group() if about else "program"
    code, said = _CODE.match(text), _SAID.search(text, begin.end())
    return code.group() if code else re.sub(r"\d+", "0", begin.group() + (said.group() if said else ""))


def _journal() -> "Iterator[tuple[float | None, str]]":
    """Yield time and text of the kernel's messages in the journal since boot, the newest first, those that
    can be read in 15 s; and None with a reason of `UNREAD`.

    `_TRANSPORT` is what the journal itself notes; any user can write SYSLOG_IDENTIFIER.

    Raises:
        Failed: journalctl is not installed.
    """
    program = find_program("journalctl")
    if program is None:
        raise Failed("journalctl is not installed")
    child = subprocess.Popen(
        (program, "-b", "--reverse", "-o", "short-unix", "--no-pager", "-q", "--no-hostname")
        + (*TRUSTED, *_MISSED),
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
    started, count = time.time() - time.monotonic() + _START_S, 0
    try:
        assert child.stdout is not None  # noqa: S101
        with child.stdout:
            lines = (line.decode("utf-8", "replace") for line in child.stdout if line.endswith(b"\n"))
            for stamp, text in _whole(lines):
                count += 1
                origin = _ORIGIN.match(text)
                if origin:
                    yield stamp, text[origin.end() :].strip()
                elif stamp > started and text.startswith("systemd-journald[") and ": Missed " in text:
                    yield None, UNREAD[1]
        code = child.wait()
        if code < 0 or (code and count):  # it also fails where the journal has nothing of this boot
            yield None, UNREAD[0]
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


def _ring() -> "Iterator[tuple[float | None, str]]":
    """Yield time and text of the kernel's records in /dev/kmsg up to the newest; raises as `open_ring`."""
    handle = open_ring()
    try:
        for seconds, text in islice(records(handle), 200000):
            if text is not None:
                yield seconds, text
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


def records(handle: int, word: bytes = b"") -> "Iterator[tuple[float, str | None]]":
    """Yield time and text of the kernel's records with a word from /dev/kmsg up to the newest; times since
    the epoch, and None in place of the text of records that were overwritten before they were read.

    A record has priority, number, microseconds since boot, and the text.
    """
    boot = time.time() - time.monotonic()
    while True:
        try:
            raw = os.read(handle, 8192)
        except BrokenPipeError:
            yield 0.0, None
            continue
        except BlockingIOError:
            return
        if not raw:
            return
        if word not in raw:  # a reader is as fast as a user who writes only if it does no more
            continue
        head, _, text = raw.decode("utf-8", "replace").partition(";")
        fields = head.split(",")
        if len(fields) > 2 and fields[0].isdecimal() and int(fields[0]) < 8 and fields[2].isdecimal():
            yield round(boot + int(fields[2]) / 1e6, 6), _unescaped(text.partition("\n")[0])


def _unescaped(text: str) -> str:
    """Return the text of a record of /dev/kmsg, as one line: `\\x0a` there is the end of one."""
    raw = re.sub(rb"\\x([0-9a-f]{2})", lambda code: bytes([int(code.group(1), 16)]), text.encode())
    return " ".join(line.strip() for line in raw.decode("utf-8", "replace").splitlines()).strip()

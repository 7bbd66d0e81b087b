"""Kinds of the kernel's messages, by closed lists: about GPUs, buses, memory, disks and hangs."""

import re
from collections import Counter, deque

LINES_AT_MOST = 4000
OF_A_KIND, KINDS = 200, 512
"""Maximum numbers of lines of one kind, and of kinds, with as many more for errors with a code: further kinds
are one together. So no line, however often it comes, pushes out one of another kind. `_BEGIN` and `_SAID` are
closed lists, so that the kinds of a user's messages are few.
"""
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
    r"|: vmalloc\b| uses obsolete \(| sent an empty control )|[^\s:/]{1,15}(?: \(\w{1,20}\))?: "
    r"(?:option \w{1,32}: |Mode \"|Recording |renamed from |[Pp]ort (?:device )?\S|\(slave "
    r"|Caught tx_queue_len|Setting \S{1,15} as |Device \S{1,15} |(?:entered|left) \w{1,20} mode"
    r"|received packet on |Slave [AB] \(|Enslaving |Releasing |making interface ))"
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
    r"|(?:I/O|critical \w{6}) error, dev \w[\w.-]{0,31}, |XFS \([\w.-]{1,32}\): "
    r"|EXT4-fs (?:(?:error|warning) )?\((?:device )?[\w.-]{1,32}\)|nfs: server |DMAR: |AMD-Vi: "
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
    r"API mismatch|[Vv]ersion m(?:ismatch|agic)|fallen off|[nN]it_?[aA]dapter(?:\(\))? failed|[Aa]dapter: "
    r"|module->open\(\) failed|probe routine|installed in |supported (?:by|through)|this system"
    r"|driver release|Legacy |legacy GPU|only ready|open kernel|I/O region|BAR ?\d (?:is|\[|has|can|space)"
    r"|64-bit BAR|NV_ERR_(?:RESET_REQUIRED|NO_MEMORY)|global fatal|find an IRQ"
    r"|pci_enable_device|request_mem_region|copy vbios|WPR2 already|for GFW|GSP (?:firmware|task|RM|heart)"
    r"|irmware load|gsp\w{0,20}\.bin|_?k[fg]sp(?=\w{1,60}: )|CrashCat Report"
    r"|eartbeat timed|SPDM: |onfCompute: "
    r"|GSP-DMA |to remove|GPU removal|loading |Loading |p2p_free_callback|disagrees about|Unknown symbol"
    r"|GPL-only symbol|module verif|out-of-tree|HMM: init|n't recover|device recovery|IO_PAGE_FAULT device"
    r"|\[DMA [\w ]{4,20}\]|rror(?:: severity=(?:Unc|C)orrect)?(?!\])|severity: \w{4}"
    r"|AER: (?:Multiple )?(?:Unc|C)orrect|ink [Dd](?:own|OWN)|not present"
    r"|power state|insufficient power|Port module|health compromised|synd 0x|ink [Uu]p|lost carrier"
    r"|\d (?:CE|UE)\b|achine [Cc]heck|timeout|reset controller|controller is|orruption|[Ss]hut|not resp"
)
"""Texts that the doctor's rules look for, and some others: the closed list for the second part of a kind,
which is all of them that a message has. A name that a user chooses is one word: it has no text of several.
"""
_CODE = re.compile(
    r"NVRM: (?:GPU at )?Xid \([0-9a-zA-Z:. -]{1,60}\)[^:]{0,100}: \d{1,3}\b"
    r"|nvidia-nvswitch\d{1,3}: SXid \([0-9a-zA-Z:.]{1,40}\): \d{3,6}\b|NVRM: API mismatch"
)
"""Beginnings of messages about errors with a code; and of one whose rest a user writes."""
XID = re.compile(_NAMED + r"NVRM: (?:GPU at )?Xid \([^)]{1,80}\)[^:]{0,100}: \d")
"""Beginning of a message about an error of a GPU; longer than a program's name."""


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
    code = _CODE.match(text)
    if code:
        return code.group()
    said = dict.fromkeys(found.group() for found in _SAID.finditer(text, begin.end()))
    return re.sub(r"\d+", "0", "|".join((begin.group(), *said)))

"""Collectors of the host: memory, space, clock, processors, boots, and programs on the GPUs."""

import ctypes
import glob
import os
import re
import struct
import time

from gpuprov.probe.node.base import (
    Failed,
    collector,
    link_name,
    mounted,
    names_in,
    read,
    read_or_none,
    run,
    text_in,
)
from gpuprov.probe.node.gpu import users_of
from gpuprov.probe.node.people import People, variables_of, word_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpuprov.probe.node.base import Values

PROCESSES_AT_MOST, PROGRAM_SIZE = 64, 16384
"""Number of programs, and bytes of a program in the answer, beyond which its user has fewer others there."""
MAPPED_S = 3.0
"""Seconds for a search of programs with those that have a GPU only mapped, before one without these."""
MOUNTS_AT_MOST = 64
LOCAL_FILESYSTEMS = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "vfat", "overlay", "tmpfs")
STA_UNSYNC = 0x40
"""Flag of adjtimex(2): the clock is not synchronised."""
_SERIALS = ("product_serial", "chassis_serial", "board_serial")
"""Files of sysfs with serial numbers, which only root can read, the most telling first."""
CONFIDENTIAL_GUEST = ("/dev/tdx_guest", "/dev/sev-guest")
BOOT_TIME = 2
"""Type of a boot's record in utmp(5)."""


@collector(seconds=10)
def host_state(parameters: "Values") -> "Any":
    """Return memory, space, clock, processors, load, degraded arrays of disks, and boots of the host.

    Also open files, serial numbers, physical states of RDMA ports, the sum of the processors' thermal
    throttle counts, the platform, and of a confidential guest whether its GPUs are ready.
    """
    kept = re.findall(
        r"(?m)^(?:Mem\w+|Swap(?:Total|Free)|HugePages_\w+|Hugepagesize|Shmem|Dirty):.*$",
        read("/proc/meminfo"),
    )
    status = read("/proc/self/status")
    allowed = re.search(r"(?m)^Cpus_allowed_list:\s*(\S+)$", status)
    return {
        "memory": "\n".join(kept),
        "space": _space(),
        "clock": _clock(),
        "cpus": {
            "online": text_in("/sys/devices/system/cpu/online"),
            "possible": text_in("/sys/devices/system/cpu/possible"),
            "present": text_in("/sys/devices/system/cpu/present"),
            "allowed": allowed.group(1) if allowed else None,
        },
        "load": text_in("/proc/loadavg"),
        "file_nr": text_in("/proc/sys/fs/file-nr"),
        "mdstat": [
            line.strip()
            for line in (read_or_none("/proc/mdstat") or "").splitlines()
            if "[" in line and "_" in line
        ],
        "boots": _boots(),
        "virtual": _virtual(),
        "confidential": _confidential(),
        "serials": [text_in("/sys/class/dmi/id/" + name) for name in _SERIALS],
        "phys_states": {
            "/".join([path.split("/")[4], path.split("/")[6]]): text_in(path)
            for path in glob.glob("/sys/class/infiniband/*/ports/*/phys_state")
        },
        "throttled": sum(
            int(text)
            for text in map(
                text_in, glob.glob("/sys/devices/system/cpu/cpu*/thermal_throttle/package_throttle_count")
            )
            if text.isdecimal()
        ),
    }


def _confidential() -> "str | None":
    """Return what nvidia-smi states about the GPUs' readiness in a guest with TDX or SEV-SNP; None elsewhere,
    or if it is not installed, fails or does not end within 8 s.
    """
    if not any(map(os.path.exists, CONFIDENTIAL_GUEST)):
        return None
    try:
        return " ".join(run("nvidia-smi", "conf-compute", "-grs", seconds=8).split())[:200]
    except (Failed, OSError):
        return None


def _space() -> "list[list[Any]]":
    """Return mount point, file system, total and free MiB, total and free inodes, and `ro` or `rw`.

    Only local file systems are included, because an access to a network file system may block; each device
    once.
    """
    rows, seen = [], set()
    for words in mounted():
        if words[2] not in LOCAL_FILESYSTEMS or words[1].startswith(("/proc", "/sys", "/snap")):
            continue
        point = words[1].encode().decode("unicode_escape", "replace")
        try:
            space, device = os.statvfs(point), os.stat(point).st_dev
        except (OSError, ValueError):
            continue
        if device in seen or not space.f_blocks:
            continue
        seen.add(device)
        mib = space.f_frsize / 1048576.0
        rows.append(
            [
                point,
                words[2],
                int(space.f_blocks * mib),
                int(space.f_bavail * mib),
                space.f_files,
                space.f_favail,
                words[3].split(",")[0],
            ]
        )
    return rows[:MOUNTS_AT_MOST]


def _clock() -> "Values":
    """Return the clock's state, whether it is unsynchronised, and its offset with the largest and the
    estimated error in microseconds, from adjtimex(2); state None if it cannot be read.

    Without a mode adjtimex changes nothing and needs no privilege.
    """
    buffer = ctypes.create_string_buffer(512)
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        return {"state": None}
    # struct timex on 64-bit Linux: modes, offset, freq, maxerror, esterror, status
    _, offset, _, worst, estimated, flags = struct.unpack_from("@i4xqqqqi", buffer.raw)
    nano = bool(flags & 0x2000)
    return {
        "state": state,
        "unsynchronised": bool(flags & STA_UNSYNC),
        "offset_us": offset // 1000 if nano else offset,
        "worst_us": worst,
        "estimated_us": estimated,
    }


def _boots() -> "list[int] | None":
    """Return times of the last 50 boots in wtmp, in seconds since the epoch; None if it cannot be read.

    A record has 384 bytes (utmp(5)).
    """
    try:
        with open("/var/log/wtmp", "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 384 * 20000))
            data = file.read(384 * 20000)
    except OSError:
        return None
    times = []
    for place in range(0, len(data) - 383, 384):
        if struct.unpack_from("<h", data, place)[0] == BOOT_TIME:
            times.append(struct.unpack_from("<i", data, place + 340)[0])
    return times[-50:]


def _virtual() -> str:
    """Return the firmware's vendor and product, followed by `hypervisor` or `container` if it runs in one."""
    words = [text_in("/sys/class/dmi/id/" + name) for name in ("sys_vendor", "product_name")]
    hypervisor = " hypervisor" if re.search(r"(?m)^flags\s*:.*\bhypervisor\b", read("/proc/cpuinfo")) else ""
    container = (
        " container" if os.path.exists("/run/systemd/container") or os.path.exists("/.dockerenv") else ""
    )
    return " ".join(filter(None, words)) + hypervisor + container


@collector(seconds=20)
def programs(parameters: "Values") -> "Any":
    """Return programs that use a GPU: state, owner, processors, limits, and the requested variables.

    Programs that the probe itself runs now, such as nvidia-smi, are left out. The answer also has `stuck`,
    processes in uninterruptible sleep in two samples half a second apart, whether NVIDIA's MPS and a subnet
    manager run, and `unmapped`, why programs are left out that have a GPU only mapped; "" if they are not.
    """
    wanted = re.compile(parameters["environment"] + r"|CUDA_VISIBLE_DEVICES$|CUDA_MPS|NVIDIA_VISIBLE")
    pattern, unmapped = r"nvidia(?:\d+|-uvm)", ""
    try:
        gpus = users_of(pattern, mapped=True, seconds=MAPPED_S)
    except Failed as failed:
        gpus, unmapped = users_of(pattern), str(failed)
    holders = [pid for pid in gpus if not _is_own(text_in("/proc/" + pid + "/stat"))]
    people = People()

    def row(pid: str) -> "Values":
        return _program(pid, gpus[pid], wanted, people)

    return {
        "holders": people.rows(holders, row, PROCESSES_AT_MOST, PROGRAM_SIZE),
        "unmapped": unmapped,
        "stuck": _stuck(people),
        "mps": _runs(people, "nvidia-cuda-mps"),
        "subnet_manager": _runs(people, "opensm", "nvlsm"),
    }


def _runs(people: People, *names: str) -> bool:
    """Return whether a program runs whose name begins with one of these, and whose file is root's.

    Each process chooses its own name, and in a namespace of its own a user can mount any file under a name.
    Without root's rights the files of others are not known, and it counts. A file that root cannot look at is
    on a file system that a user has mounted (FUSE), and does not count.
    """
    for pid in filter(str.isdecimal, names_in("/proc")):
        folder = "/proc/" + pid
        if text_in(folder + "/comm").startswith(names):
            is_roots = word_of(read_or_none(folder + "/status") or "", "Uid") == "0"
            if people.ask(pid, _is_of_root, folder, names, is_roots):
                return True
    return False


def _is_of_root(folder: str, names: "tuple[str, ...]", is_roots: bool) -> bool:
    """Return whether a process of `_runs` counts, given whether it is one of root's own."""
    try:
        program, about = os.readlink(folder + "/exe"), os.stat(folder + "/exe")
        named = program.rpartition("/")[2].startswith(names) and about.st_uid == 0
        return named and (is_roots or os.path.samestat(about, os.lstat(program)))
    except PermissionError:
        return os.geteuid() != 0
    except OSError:  # it has ended
        return False


def _is_own(stat: str) -> bool:
    """Return whether the process of a line of /proc/PID/stat was started by this one."""
    return stat.rpartition(")")[2].split()[1:2] == [str(os.getpid())]


def _program(pid: str, gpus: "list[str]", wanted: "Any", people: People) -> "Values":
    """Return one process's state, owner, processors, limits, GPUs, and its variables that match `wanted`.

    Secrets among these are hidden. "" or None for a value that cannot be read.
    """
    folder = "/proc/" + pid + "/"
    words = (read_or_none(folder + "stat") or "").rpartition(")")[2].split()
    status = read_or_none(folder + "status") or ""
    limits = read_or_none(folder + "limits") or ""
    return {
        "pid": int(pid),
        "name": text_in(folder + "comm"),
        "state": words[0] if words else "",
        "ppid": int(words[1]) if len(words) > 1 else 0,
        "uid": word_of(status, "Uid"),
        "cpus": word_of(status, "Cpus_allowed_list"),
        "threads": word_of(status, "Threads"),
        "waits": text_in(folder + "wchan"),
        "gpus": gpus,
        "memlock": _limit(limits, "Max locked memory"),
        "nofile": _limit(limits, "Max open files"),
        "variables": variables_of(pid, wanted, people),
        "own_namespace": link_name(folder + "ns/pid") == link_name("/proc/self/ns/pid"),
    }


def _limit(limits: str, name: str) -> "str | None":
    """Return the soft limit of that name in /proc/PID/limits, or None."""
    found = re.search(rf"(?m)^{name}\s+(\S+)", limits)
    return found.group(1) if found else None


def _stuck(people: People) -> "list[list[str]]":
    """Return name, pid and kernel function of processes in uninterruptible sleep, unchanged for 0.5 s; at
    most `PROCESSES_AT_MOST`.
    """
    first = _uninterruptible()
    if not first:
        return []
    time.sleep(0.5)
    second = _uninterruptible()
    same = [pid for pid in first if second.get(pid) == first[pid]]
    return people.rows(same, lambda pid: [first[pid][0], pid, first[pid][1]], PROCESSES_AT_MOST)


def _uninterruptible() -> "dict[str, tuple[str, str]]":
    """Return pid -> (name, kernel function) of the processes in uninterruptible sleep (state D).

    Programs that the probe runs now are left out: nvidia-smi sleeps while the driver reads several GPUs.
    """
    found = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        text = read_or_none(path, 4096) or ""
        if text.rpartition(")")[2].startswith(" D ") and not _is_own(text):
            pid = path.split("/")[2]
            name = text.partition("(")[2].rpartition(")")[0]
            found[pid] = (name, text_in("/proc/" + pid + "/wchan"))
    return found

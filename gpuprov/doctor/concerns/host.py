"""Rules for the host: processors, memory, huge pages, limits, clock, boots."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuprov.doctor import packaging
from gpuprov.doctor.examination import Examination, age
from gpuprov.doctor.fault import Fault, listed, rule
from gpuprov.probe.facts import Missing
from gpuprov.untrusted import shell
from gpuprov.untrusted.parsing import whole_number

CLOCK_OFF_US = 100_000
"""Clock offset in microseconds: twice the limit of node_exporter's alert (50 ms that do not decrease for ten
minutes), because a single reading cannot show a decrease.
"""
MANY_BOOTS, DAY_S = 3, 86400
"""Number of boots within a day that is normal (our choice: installing a driver takes two or three)."""
SMALL_MEMLOCK_KIB = 1024 * 1024
"""Limit of locked memory that is too small for RDMA (our choice: far above the defaults of 64 KiB or
systemd's 8 MiB, and below any value set for RDMA).
"""
LITTLE_MEMORY = 0.03
"""Share of available memory to report (our choice: node_exporter warns at 10 % for 15 minutes; a single
reading needs a stricter limit).
"""
FREE_HUGE_PAGES = 0.1
"""Share of memory in unused huge pages to report (our choice)."""
SWAPPED_PAGES = 500
"""Pages per second, as in node_exporter's alert for pages that are read back from disk."""
CORRECTED_ERRORS = 1000
"""Number of corrected errors to report (our choice: vendors' thresholds differ, and not all are public)."""
OPEN_FILES = 0.9
"""Share of the system's table of open files to report; node_exporter's alert warns from 70 % for 15 minutes,
and a single reading needs a stricter limit.
"""


@rule("host.governor", "D103", source="oci-npd gcm")
def governor(seen: Examination) -> Iterator[Fault]:
    """Report power-saving frequency governors on a machine with GPUs."""
    saving = {
        name: count
        for name, count in seen.cpu.governors.items()
        if name in ("powersave", "schedutil", "ondemand", "conservative")
    }
    if not saving or not seen.has_gpus:
        return
    # The powersave governor of intel_pstate reaches the full frequency, but increases it later.
    yield Fault(
        "hint",
        f"processors run under {listed(sorted(saving))}",
        (f"scaling_governor: {', '.join(f'{name} on {count}' for name, count in saving.items())}",),
        "a core at low frequency delays the GPU that it serves",
        (shell("sudo cpupower frequency-set -g performance"),),
        "settings.tuning.governor: performance",
    )


@rule("host.cpus", "D118", source="gcm")
def processors_offline(seen: Examination) -> Iterator[Fault]:
    """Report processors that are present and offline. A risk; degraded if more than half of them are."""
    cpus = seen.raw("host_state")["cpus"]
    online, present = count_cpus(cpus["online"]), count_cpus(cpus["present"])
    if online and present and online < present:
        yield Fault(
            "degraded" if online < present / 2 else "risk",
            f"{online} of {present} processors are online",
            (f"/sys/devices/system/cpu/online: {cpus['online']}", f"present: {cpus['present']}"),
            "switched off by hand, by the kernel line (maxcpus, nosmt) or after errors",
            (shell("cat /proc/cmdline; sudo dmesg | grep -i 'cpu.*offline'"),),
        )


def count_cpus(text: str) -> int:
    """Return the number of processors in a list such as `0-3,8`; other text counts as none."""
    total = 0
    for piece in filter(None, (text or "").split(",")):
        first, _, last = piece.partition("-")
        low, high = whole_number(first), whole_number(last or first)
        if low is not None and high is not None:
            total += high - low + 1
    return total


@rule("host.memory", "D110", source="choice")
def locked_in_huge_pages(seen: Examination) -> Iterator[Fault]:
    """Report huge pages that no program uses, if they are more than `FREE_HUGE_PAGES` of all memory."""
    info = seen.meminfo
    free, size, total = info.get("HugePages_Free", 0), info.get("Hugepagesize", 0), info.get("MemTotal", 0)
    if total and free * size > FREE_HUGE_PAGES * total:
        yield Fault(
            "risk",
            f"{free * size // 1048576} GiB of {total // 1048576} GiB are set aside as huge pages and free",
            (f"/proc/meminfo: HugePages_Total {info.get('HugePages_Total')}, Free {free} of {size} KiB",),
            "programs that do not ask for huge pages cannot use that memory",
            (shell("sudo sysctl vm.nr_hugepages=0, and remove it from /etc/sysctl.d or the kernel line"),),
            "settings.tuning.sysctl: {vm.nr_hugepages: 0}",
        )


@rule("host.short_of_memory", "D109", source="imbue node-mixin open-1358 choice")
def short_of_memory(seen: Examination) -> Iterator[Fault]:
    """Report more than `SWAPPED_PAGES` swapped pages a second; otherwise less than `LITTLE_MEMORY` of the
    memory available; otherwise memory that the driver did not get.
    """
    grown = {name: by for name, by in seen.growth.items() if name in ("vm pswpin", "vm pswpout")}
    info = seen.meminfo
    total, available = info.get("MemTotal", 0), info.get("MemAvailable")
    if sum(grown.values()) > SWAPPED_PAGES:
        yield Fault(
            "degraded",
            f"memory is swapped: {sum(grown.values())} pages a second",
            tuple(f"/proc/vmstat {name[3:]}: grows by {by} a second" for name, by in grown.items()),
            "the host is short of memory; data loaders and transfers wait for the disk",
            (shell("fewer workers or smaller buffers; ps -eo rss,pid,comm --sort=-rss | head"),),
        )
    elif total and available is not None and available < LITTLE_MEMORY * total:
        yield Fault(
            "risk",
            f"{available // 1024} MiB of {total // 1024} MiB of memory are available",
            (f"/proc/meminfo: MemAvailable {available} kB",),
            "the kernel will soon kill programs",
            (shell("ps -eo rss,pid,comm --sort=-rss | head"),),
        )
    else:
        yield from _refused_to_the_driver(seen)


def _refused_to_the_driver(seen: Examination) -> Iterator[Fault]:
    """Report messages of the open module that it got no memory; none if the log could not be read."""
    try:
        lines = seen.log_lines(r"NVRM: .*NV_ERR_NO_MEMORY")
    except Missing:
        return
    if lines:
        yield Fault(
            "risk",
            f"the driver got no memory {len(lines)} times, the last {age(lines[-1].age_s)} ago",
            (lines[-1].quoted(180),),
            "the GPU's memory was full; where the GPU shares the processor's (GB10), programs and the page "
            "cache use it too",
            (
                shell("free -h; nvidia-smi"),
                shell(
                    "fewer or smaller programs; on a GB10 also: echo 1 | sudo tee /proc/sys/vm/drop_caches"
                ),
            ),
            by_users=True,
        )


@rule("host.killed", "D108", source="sichek gpud")
def killed_for_memory(seen: Examination) -> Iterator[Fault]:
    """Report programs that the kernel has killed for lack of memory. A risk."""
    lines = seen.program_lines(r"Out of memory: Killed|[Mm]emory cgroup out of memory|oom-kill:")
    killed = [line for line in lines if "Killed" in line.text] or lines
    if killed:
        group = "cgroup" in killed[-1].text
        yield Fault(
            "risk",
            f"the kernel has killed {len(killed)} programs for lack of memory, the last "
            f"{age(killed[-1].age_s)} ago",
            tuple(line.quoted(160) for line in killed[-2:]),
            "the limit of a container or a job" if group else "the machine's memory",
            (
                shell("a higher limit for the container or job")
                if group
                else shell("fewer data-loader workers, or more memory"),
            ),
        )


@rule("host.hangs", "D115", source="gpud")
def hangs(seen: Examination) -> Iterator[Fault]:
    """Report the kernel's messages about hanging tasks or processors. Degraded if the last one is less than
    an hour old, else a risk.
    """
    lines = seen.program_lines(
        r"blocked for more than \d+ seconds|soft lockup|hard LOCKUP", r"rcu.*detected.*stall"
    )
    if lines:
        recent = lines[-1].age_s < 3600
        ours = "nvidia" in " ".join(line.text for line in lines)
        yield Fault(
            "degraded" if recent else "risk",
            f"tasks or processors hang: {len(lines)} reports, the last {age(lines[-1].age_s)} ago",
            tuple(line.quoted(160) for line in lines[-3:]),
            "the NVIDIA driver is in the report" if ours else "storage, network file systems, or a driver",
            (shell("sudo dmesg | grep -A 20 'blocked for more' | tail -40"),),
        )


@rule("host.stuck", "D114", source="gpud gcm")
def stuck(seen: Examination) -> Iterator[Fault]:
    """Report processes in uninterruptible sleep at the same place of the kernel: at least three, or any in
    network storage or the NVIDIA driver. The kernel's own threads for disks do not count.

    Also the first program of each user whose variables the kernel does not tell.
    """
    for program in {each.uid: each for each in reversed(seen.programs) if each.is_kept}.values():
        yield Fault(
            "risk",
            f"the kernel does not tell the variables of process {program.pid} ({program.name}) of user "
            f"{program.uid}",
            (f"/proc/{program.pid}/environ: no answer",),
            "it waits with its memory locked, as for a file system of its user (FUSE); `ps` waits for it",
            (shell("sudo kill -9 {}", program.pid),),
            by_users=True,
        )
    places: dict[str, list[str]] = {}
    for name, pid, place in seen.raw("programs")["stuck"]:
        if not str(name).startswith(("kworker", "jbd2", "md", "kswapd", "usb-storage")):
            places.setdefault(str(place), []).append(f"{name} ({pid})")
    for place, names in places.items():
        if len(names) >= 3 or re.search(r"nfs|rpc|nvidia|nv_|lustre|ceph|fuse", place):
            yield Fault(
                "degraded",
                f"{len(names)} processes wait in the kernel ({place}): {listed(names)}",
                (f"/proc/PID/stat: state D twice; wchan {place}",),
                "storage that does not answer"
                if re.search(r"nfs|rpc|lustre|ceph|fuse|io", place)
                else "a driver hangs",
                (
                    shell(
                        "df -h (does it hang?); mount | grep -E 'nfs|lustre|ceph'; sudo cat /proc/PID/stack"
                    ),
                ),
            )


@rule("host.machine_checks", "D117", source="gcm choice")
def machine_checks(seen: Examination) -> Iterator[Fault]:
    """Report errors of processors and of the host's memory; corrected ones only above `CORRECTED_ERRORS`.
    Degraded for uncorrected errors of memory, else a risk.
    """
    uncorrected = {
        name: count
        for name, count in seen.counters.items()
        if name.startswith("edac") and "ue_count" in name and count
    }
    corrected = sum(
        count for name, count in seen.counters.items() if name.startswith("edac") and "ce_count" in name
    )
    lines = seen.log_lines(r"Machine [Cc]heck|Hardware Error") if "kernel_log" not in seen.missing else []
    if uncorrected or lines:
        yield Fault(
            "degraded" if uncorrected else "risk",
            "the host's memory or processors report errors",
            (
                *(f"{name}: {count}" for name, count in uncorrected.items()),
                *(line.quoted(140) for line in lines[-2:]),
            ),
            "a memory module or a processor is failing",
            (shell("ras-mc-ctl --summary; the BMC's event log"), shell("have the module replaced")),
        )
    elif corrected > CORRECTED_ERRORS:
        yield Fault(
            "risk",
            f"the host's memory has corrected {corrected} errors",
            ("/sys/devices/system/edac/mc: ce_count",),
            "a memory module degrades",
            (shell("ras-mc-ctl --summary"),),
        )


@rule("host.limits", "D106", "D107", source="ncclt-206 torch-doc choice")
def limits(seen: Examination) -> Iterator[Fault]:
    """Report limits of locked memory below `SMALL_MEMLOCK_KIB`, on machines with RDMA: of the first such
    program (degraded), and systemd's default for services (a risk).
    """
    for program in seen.programs:
        lock = whole_number(program.memlock or "")
        if seen.hcas and lock is not None and lock < SMALL_MEMLOCK_KIB * 1024:
            yield Fault(
                "degraded",
                f"process {program.pid} ({program.name}) may lock {lock // 1024} KiB of memory",
                (f"/proc/{program.pid}/limits: Max locked memory {lock}",),
                "RDMA registers memory by locking it: ibv_reg_mr fails with Cannot allocate memory",
                (shell("ulimit -l unlimited for the login or service, then restart it"),),
                "settings.tuning.limits.memlock: unlimited",
            )
            break
    soft = seen.limits.systemd.get("DefaultLimitMEMLOCKSoft") or seen.limits.systemd.get(
        "DefaultLimitMEMLOCK"
    )
    size = whole_number(soft or "")
    if seen.hcas and size is not None and size < SMALL_MEMLOCK_KIB * 1024:
        yield Fault(
            "risk",
            f"services may lock {size // 1024} KiB of memory, and RDMA is here",
            (f"systemctl show: DefaultLimitMEMLOCKSoft={soft}",),
            "NCCL over InfiniBand fails: Call to ibv_reg_mr failed",
            (
                shell(
                    "DefaultLimitMEMLOCK=infinity in /etc/systemd/system.conf.d/limits.conf; "
                    "sudo systemctl daemon-reexec"
                ),
                shell("logins: '* - memlock unlimited' in /etc/security/limits.d/memlock.conf"),
            ),
            "settings.tuning.limits.memlock: unlimited",
        )


@rule("host.files", "D107", source="torch-doc node-mixin choice")
def open_files(seen: Examination) -> Iterator[Fault]:
    """Report that the system-wide table of open files is full to more than `OPEN_FILES`."""
    words = seen.raw("host_state")["file_nr"].split()
    if len(words) == 3 and int(words[2]) and int(words[0]) > OPEN_FILES * int(words[2]):
        yield Fault(
            "degraded",
            f"{words[0]} of {words[2]} open files",
            (f"/proc/sys/fs/file-nr: {' '.join(words)}",),
            "programs fail with Too many open files in system",
            (shell("sudo sysctl fs.file-max=2097152"),),
            "settings.tuning.sysctl: {fs.file-max: 2097152}",
        )


@rule("host.clock", "D116", source="node-mixin choice")
def clock(seen: Examination) -> Iterator[Fault]:
    """Report a clock that is off by more than `CLOCK_OFF_US`, or (not on virtual machines) that no service
    sets; nothing in a container.
    """
    result = seen.raw("host_state")["clock"]
    if result.get("state") is None or seen.in_container:
        return
    services = (
        "chrony.service",
        "chronyd.service",
        "systemd-timesyncd.service",
        "ntp.service",
        "ntpsec.service",
    )
    runs = [name for name in services if (unit := seen.units.get(name)) and unit.active]
    if abs(int(result["offset_us"])) > CLOCK_OFF_US:
        yield Fault(
            "degraded",
            f"the clock is {abs(int(result['offset_us'])) / 1e6:.1f} s off",
            (f"adjtimex: offset {result['offset_us']} us",),
            "logs of several nodes cannot be compared; certificates and rendezvous may fail",
            (shell("sudo chronyc makestep   (or: sudo systemctl restart systemd-timesyncd)"),),
        )
    elif result["unsynchronised"] and not runs and not seen.virtual:
        yield Fault(
            "risk",
            "no time service sets the clock",
            ("adjtimex: unsynchronised", f"none of {listed(list(services), 5)} runs"),
            "it drifts; TLS, logs and rendezvous of several nodes depend on it",
            (
                packaging.install(seen, "chrony"),
                shell("sudo systemctl enable --now chrony"),
            ),
        )


@rule("host.boots", "D119", source="oci-hc choice")
def boots(seen: Examination) -> Iterator[Fault]:
    """Report a machine that booted more than `MANY_BOOTS` times within a day."""
    times = seen.raw("host_state")["boots"]
    if not times:
        return
    now = seen.collected.timestamp()
    recent = [stamp for stamp in times if now - stamp < DAY_S]
    if len(recent) > MANY_BOOTS:
        yield Fault(
            "risk",
            f"{len(recent)} boots within a day",
            ("/var/log/wtmp: " + ", ".join(f"{age(now - stamp)} ago" for stamp in recent[-4:]),),
            "an administrator reboots it, or it is unstable",
            (shell("journalctl --list-boots; the BMC's event log"),),
        )


@rule("host.huge_page_policy", "D111", source="project")
def transparent_huge_pages(seen: Examination) -> Iterator[Fault]:
    """Report transparent huge pages off on Grace, which they slow down."""
    if seen.hugepages == "never" and any(
        "GH200" in (gpu.name or "") or "GB" in (gpu.name or "") for gpu in seen.smi.gpus
    ):
        yield Fault(
            "hint",
            "transparent huge pages are off on a Grace machine",
            ("/sys/kernel/mm/transparent_hugepage/enabled: never",),
            "memory that GPU and processor share is mapped in small pages",
            (shell("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"),),
            "settings.tuning.transparent_hugepages: madvise",
        )

"""Rules for storage: space, failing disks, network file systems that do not answer, shared memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuprov.doctor.builds import cause_of
from gpuprov.doctor.concerns.board import INSTALL, only_flavour
from gpuprov.doctor.examination import LOG_LINE, Examination, age
from gpuprov.doctor.fault import Fault, listed, rule
from gpuprov.doctor.reference import catalog
from gpuprov.untrusted import shell

if TYPE_CHECKING:
    from gpuprov.catalog.records import KnownIssue

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - looked at, not written
ARRAY = re.compile(r"\[[U_]{1,400}\]")
"""The disks of an array in /proc/mdstat, `_` for a missing one; Linux has at most 384 in an array."""
RELEASE = re.compile(r"\d{1,4}(?:\.\d{1,4}){1,3}")
"""A release of nvidia-fs, as DKMS names it."""
FULL, INODES_FULL = 0.95, 0.97
"""Used shares of space and inodes at which node_exporter's alerts warn (5 % left) and are critical (3 %)."""
ROOM_MIB = 20 * 1024
"""Free space in MiB that is always sufficient (our choice: a share means little on disks of terabytes)."""
SMALL_SHM_MIB = 256
"""Minimum of shared memory in MiB (our choice: four times Docker's default of 64 MiB, which data loaders
fill; PyTorch requires more without a number).
"""


@rule("storage.full", "D112", source="imbue nebius node-mixin choice")
def full(seen: Examination) -> Iterator[Fault]:
    """Report file systems that are full to more than `FULL` with less than `ROOM_MIB` free, or nearly without
    inodes (`INODES_FULL`); not read-only ones, nor tmpfs and overlay other than /.

    Degraded for / or below 200 MiB, else a risk.
    """
    for point, kind, total, free, inodes, free_inodes, mode in seen.raw("host_state")["space"]:
        if (kind in ("tmpfs", "overlay") and point != "/") or mode == "ro" or not total:
            continue
        used, inodes_used = 1 - free / total, 1 - free_inodes / inodes if inodes else 0
        if used > FULL and free < ROOM_MIB:
            yield Fault(
                "degraded" if free < 200 or point == "/" else "risk",
                f"{point} is {used:.0%} full: {free} MiB of {total} MiB are free",
                (f"statvfs {point}: {free} MiB free",),
                "checkpoints, images, logs, caches of packages or models",
                (
                    shell("sudo du -xh --max-depth=2 {} | sort -h | tail", point),
                    shell("docker system df; sudo journalctl --disk-usage"),
                ),
            )
        elif inodes_used > INODES_FULL:
            yield Fault(
                "risk",
                f"{point} has {free_inodes} of {inodes} inodes left",
                (f"statvfs {point}: {free_inodes} inodes free",),
                "very many small files; writing fails with No space left on device",
                (shell("sudo du --inodes -x --max-depth=2 {} | sort -n | tail", point),),
            )


@rule("storage.shm", "D104", "D105", source="torch-doc nccl-doc choice")
def small_shared_memory(seen: Examination) -> Iterator[Fault]:
    """Report /dev/shm of less than `SMALL_SHM_MIB`, usually in a container, or with less than 2 % free.
    Degraded in the second case, else a risk.
    """
    for point, kind, total, free, *_ in seen.raw("host_state")["space"]:
        if point == SHARED_MEMORY and kind == "tmpfs" and (total < SMALL_SHM_MIB or free < 0.02 * total):
            yield Fault(
                "degraded" if free < 0.02 * total else "risk",
                f"{point} has {free} MiB free of {total} MiB",
                (f"statvfs /dev/shm: {free} of {total} MiB",),
                "data loaders end with a bus error, NCCL: Error while creating shared memory segment",
                (
                    shell("start the container with --shm-size=1g or --ipc=host")
                    if seen.in_container
                    else shell("sudo mount -o remount,size=50% /dev/shm   (and its line in /etc/fstab)")
                    if total < SMALL_SHM_MIB
                    else shell("ls -la /dev/shm   (files of ended programs can be removed)"),
                ),
                "settings.containers.shm_size: 1g",
            )


@rule("storage.disk_errors", "D113", source="gpud")
def disk_errors(seen: Examination) -> Iterator[Fault]:
    """Report disks that time out or fail, from the kernel's log: the timeout that a disk states is none.
    Degraded if the last message is less than a day old, else a risk.
    """
    lines = seen.log_lines(
        r"nvme\d+.*(?:timeout(?! set to)|reset controller|controller is down)",
        r"I/O error|critical (?:medium|target) error|EXT4-fs error|Remounting filesystem read-only",
        r"XFS .*(?:[Cc]orruption|Shutting down|shut down)",
    )
    lines = [line for line in lines if not re.search(r"sr0|fd0|loop\d", line.text)]
    if lines:
        yield Fault(
            "degraded" if lines[-1].age_s < 24 * 3600 else "risk",
            f"a disk fails: {len(lines)} messages, the last {age(lines[-1].age_s)} ago",
            tuple(line.quoted(160) for line in lines[-3:]),
            "a failing disk, its cable or controller; the GPU waits for it",
            (shell("sudo smartctl -a /dev/DEVICE   (or: sudo nvme smart-log /dev/nvmeN)"),),
        )


@rule(
    "storage.read_only",
    "D113",
    source="gpud",
    after=("storage.disk_errors",),
    health={"degraded": "isolate"},
)
def read_only(seen: Examination) -> Iterator[Fault]:
    """Report an ext3, ext4, XFS or Btrfs file system with errors=remount-ro that is mounted read-only."""
    for point, mount in seen.mounts.items():
        writable = ("ext4", "xfs", "btrfs", "ext3")
        if mount.filesystem in writable and "ro" in mount.options and "errors=remount-ro" in mount.options:
            yield Fault(
                "degraded",
                f"{point} is read-only",
                (f"/proc/mounts: {mount.source} {point} {','.join(mount.options)[:80]}",),
                "the kernel remounts it after disk errors",
                (
                    shell("sudo dmesg | grep -iF {}", mount.source.rpartition("/")[2]),
                    shell("sudo fsck, from a rescue system"),
                ),
            )


@rule("storage.raid", "D113", source="gpud")
def degraded_array(seen: Examination) -> Iterator[Fault]:
    """Report a disk array that lacks a disk, by /proc/mdstat."""
    lines = (str(line)[:LOG_LINE] for line in seen.raw("host_state")["mdstat"])
    bad = [line for line in lines if any("_" in disks for disks in ARRAY.findall(line))]
    if bad:
        yield Fault(
            "degraded",
            "a disk is missing from an array",
            tuple(f"/proc/mdstat: {line[:120]}" for line in bad),
            "a disk has failed; the next failure loses data",
            (shell("cat /proc/mdstat; sudo mdadm --detail /dev/md0"),),
        )


@rule(
    "storage.nvidia_fs",
    "D134",
    source="project gds-35 gds-80",
    after=("driver.symbols", "driver.vermagic", "driver.build_failed"),
)
def no_direct_storage(seen: Examination) -> Iterator[Fault]:
    """Report a source of nvidia-fs in DKMS that is not loaded: not built for the running kernel, with the
    cause by the catalog's known failures or by the log of the build, or built for open modules only.
    """
    sources = [each for each in seen.dkms if each.name == "nvidia-fs"]
    if not sources or seen.in_container or "nvidia_fs" in seen.loaded_modules:
        return
    built = [each for each in sources if each.state == "installed" and each.kernel == seen.kernel]
    if built:
        yield from _needs_open_modules(seen, built[-1].version)
        return
    newest = sources[-1].version
    logs = seen.raw("dkms_log").items()
    stated = cause_of(line for path, lines in logs if "/nvidia-fs/" in path for line in lines)
    known = _known_failure(newest, seen.kernel)
    yield Fault(
        "degraded",
        f"nvidia-fs {newest} is not built for {seen.kernel}: no GPUDirect Storage",
        (
            f"/var/lib/dkms: nvidia-fs {newest} is {sources[-1].state} {sources[-1].kernel}".rstrip(),
            *([f"make.log: {stated[1]}"] if stated else []),
            *([f"catalog: {known.id}, {known.condition}"] if known else []),
        ),
        f"{known.effect}; take {known.remedy}"
        if known
        else stated[0].text
        if stated
        else "the build failed, or was never tried",
        (
            *(stated[0].mend if stated and not known else ()),
            shell("sudo dkms install nvidia-fs/{} -k {}", newest, seen.kernel),
            shell("sudo modprobe nvidia_fs"),
        ),
    )


def _needs_open_modules(seen: Examination, release: str) -> Iterator[Fault]:
    """Yield a fault if a release of nvidia-fs cannot be loaded with the proprietary module that is loaded."""
    from gpuprov.catalog.rules.storage import OPEN_FROM, flavour_fits
    from gpuprov.catalog.version import version

    driver = seen.loaded_driver
    if driver is None or driver.open or not RELEASE.fullmatch(release):
        return
    if flavour_fits(version(release), "proprietary"):
        return
    older = any(only_flavour(gpu) == "proprietary" for gpu in seen.pci_gpus)
    yield Fault(
        "degraded",
        f"nvidia-fs {release} is built and cannot be loaded with proprietary modules: no GPUDirect Storage",
        (
            f"/var/lib/dkms: nvidia-fs {release} is installed for {seen.kernel}; /proc/modules: no nvidia_fs",
            f"/proc/driver/nvidia/version: {driver.version}, proprietary",
        ),
        f"from {OPEN_FROM} on nvidia-fs uses symbols that only NVIDIA's open modules may give to it",
        (shell("install a release of nvidia-fs before {}: this GPU has no open modules", str(OPEN_FROM)),)
        if older
        else (INSTALL["open"], shell("sudo reboot")),
        "" if older else "stack.module: open",
    )


def _known_failure(release: str, uname: str) -> KnownIssue | None:
    """Return the catalog's record of a failed build of nvidia-fs against a kernel, or None."""
    from gpuprov.catalog.rules.issues import build_outcome, kernel_version
    from gpuprov.catalog.rules.storage import failed_builds
    from gpuprov.catalog.version import version

    kernel = kernel_version(uname)
    if kernel is None or not RELEASE.fullmatch(release):
        return None
    known = failed_builds(catalog().known_issues, version(release))
    return next((each for each in known if build_outcome(each, kernel) == "fails"), None)


@rule("storage.network", "D114", source="gpud gcm")
def network_storage(seen: Examination) -> Iterator[Fault]:
    """Report NFS servers that do not answer, by the log; a hint if all answer again."""
    events = seen.log_lines(r"nfs: server .* (?:not responding|OK)")
    last: dict[str, str] = {}
    ages: dict[str, float] = {}
    for line in events:
        result = re.search(r"nfs: server (\S+) (not responding|OK)", line.text)
        if result:
            last[result[1]], ages[result[1]] = result[2], line.age_s
    away = [server for server, state in last.items() if state == "not responding"]
    back = [server for server, state in last.items() if state == "OK"]
    if away:
        yield Fault(
            "degraded",
            f"NFS server {listed(away)} has not answered for {age(ages[away[0]])}",
            tuple(line.quoted(120) for line in events[-2:]),
            "programs that read from it wait, and their GPUs idle",
            (shell("ping {}; showmount -e {}", away[0], away[0]),),
        )
    elif back:
        yield Fault(
            "hint",
            f"NFS server {listed(back)} did not answer for a while, {age(ages[back[0]])} ago",
            tuple(line.quoted(120) for line in events[-2:]),
            "jobs waited during that time",
            (shell("check the server's load at that time"),),
        )

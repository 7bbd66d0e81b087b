"""One node on this machine: an overlay mount, control groups, and systemd-nspawn in a loop.

Whether a node runs is read from its control group, never from a pid file.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from gpuprov.errors import NodeFailed
from gpuprov_lab.host import MACHINE_LOCK, execute, locked, remove_tree

# systemd-nspawn's folders and locks of running systems
NSPAWN = Path("/run/systemd/nspawn")
# A systemd uses about six inotify instances; the kernel's default limit for root is exhausted by twenty
# nodes.
INSTANCES, INSTANCES_AT_LEAST = Path("/proc/sys/fs/inotify/max_user_instances"), 4096
# Processor time of all nodes together, as that of eight processes outside. By default they share that of one,
# and on a busy machine their programs miss time limits.
WEIGHTS = {"cpu.shares": 8 * 1024, "cpu.weight": 8 * 100}
# systemd-nspawn exits with 133 when the system inside requests a reboot (its manual page, "Exit status").
SUPERVISOR = """\
for group in $CONTROL_GROUPS; do echo $$ >"$group/cgroup.procs" || exit; done
while :; do
    "$@"
    [ $? -eq 133 ] || exit
done
"""


def boot_command(
    root: Path, machine: str, hostname: str, namespace: Path, extra: Sequence[str] = ()
) -> list[str]:
    """Return the command that boots the system in `root` in the foreground.

    Args:
        root: its merged root.
        machine: name that is unique on this machine.
        hostname: its host name.
        namespace: path of its network namespace.
        extra: further arguments of systemd-nspawn (the GPU simulator's).
    """
    uplink = "replace-uplink" if Path("/run/systemd/resolve/resolv.conf").exists() else "replace-host"
    return [
        *("systemd-nspawn", "--quiet", "--boot", f"--directory={root}"),
        *("--register=no", "--keep-unit", f"--machine={machine}", f"--hostname={hostname}"),
        f"--network-namespace-path={namespace}",
        # Permissions that root of a real server has and a container's lacks: dockerd, eBPF, keyrings.
        *("--capability=all", "--system-call-filter=add_key keyctl bpf"),
        *(f"--resolv-conf={uplink}", "--timezone=off", "--link-journal=no", "--console=read-only"),
        *extra,
    ]


def mount(root: Path, layers: Sequence[Path], upper: Path, work: Path) -> None:
    """Mount a node's root: its own layer above read-only ones, topmost first.

    All three folders get mode 755, missing ones are created, and `work` is emptied.

    `volatile`: no data needs to survive a power failure, so no write waits for the disk. `redirect_dir`: a
    folder of an image can be renamed, as Docker does at each start.

    Args:
        layers: read-only layers.
        upper: folder of the node's own layer.
        work: overlayfs's folder for unfinished changes.
    """
    remove_tree(work)  # it carries the mark of an earlier volatile mount, which prevents another
    for folder in (root, upper, work):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
    lower = ":".join(map(str, layers))
    options = f"lowerdir={lower},upperdir={upper},workdir={work},volatile,redirect_dir=on"
    execute(["mount", "-t", "overlay", "gpuprov-lab", "-o", options, root])


def unmount_below(folder: Path) -> None:
    """Unmount everything at and below a folder, deepest first; NodeFailed if it is in use."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    below = [point for point in points if Path(point).is_relative_to(folder)]
    for point in sorted(below, key=len, reverse=True):
        execute(["umount", point])


def start(command: Sequence[str], machine: str, console: Path) -> None:
    """Start a node's supervisor as a detached process in new control groups, and wait for it up to 5 s; its
    console is appended to `console`.

    The kernel's limit of inotify instances is raised, and stays so. Groups and limit are changed under the
    machine's lock.

    Raises:
        NodeFailed: the supervisor does not run.
    """
    with locked(MACHINE_LOCK):
        groups = _make_groups(machine)
        if int(INSTANCES.read_text()) < INSTANCES_AT_LEAST:  # stays raised: an upper bound costs nothing
            INSTANCES.write_text(str(INSTANCES_AT_LEAST))
    with console.open("ab") as output:
        subprocess.run(
            ["setsid", "--fork", "sh", "-c", SUPERVISOR, f"gpuprov-lab-{machine}", *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=True,
            env={**os.environ, "CONTROL_GROUPS": " ".join(map(str, groups))},
        )
    deadline = time.monotonic() + 5
    while not runs(machine):
        if time.monotonic() > deadline:
            raise NodeFailed(f"node {machine} did not start", do=f"see {console}")
        time.sleep(0.005)


def runs(machine: str) -> bool:
    """Return whether a node's supervisor runs; without it, remaining processes are not a node."""
    return bool(_members(_groups(machine)[-1]))


def processes(machine: str) -> set[int]:
    """Return the process ids of a node, including its supervisor's."""
    folders = (Path(folder) for group in _groups(machine) for folder, _, _ in os.walk(group))
    return {pid for folder in folders for pid in _members(folder)}


def _members(group: Path) -> set[int]:
    """Return the process ids in a control group, without the groups below it; empty if it does not exist."""
    try:
        return {int(pid) for pid in (group / "cgroup.procs").read_text().split()}
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV):  # the group is gone, or disappears during the read
            return set()
        raise


def terminate(machine: str) -> None:
    """Request an orderly shutdown from a node's systemd, without waiting for it."""
    for pid in processes(machine):
        if _name(pid) == "systemd-nspawn":
            os.kill(pid, signal.SIGTERM)


def await_end(machine: str, timeout: float) -> None:
    """Wait until the supervisor of a node that is shutting down has ended; other processes can remain.

    Raises:
        NodeFailed: it still runs after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while runs(machine):
        if time.monotonic() > deadline:
            raise NodeFailed(
                f"node {machine} did not shut down within {timeout:.0f} s", do="see its console.log"
            )
        time.sleep(0.02)


def kill(machine: str, root: Path) -> None:
    """Kill a node in any state, wait until its processes are gone, and remove its control groups and the
    files that systemd-nspawn keeps about it in /run.

    Its root and layers stay. Call it before the root is unmounted: nspawn's lock file has the root's inode.

    Raises:
        NodeFailed: a process survives for 30 s.
    """
    deadline = time.monotonic() + 30
    while not _gone(machine):
        if time.monotonic() > deadline:
            raise NodeFailed(f"processes of node {machine} survive SIGKILL: {sorted(processes(machine))}")
        for pid in processes(machine):
            _kill_process(pid)
        time.sleep(0.01)
    remove_tree(NSPAWN / "propagate" / machine)
    if root.is_mount():
        place = root.stat()
        (NSPAWN / "locks" / f"inode-{place.st_dev}:{place.st_ino}").unlink(missing_ok=True)


def _gone(machine: str) -> bool:
    """Return whether no process of a node runs; then its control groups are removed too, under the machine's
    lock. If one of these is still busy, return False.
    """
    if processes(machine):
        return False
    with locked(MACHINE_LOCK):
        try:
            _remove_groups(machine)
        except OSError as error:
            if error.errno != errno.EBUSY:  # a process that is still being reaped
                raise
            return False
    return True


def _kill_process(pid: int) -> None:
    """Kill a process; it is no error if it has ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # it ended in the meantime
        return


def _name(pid: int) -> str:
    """Return the name of a process; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends between open and read
        return ""


def _hierarchies() -> list[Path]:
    """Return every hierarchy of control groups: one on a unified machine, many on a hybrid one."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return [Path(fields[1]) for fields in mounts if fields[2] in ("cgroup", "cgroup2")]


def _groups(machine: str) -> list[Path]:
    """Return the paths of a node's control groups, one in each hierarchy, existing or not."""
    return [hierarchy / "gpuprov-lab" / machine for hierarchy in _hierarchies()]


def _make_groups(machine: str) -> list[Path]:
    """Create a node's control group in each hierarchy, and return them; existing ones are kept.

    The lab's parent group gets `WEIGHTS`, and in control groups v1 all processors of the machine.
    """
    groups = _groups(machine)
    for group in groups:
        group.parent.mkdir(exist_ok=True)
        inherit = group.parent / "cgroup.clone_children"
        if (group.parent / "cpuset.cpus").exists() and inherit.exists():
            # A cpuset of cgroup v1 starts without processors, and then accepts no process.
            for name in ("cpuset.cpus", "cpuset.mems"):
                (group.parent / name).write_text((group.parent.parent / name).read_text())
            inherit.write_text("1")
        for name, weight in WEIGHTS.items():
            if (group.parent / name).exists():
                (group.parent / name).write_text(str(weight))
        group.mkdir(exist_ok=True)
    return groups


def _remove_groups(machine: str) -> None:
    """Remove a node's control groups, and the lab's parent groups if they are empty then.

    Raises:
        OSError: a process is still in one of them.
    """
    for group in _groups(machine):
        if not group.exists():
            continue
        for folder, _, _ in os.walk(group, topdown=False):
            Path(folder).rmdir()
        if not any(entry.is_dir() for entry in group.parent.iterdir()):
            group.parent.rmdir()

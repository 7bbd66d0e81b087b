# GNU General Public License v3.0 or later (see LICENSE)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Running containers, as their engines list them. An engine that does not answer may have some.

Runs on the node: Python 3.6 to 3.13 and its standard library.
"""

import glob
import json
import os
from typing import NamedTuple

from gpuprov_node import MISSING, TIMED_OUT, run

ANSWER_S = 20
"""Seconds within which a daemon has to answer."""
DOCKER = ("docker", "--host", "unix:///run/docker.sock")  # independent of DOCKER_HOST
POD = "io.kubernetes.pod.name"
PROCESSES = "/proc/[0-9]*"
ROOT = 0
"""User whose processes count."""
ENDED = ("configured", "created", "exited", "stopped")
"""States of Podman's containers without a process."""


class Silent(Exception):
    """Failure of a program to answer; the text names the program and its status."""


class Container(NamedTuple):
    """A container of containerd: namespace with the pod's or its own name, and whether it has GPUs."""

    name: str
    gpus: bool


def ask(*argv: str) -> str:
    """Return the standard output of a program.

    Raises:
        Silent: it failed, is missing, or did not answer within `ANSWER_S`.
    """
    status, said = run(*argv, seconds=ANSWER_S)
    if status:
        words = [word for word in argv if word.isalpha()]
        how = {
            MISSING: f"could not run: {argv[0]} is not installed",
            TIMED_OUT: f"gave no answer in {ANSWER_S} s",
        }.get(status, f"exited with {status}")
        raise Silent(f"`{' '.join(words)}` {how}")
    return said


def has_process(unit: str) -> bool:
    """Return whether systemd states a main process for a service; False for an unknown unit.

    In a tree that is not booted systemctl prints nothing, which is False, too.

    Raises:
        Silent: systemd does not answer.
    """
    return ask("systemctl", "show", "--value", "--property=MainPID", unit).strip() not in ("0", "")


def of_docker() -> "list[str]":
    """Return the sorted names of Docker's running containers; empty if its service does not run.

    Raises:
        Silent: the daemon does not answer.
    """
    if not has_process("docker.service"):
        return []
    return sorted(ask(*DOCKER, "ps", "--format", "{{.Names}}").split())


def kept_by_docker() -> bool:
    """Return whether containers keep running during a restart of the daemon (its option live-restore).

    False if the daemon does not answer.
    """
    return run(*DOCKER, "info", "--format", "{{.LiveRestoreEnabled}}", seconds=ANSWER_S) == (0, "true\n")


def of_podman() -> "list[str]":
    """Return the sorted names of root's containers of Podman that have a process: also paused ones.

    Each container has a process conmon. Without one Podman is not asked: it would create its store.

    Raises:
        Silent: it does not answer, or prints no list of containers.
    """
    if not _runs("conmon"):
        return []
    # Without --all Podman leaves out containers that are paused or about to stop.
    said = ask("podman", "ps", "--all", "--format=json")
    try:
        rows = json.loads(said)
        return sorted(name for row in rows if row["State"] not in ENDED for name in row["Names"])
    except (ValueError, LookupError, TypeError):
        raise Silent("`podman ps` printed no list of containers") from None


def _runs(name: str) -> bool:
    """Return whether root has a process of a program, also of one that a new package has replaced.

    A process's own name does not count: any user can choose it, also for a program with root's rights.
    """
    for folder in glob.glob(PROCESSES):
        try:
            program = os.path.basename(os.readlink(folder + "/exe"))
            if program in (name, name + " (deleted)") and os.stat(folder).st_uid == ROOT:
                return True
        except OSError:
            continue  # it has ended
    return False


def of_containerd() -> "list[Container]":
    """Return containerd's running containers in all namespaces, including those of Docker; sorted.

    Empty if its service does not run.

    Raises:
        Silent: the daemon does not answer.
    """
    if not has_process("containerd.service"):
        return []
    found = []
    for namespace in ask("ctr", "namespaces", "list", "--quiet").split():
        for line in ask("ctr", "--namespace", namespace, "tasks", "list").splitlines()[1:]:
            container, pid, status = line.split()[:3]
            if status != "STOPPED":
                result = json.loads(ask("ctr", "--namespace", namespace, "containers", "info", container))
                name = (result.get("Labels") or {}).get(POD, container[:12])
                devices = glob.glob(f"/proc/{pid}/root/dev/nvidia[0-9]*")
                found.append(Container(f"{namespace}/{name}", bool(devices)))
    return sorted(found)


def kept_by_containerd() -> bool:
    """Return whether containers keep running during a restart: systemd then kills only the daemon itself.

    True with `KillMode=process` of its unit; False if systemd does not answer.
    """
    shown = run("systemctl", "show", "--value", "--property=KillMode", "containerd.service")
    return shown == (0, "process\n")

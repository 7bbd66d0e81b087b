"""`host.podman_engine`: Podman's defaults for containers, and a test container of root and of a user.

testinfra's own `host.podman` knows one container by name.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

from gpuprov.errors import NodeFailed
from gpuprov.untrusted.parsing import read_json
from gpuprov.verify.observers.base import Observed
from gpuprov.verify.observers.containers import (
    KILLED,
    LIMITED,
    SAYS,
    SHELL,
    TRIAL_S,
    Inside,
    not_ended,
    parse_inside,
)

# All files are on tmpfs in a mount namespace, which ends with the command: nothing of them remains. Podman's
# locks are in /dev/shm, where any user can create their file first.
STORE = (
    "mount -t tmpfs -o mode=755 gpuprov /tmp && mount -t tmpfs -o mode=1777,nosuid,nodev gpuprov /dev/shm"
    " && cd /tmp && mkdir -p user/fs/proc user/fs/sys user/fs/dev"
)
FILL = f"{SHELL} | tar -x -C /tmp/user/fs"
PODMAN = "podman --root /tmp/store --runroot /tmp/run --tmpdir /tmp/libpod --storage-driver vfs"
CONTAINER = '--rm --network none %s --rootfs /tmp/user/fs /bin/sh -c "$1"'
# conmon and the container leave the process group, and end with the first process of their namespace.
ENDING = f"{LIMITED} --foreground {TRIAL_S} unshare --mount --pid --fork --kill-child --mount-proc"
# `podman create` leaves no process. With a network it would wait for a lock that any user can hold. It would
# take cgroupfs for the default if process 1 were not systemd.
DEFAULTS = (
    f"{LIMITED} {TRIAL_S} unshare --mount sh -c '{STORE}"
    f" && {PODMAN} create --network none --name trial --rootfs /tmp/user/fs /bin/sh >id"
    f" && {PODMAN} inspect trial'"
)
GROUP = "gpuprov-verify"
"""Control group of root's container."""
# systemd would look for the numbers of processes outside their namespace, and move others.
GROUPED = f"--cgroup-manager cgroupfs run --cgroups enabled --cgroup-parent /{GROUP}"
UNGROUP = (
    f'find /sys/fs/cgroup -depth -type d "(" -name {GROUP} -o -path "*/{GROUP}/*" ")"'
    " -exec rmdir {} + 2>/dev/null"
)
# After a time limit the last processes end a moment later than `timeout`.
TRIAL = (
    f"{ENDING} sh -c '{STORE} && {FILL} && {PODMAN} {GROUPED} {CONTAINER}' sh '{SAYS}'; code=$?;"
    f" [ $code = 0 ] || sleep 1; {UNGROUP}; exit $code"
)
USER, IDS = 2_000_000_000, 65536
"""Number of a user that no system assigns, and how many more its containers get (systemd's UIDS-GIDS)."""
# The user exists in these namespaces only; Podman's process that keeps the user's namespaces ends with them.
ACCOUNT = (
    "mkdir /tmp/etc /tmp/work"
    " && mount -t overlay -o lowerdir=/etc,upperdir=/tmp/etc,workdir=/tmp/work gpuprov /etc"
    f" && echo gpuprov-verify:x:{USER}:{USER}::/tmp/user:/bin/sh >>/etc/passwd"
    f" && echo gpuprov-verify:x:{USER}: >>/etc/group"
    f" && echo gpuprov-verify:{USER + 1}:{IDS} | tee -a /etc/subuid >>/etc/subgid"
    f" && chown -R {USER}:{USER} /tmp/user"
)
AS_USER = (
    f"setpriv --reuid {USER} --regid {USER} --clear-groups"
    " env -i PATH=$PATH LC_ALL=C HOME=/tmp/user XDG_RUNTIME_DIR=/tmp/user"
)
CLOSED = (
    "for each in /etc/passwd /etc/group /etc/subuid /etc/subgid /etc/hosts /etc/resolv.conf"
    " /etc/containers/policy.json /etc/containers/*.conf /etc/containers/containers.conf.d/*.conf;"
    ' do [ ! -e "$each" ] ||'
    f" setpriv --reuid {USER} --regid {USER} --clear-groups"
    ' test -r "$each" || echo "$each"; done'
)
"""Commands that print files which Podman of a user reads, and only root can."""
FORBIDDING = "/proc/sys/kernel/unprivileged_userns_clone /proc/sys/user/max_user_namespaces"
USERS_TRIAL = (
    f'off=$(grep -lx 0 {FORBIDDING} 2>/dev/null); if [ -n "$off" ]; then echo forbidden by $off; else'
    f" {ENDING} sh -c '{STORE} && {FILL} && {ACCOUNT}"
    f" && {AS_USER} podman --storage-driver vfs run {CONTAINER}' sh '{SAYS}'; fi"
)
NOTHING, CDI = "", "--device nvidia.com/gpu=all"
"""Options of a container: none, all GPUs by the Container Device Interface."""
JSON_BYTES = 1 << 20
"""Maximum size of Podman's JSON; `podman inspect` prints some 10 kB."""
UNLIMITED = (-1, (1 << 64) - 1)


class Podman(Observed):
    """Observer of Podman.

    >>> host.podman_engine.defaults["shm_size"]
    1073741824
    >>> host.podman_engine.inside(CDI).gpus
    ['/dev/nvidia0', '/dev/nvidia1']
    """

    @cached_property
    def defaults(self) -> dict[str, int | str | None]:
        """Size of /dev/shm, limits and cgroup manager of a container that is created, and never started.

        Raises:
            NodeFailed: it cannot be created, or Podman does not describe it.
            ValueError: the description is not valid JSON, or larger than `JSON_BYTES`.
        """
        document = read_json(self.ask(DEFAULTS), JSON_BYTES)
        try:
            host = document[0]["HostConfig"]
            limits = {each["Name"].removeprefix("RLIMIT_").lower(): _limit(each) for each in host["Ulimits"]}
            return {**limits, "shm_size": host["ShmSize"], "cgroup_manager": host["CgroupManager"]}
        except (LookupError, TypeError, AttributeError) as error:
            raise NodeFailed(f"`podman inspect` describes no container: {error!r}") from None

    @property
    def closed(self) -> list[str]:
        """Files that Podman reads as its user, and that a user without rights cannot read."""
        return list(self.ask(CLOSED).splitlines())

    def inside(self, asks: str = NOTHING) -> Inside:
        """Return limits and GPUs inside a container of root; nothing of it remains.

        Args:
            asks: how the container gets GPUs: `NOTHING` or `CDI`.

        Raises:
            NodeFailed: it does not start, with the message of Podman; or it prints no limits.
        """
        return parse_inside(self._printed(TRIAL % asks))

    def inside_of_user(self, asks: str = NOTHING) -> Inside | str:
        """Return limits and GPUs inside a container of a user without rights, who exists only for it.

        A text, `forbidden by /proc/sys/user/max_user_namespaces`, if the node allows users no containers.

        Args:
            asks: as of `inside`.

        Raises:
            NodeFailed: as `inside`.
        """
        said = self._printed(USERS_TRIAL % asks)
        return said.strip() if said.startswith("forbidden by ") else parse_inside(said)

    def _printed(self, command: str) -> str:
        """Return what a container prints.

        Raises:
            NodeFailed: it does not start, with Podman's message.
        """
        answer = self.run(command)
        if answer.rc == KILLED:
            raise not_ended("podman run")
        if answer.failed:
            lines = (line.strip() for line in answer.stderr.splitlines())
            said = " ".join(line for line in lines if line and not _WARNING.search(line))
            raise NodeFailed(said or f"the container ended with status {answer.rc}")
        return str(answer.stdout)

    def __repr__(self) -> str:
        return "<podman_engine>"


_WARNING = re.compile("level=warning|^WARN")


def _limit(stated: dict[str, Any]) -> int | str:
    """Return a limit as a number or "unlimited"; as text if the soft and the hard one differ."""
    soft, hard = stated["Soft"], stated["Hard"]
    if soft != hard:
        return f"{soft}:{hard}"
    return "unlimited" if soft in UNLIMITED else soft

"""What goes wrong in an upgrade, how it is put in and taken out, what is said, and where the fleet may stand.

The last node is the one at fault. OLD and NEW in a command are the versions it has and is to get.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from subprocess import CompletedProcess
from typing import Any

from tests.campaign import _upgrade_ways as ways
from tests.campaign._upgrade_site import Site

SETTLE_S = 8
WHOLE = frozenset({"old", "new"})
OLD, NEW = frozenset({"old"}), frozenset({"new"})
NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Seen:
    """How an upgrade ended: exit code, node → where it stands, what the screen said, in brief and in full."""

    code: int
    ends: dict[str, str]
    said: str
    screen: str


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        says: what the screen has to name.
        seed, mend: shell commands on the last node, before the upgrade and after it.
        exits: the code that the upgrade ends with.
        stands: where nodes may stand then; `stuck` only where a node is out of reach.
        rules: of the rollout, as it is run for this fault. Unless they say otherwise the node at fault is the
            canary, and the other one waits for it.
        mood: the mirror's (`MirrorServer.mood`).
        how: runs the upgrade, where that is not a plain one.
    """

    name: str
    says: str = ""
    seed: str = "true"
    mend: str = "true"
    exits: int = 1
    stands: frozenset[str] = OLD
    rules: dict[str, Any] = field(default_factory=dict)
    mood: str = "well"
    how: Callable[..., CompletedProcess[str]] | None = None

    def attempt(self, site: Site) -> Seen:
        """Seed, upgrade, mend."""
        node = site.fleet.nodes[-1]
        rules = {"canary": [node.name], "settle_s": SETTLE_S, **self.rules}
        rules = json.loads(self._versions(site, json.dumps(rules)))
        mend = self._versions(site, self.mend)
        node.run(self._versions(site, self.seed))
        site.server.mood = self.mood
        try:
            done = self.how(site, rules) if self.how else site.upgrade(**rules)
        finally:
            site.server.mood = "well"
            for each in site.fleet.nodes:
                ways.mend(each, mend)
        document = json.loads(done.stdout) if done.stdout.strip() else {}
        spoken = [line for line in done.stderr.splitlines() if not line.startswith("logs of this run")]
        marked = [line for line in spoken if "failed on" in line or line.startswith("shut")]
        said = (marked or spoken[-1:] or [""])[0][:300]
        stopped = document.get("stopped")
        return Seen(
            done.returncode, site.fleet.ends(done), said + (f" | {stopped}" if stopped else ""), done.stderr
        )

    def against(self, seen: Seen) -> str | None:
        """What is not as it has to be."""
        if seen.code != self.exits:
            return f"exit {seen.code} instead of {self.exits}: {seen.screen[-600:]}"
        if not set(seen.ends.values()) <= self.stands:
            return f"nodes stand at {seen.ends}"
        return None if self.says in seen.screen else f"no word of {self.says!r}: {seen.screen[-900:]}"

    def _versions(self, site: Site, text: str) -> str:
        return text.replace("OLD", site.here).replace("NEW", site.there)


def hook(moment: str, command: str, **more: Any) -> dict[str, Any]:
    """Rules with a hook on the node; with `where`, only on that one."""
    return {"hooks": {moment: {"run": command, **more}}}


def at_drain(command: str) -> dict[str, Any]:
    """Something happens on the node when everything has been looked at and fetched."""
    return hook("drain", command, on="node")


def at_boot(command: str) -> str:
    """Something happens once, at the first boot after now, when the driver has been loaded."""
    unit = (
        "[Unit]\\nAfter=gpuprov-sim.service\\n"
        "Before=nvidia-persistenced.service nvidia-fabricmanager.service\\n"
        "ConditionPathExists=/root/armed\\n"
        "[Service]\\nType=oneshot\\nExecStart=/bin/sh /root/armed.sh\\n"
        "[Install]\\nWantedBy=multi-user.target\\n"
    )
    return (
        f"printf '{unit}' >/etc/systemd/system/armed.service && touch /root/armed"
        f" && printf '%s\\n' 'rm /root/armed' '{command}' >/root/armed.sh"
        " && systemctl daemon-reload && systemctl enable armed.service"
    )


DISARM = (
    "rm -f /root/armed; systemctl disable armed.service; rm -f /etc/systemd/system/armed.service;"
    " gpuprov-sim mend"
)
KERNEL_CHOICE = "/etc/gpuprov-sim/kernel"
CLEAN = "apt-get clean"
DEAD = "echo 'Acquire::http::Proxy \"http://127.0.0.1:9\";' >/etc/apt/apt.conf.d/99dead"
ALIVE = "rm -f /etc/apt/apt.conf.d/99dead"
BAD_COMPILER = "echo 'MAKE[0]=false' >/etc/dkms/nvidia.conf"
NEW_MODULE = "/etc/dkms/nvidia-NEW.conf"
GOOD_COMPILER = "rm -f /etc/dkms/nvidia.conf"
TAKEN = 'file=open("/var/lib/dpkg/lock-frontend","r+");fcntl.lockf(file,fcntl.LOCK_EX)'
OTHER_LEASE = (
    'printf \'{"run":"other","holder":"x@y","seconds":600,"until":%s}\' $(($(date +%s)+LEFT))'
    " >/var/lib/gpuprov/lease.json"
)
FIRST_LAST = {"canary": ["train1"]}

GATE = [
    Fault(
        "hold-lost-before",
        "drift: pins.hold",
        "apt-mark unhold libcuda1",
        "apt-mark hold libcuda1",
        exits=5,
        stands=NOTHING,
    ),
    Fault(
        "dpkg-locked",
        "holds the package manager's lock",
        f"systemd-run -q --unit=locker python3 -c 'import fcntl,time;{TAKEN};time.sleep(900)'; sleep 1",
        "systemctl stop locker",
        exits=5,
        stands=NOTHING,
    ),
    Fault(
        "gpus-in-use",
        "the GPUs are in use by sleep",
        ": >/dev/nvidia9; systemd-run -q --unit=job sh -c 'exec sleep 900 </dev/nvidia9'",
        "systemctl stop job; rm -f /dev/nvidia9",
        exits=5,
        stands=NOTHING,
    ),
    Fault(
        "disk-full-before",
        "room: /boot has",
        "mount -t tmpfs -o size=1m none /boot",
        "umount /boot",
        exits=5,
        stands=NOTHING,
    ),
    Fault(
        "another-run-holds-a-node",
        "lease: run other of x@y",
        OTHER_LEASE.replace("LEFT", "500"),
        "rm /var/lib/gpuprov/lease.json",
        exits=5,
        stands=NOTHING,
    ),
    Fault("node-unreachable", "reach: ", how=ways.unreachable, exits=5, stands=NOTHING),
    Fault("package-404-after-the-gate", "404", CLEAN, mood="gone", exits=5, stands=NOTHING),
    Fault("package-cut-short", "Failed to fetch", CLEAN, mood="broken", exits=5, stands=NOTHING),
    Fault("checksum-mismatch", "Hash Sum mismatch", how=ways.falsified, exits=5, stands=NOTHING),
    Fault("mirror-gone-after-the-gate", "apt-get: ", DEAD, ALIVE, exits=5, stands=NOTHING),
    Fault(
        "build-fails-on-the-canary",
        "does not build for kernel",
        BAD_COMPILER,
        GOOD_COMPILER,
        exits=5,
        stands=NOTHING,
    ),
]
"""Nothing moves."""

MOVING = [
    Fault(
        "clock-set-back",
        "",
        OTHER_LEASE.replace("LEFT", "90000"),
        exits=0,
        stands=NEW,
    ),
    Fault("snapshot-fails", "snapshot failed on", rules=hook("snapshot", "exit 1", on="node")),
    Fault("drain-fails", "no such node", rules=hook("drain", "echo no such node >&2; exit 7")),
    Fault("drain-hangs", "did not end within 3 s", rules=hook("drain", "sleep 600", timeout_s=3)),
    Fault(
        "mirror-gone-at-apply",
        "",
        mend=ALIVE,
        rules=at_drain(DEAD),
        exits=0,
        stands=NEW,
    ),
    Fault(
        "mirror-and-downloads-gone-at-apply",
        "apply failed on",
        mend=ALIVE,
        rules=at_drain(f"{DEAD}; {CLEAN}"),
    ),
    Fault(
        "build-fails-at-apply",
        "apply failed on",
        mend=f"rm -f {NEW_MODULE}",
        rules=at_drain(f"echo 'MAKE[0]=false' >{NEW_MODULE}"),
    ),
    Fault("no-compiler-from-apply-on", "apply failed on", mend=GOOD_COMPILER, rules=at_drain(BAD_COMPILER)),
    Fault(
        "disk-full-at-apply",
        "apply failed on",
        mend="! mountpoint -q /usr/src/nvidia-NEW || umount /usr/src/nvidia-NEW",
        rules=at_drain("mkdir /usr/src/nvidia-NEW; mount -t tmpfs -o size=4k none /usr/src/nvidia-NEW"),
    ),
    Fault(
        "ssh-cut-at-apply",
        "",
        rules=at_drain(
            "systemd-run -q --on-active=8 --timer-property=AccuracySec=1 sh -c"
            " 'systemctl stop ssh; pkill -9 sshd; sleep 20; systemctl start ssh'"
        ),
    ),
    Fault(
        "does-not-come-back",
        "reboot failed on",
        "touch /root/armed",
        mend="systemctl unmask ssh",
        rules=at_drain(
            "! rm /root/armed || systemctl mask ssh.service ssh.socket"
        ),  # not on the way back too
        stands=OLD | {"stuck"},
    ),
    Fault(
        "comes-back-with-the-old-kernel",
        "failed on",
        at_boot(f"rm -f {KERNEL_CHOICE}"),
        f"{DISARM}; rm -f {KERNEL_CHOICE}",
        rules=at_drain(f"mkdir -p /etc/gpuprov-sim; echo 6.1.0-1-amd64 >{KERNEL_CHOICE}"),
    ),
    Fault("library-newer-than-the-module", "failed on", at_boot("gpuprov-sim fault mismatch"), DISARM),
    Fault("gpu-missing-after-the-reboot", "failed on", at_boot("gpuprov-sim fault gpu-lost 1"), DISARM),
    Fault("no-gpu-after-the-reboot", "failed on", at_boot("gpuprov-sim fault no-devices"), DISARM),
    Fault("driver-hangs-after-the-reboot", "failed on", at_boot("gpuprov-sim fault hang"), DISARM),
    Fault(
        "fabric-manager-behind",
        "failed on",
        at_boot("dpkg -i /var/lib/gpuprov/lastgood/packages/nvidia-fabricmanager_OLD-1_amd64.deb"),
        DISARM,
    ),
    Fault("verify-fails-on-the-canary", "verify failed on", at_boot("apt-mark unhold libcuda1"), DISARM),
    Fault(
        "verify-fails-in-batch-1",
        "batch 1: verify failed on train2",
        at_boot("apt-mark unhold libcuda1"),
        DISARM,
        stands=WHOLE,
        rules=FIRST_LAST,
    ),
    Fault("resume-fails", "resume failed on", rules=hook("resume", "exit 9"), stands=WHOLE),
]
"""Nodes have begun to move."""

CONTROLLER = [
    Fault("two-controllers", "leased by ", how=ways.by_two, exits=5, stands=NOTHING),
    *(
        Fault(f"killed-in-{step}", "resuming", how=ways.killed_in(step), exits=0, stands=NEW)
        for step in ("fetch", "record", "apply", "reboot", "verify")
    ),
    Fault(
        "killed-on-the-way-back",
        "resuming",
        at_boot("apt-mark unhold libcuda1"),
        DISARM,
        how=ways.killed_in("restore"),
    ),
    Fault("killed-and-journal-cut", "resuming", how=ways.killed_and_cut, exits=0, stands=NEW),
    Fault("mirror-gone-at-rollback", "", how=ways.back_without_mirror, exits=0),
    Fault("kept-package-damaged", "", how=ways.back_with_a_damaged_package, exits=0),
]
"""The controller's own misfortunes, and those of the way back."""

FAULTS = [*GATE, *MOVING, *CONTROLLER]

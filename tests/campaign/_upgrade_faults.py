"""Faults of an upgrade: their cause and correction, the required message, and the allowed end states.

The last node has the fault. OLD and NEW in a command are its current and its new driver version.
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
    """Result of an upgrade: exit code, node → end state, the main message, and all of stderr."""

    code: int
    ends: dict[str, str]
    said: str
    screen: str


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        says: text that stderr must contain.
        seed, mend: shell commands on the last node, before and after the upgrade.
        exits: exit code of the upgrade.
        stands: allowed end states of nodes; `stuck` only if a node is out of reach.
        rules: rollout rules for this fault. By default the node with the fault is the canary, and the other
            node waits for it.
        mood: the mirror's mood (`MirrorServer.mood`).
        how: function that runs the upgrade, if it is not a plain one.
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
        """Cause the fault, upgrade and correct it."""
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
        """Return the first difference from the expected result, or None."""
        if seen.code != self.exits:
            return f"exit {seen.code} instead of {self.exits}: {seen.screen[-600:]}"
        if not set(seen.ends.values()) <= self.stands:
            return f"nodes stand at {seen.ends}"
        return None if self.says in seen.screen else f"no word of {self.says!r}: {seen.screen[-900:]}"

    def _versions(self, site: Site, text: str) -> str:
        """Return a text with OLD and NEW replaced by the site's versions."""
        return text.replace("OLD", site.here).replace("NEW", site.there)


def hook(moment: str, command: str, **more: Any) -> dict[str, Any]:
    """Return rules with a hook on the node; with `where`, only on that node."""
    return {"hooks": {moment: {"run": command, **more}}}


def at_drain(command: str) -> dict[str, Any]:
    """Return rules with a command on the node after all checks and downloads."""
    return hook("drain", command, on="node")


def at_boot(command: str) -> str:
    """Return shell commands that make a command run once at the next boot, after the driver is loaded."""
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
"""Faults that must keep every node unchanged."""

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
        ),  # on the way back the marker is missing
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
"""Faults after the first nodes have changed."""

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
"""Faults of the controller, and of the way back."""

FAULTS = [*GATE, *MOVING, *CONTROLLER]

"""What goes wrong in an upgrade, how it is put in and taken out, and where it may leave the fleet."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpuprov.lab import Node
from tests.lab.upgradable import Fleet

WHOLE = frozenset({"old", "new"})
OLD = frozenset({"old"})
Seen = tuple[int, dict[str, str], str]


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        seed, mend: shell commands on the last node, before the upgrade and after it.
        exits: the code that the upgrade ends with.
        stands: where nodes may stand then; `stuck` only where a node is out of reach.
        rules: of the rollout, as it is run for this fault.
        how: runs the upgrade, where that is not a plain one.
    """

    name: str
    seed: str = "true"
    mend: str = "true"
    exits: int = 1
    stands: frozenset[str] = OLD
    rules: dict[str, Any] = field(default_factory=dict)
    how: Callable[[Fleet, str, Fault], subprocess.CompletedProcess[str]] | None = None

    def attempt(self, fleet: Fleet, there: str) -> Seen:
        """Seed, upgrade, mend; the exit code, where nodes stand, the last words on the screen."""
        node = fleet.nodes[-1]
        node.run(self.seed.replace("VERSION", there), check=False)
        try:
            done = self.how(fleet, there, self) if self.how else fleet.upgrade(there, **self.rules)
        finally:
            inside(node, self.mend.replace("VERSION", there))
        stopped = json.loads(done.stdout).get("stopped") if done.stdout.strip() else None
        spoken = [line for line in done.stderr.splitlines() if not line.startswith("everything that was")]
        marked = [line for line in spoken if "failed on" in line or line.startswith("shut")]
        said = (marked or spoken[-1:])[0]
        return done.returncode, fleet.ends(done), said[:300] + (f" | {stopped}" if stopped else "")


def inside(node: Node, command: str) -> None:
    """Mend by SSH, or from outside where the node lets nobody in: unmask SSH and restart it."""
    if node.run("true", check=False).returncode == 0:
        node.run(command, check=False)
        return
    for link in ("ssh.service", "ssh.socket"):
        (node.root / "etc/systemd/system" / link).unlink(missing_ok=True)
    node.stop()
    node.start()
    node.run(command, check=False)


def boots_with(command: str) -> str:
    """Do something once, at the first boot after now, when the driver is there."""
    unit = (
        "[Unit]\\nAfter=gpuprov-sim.service\\nBefore=nvidia-persistenced.service\\n"
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
    "rm -f /root/armed /etc/systemd/system/armed.service; systemctl disable armed.service; gpuprov-sim mend"
)
DEAD = "echo 'Acquire::http::Proxy \"http://127.0.0.1:9\";' >/etc/apt/apt.conf.d/99dead"
ALIVE = "rm -f /etc/apt/apt.conf.d/99dead; apt-get -q update"
ON_NODE = {"on": "node"}


def hook(moment: str, command: str, **more: Any) -> dict[str, Any]:
    return {"hooks": {moment: {"run": command, **more}}}


def by_two(fleet: Fleet, there: str, fault: Fault) -> subprocess.CompletedProcess[str]:
    """Another controller starts while the first is at work: what becomes of the second."""
    first = fleet.start("upgrade", "--to", fleet.lock(there), "--yes", "-o", "json")
    runs = fleet.folder / "state/gpuprov/runs"
    while not any(
        '"record"' in path.read_text() for path in sorted(runs.glob("*-upgrade-*/journal.jsonl"))[-1:]
    ):
        time.sleep(0.2)
    second = fleet.upgrade(there)
    first.communicate()
    fleet.gpuprov("rollback", "--yes", "--lock", f"{there}.lock.yml")
    return second


def killed(fleet: Fleet, there: str, fault: Fault) -> subprocess.CompletedProcess[str]:
    """The controller dies in the middle of its work, and half of its journal's last line is lost."""
    process = fleet.start("upgrade", "--to", fleet.lock(there), "--yes", "-o", "json")
    runs = fleet.folder / "state/gpuprov/runs"
    known = set(runs.glob("*-upgrade-*"))
    while process.poll() is None:
        fresh = set(runs.glob("*-upgrade-*/journal.jsonl")) - {path / "journal.jsonl" for path in known}
        if any('"apply"' in path.read_text() for path in fresh):
            break
        time.sleep(0.2)
    time.sleep(5)
    process.kill()
    process.communicate()
    [journal] = fresh
    journal.write_bytes(journal.read_bytes()[:-30])
    return fleet.gpuprov("upgrade", "--resume", "-o", "json")


def back_without_mirror(fleet: Fleet, there: str, fault: Fault) -> subprocess.CompletedProcess[str]:
    """There with a mirror, and back without one."""
    done = fleet.upgrade(there)
    for node in fleet.nodes:
        node.run(f"{DEAD}; rm -f /var/cache/apt/archives/*.deb")
    back = fleet.gpuprov("rollback", "--yes", "-o", "json", "--lock", f"{there}.lock.yml")
    for node in fleet.nodes:
        node.run(ALIVE)
    return back if done.returncode == 0 else done


def back_with_a_damaged_package(fleet: Fleet, there: str, fault: Fault) -> subprocess.CompletedProcess[str]:
    """A kept package rots before it is needed."""
    done = fleet.upgrade(there)
    for node in fleet.nodes:
        node.run("for each in /var/lib/gpuprov/lastgood/packages/libcuda1_*; do echo rot >>$each; done")
    back = fleet.gpuprov("rollback", "--yes", "-o", "json", "--lock", f"{there}.lock.yml")
    return back if done.returncode == 0 else done


FAULTS = [
    Fault("hold-lost-before", "apt-mark unhold libcuda1", "apt-mark hold libcuda1", exits=5),
    Fault(
        "dpkg-locked",
        "systemd-run --unit=locker python3 -c 'import fcntl,time\n"
        'f=open("/var/lib/dpkg/lock-frontend","r+");fcntl.lockf(f,fcntl.LOCK_EX);time.sleep(900)\'; sleep 1',
        "systemctl stop locker",
        exits=5,
    ),
    Fault(
        "gpus-in-use",
        ": >/dev/nvidia9; systemd-run --quiet --unit=job sh -c 'exec sleep 900 </dev/nvidia9'",
        "systemctl stop job; rm /dev/nvidia9",
        exits=5,
    ),
    Fault("disk-full", "mount -t tmpfs -o size=1m none /boot", "umount /boot", exits=5),
    Fault(
        "package-gone-from-mirror",
        "mv /var/lib/apt/lists /root/lists; mkdir -p /var/lib/apt/lists/partial;"
        " mkdir /root/debs; mv /var/cache/apt/archives/*.deb /root/debs/",
        "rm -rf /var/lib/apt/lists; mv /root/lists /var/lib/apt/lists;"
        " mv /root/debs/*.deb /var/cache/apt/archives/; rmdir /root/debs",
        exits=5,
    ),
    Fault("mirror-gone-after-the-gate", DEAD, ALIVE, exits=5),
    Fault(
        "downloaded-package-damaged",
        "for each in /var/cache/apt/archives/libcuda1_VERSION*; do truncate -s -100 $each; done",
        exits=0,
        stands=frozenset({"new"}),
    ),
    Fault("mirror-gone-at-apply", mend=ALIVE, rules=hook("drain", DEAD, **ON_NODE), exits=1, stands=WHOLE),
    Fault(
        "build-fails-on-the-canary",
        "mv /root/stub-VERSION.ko /root/away.ko",
        "mv /root/away.ko /root/stub-VERSION.ko",
        exits=5,
        rules={"canary": ["node[2-99]"]},
    ),
    Fault(
        "build-fails-after-the-canary",
        "mv /root/stub-VERSION.ko /root/away.ko",
        "mv /root/away.ko /root/stub-VERSION.ko",
        stands=WHOLE,
    ),
    Fault(
        "does-not-come-back",
        mend="systemctl unmask ssh",
        rules=hook("drain", "systemctl mask ssh.service ssh.socket", **ON_NODE),
        stands=WHOLE | {"stuck"},
    ),
    Fault(
        "old-module-after-the-reboot",
        boots_with("gpuprov-sim fault mismatch"),
        DISARM,
        stands=WHOLE,
    ),
    Fault("gpu-missing-after-the-reboot", boots_with("gpuprov-sim fault gpu-lost 1"), DISARM, stands=WHOLE),
    Fault("no-gpu-at-all-after-the-reboot", boots_with("gpuprov-sim fault no-devices"), DISARM, stands=WHOLE),
    Fault("driver-hangs-after-the-reboot", boots_with("gpuprov-sim fault hang"), DISARM, stands=WHOLE),
    Fault(
        "verify-fails-on-the-canary",
        boots_with("apt-mark unhold libcuda1"),
        DISARM,
        rules={"canary": ["node[2-99]"]},
    ),
    Fault("verify-fails-in-the-last-batch", boots_with("apt-mark unhold libcuda1"), DISARM, stands=WHOLE),
    Fault("drain-fails", rules=hook("drain", "echo no such node >&2; exit 7")),
    Fault("drain-hangs", rules=hook("drain", "sleep 600", timeout_s=3)),
    Fault("snapshot-fails", rules=hook("snapshot", "exit 1", **ON_NODE)),
    Fault("resume-fails", rules=hook("resume", "exit 9"), stands=WHOLE),
    Fault(
        "ssh-cut-during-apply",
        rules=hook(
            "drain",
            "systemd-run --on-active=12 sh -c"
            " 'systemctl stop ssh; pkill -9 sshd; sleep 25; systemctl start ssh'",
            **ON_NODE,
        ),
        stands=WHOLE,
    ),
    Fault("two-controllers", exits=5, how=by_two),
    Fault("killed-and-journal-cut", exits=0, stands=frozenset({"new"}), how=killed),
    Fault("mirror-gone-at-rollback", exits=0, how=back_without_mirror),
    Fault("kept-package-damaged", exits=0, how=back_with_a_damaged_package),
]

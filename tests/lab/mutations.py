"""Single changes to a provisioned node: the checks that drift and verify must report, and the correction.

`MUTATIONS` contains every check at least once. `BYSTANDERS` are changes that concern no check and must not be
reported. A unit test compares the tables with the list of all checks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from gpuprov.drift.observations.registry import READS
from gpuprov.model.lock import LockedGroup, read_lock
from gpuprov.roles import expectations
from gpuprov.verify.wanted import proofs
from gpuprov_lab import Node
from tests.lab.command_line import gpuprov


@dataclass(frozen=True)
class Mutation:
    """One change.

    Args:
        name: description of the change.
        checks: checks that drift must report and verify must fail, if the lock states them; it must state the
            first.
        do: shell commands on the node; `$K` is its kernel, `$V` the driver's version.
        silences: nvidia-smi stops answering, so every check that needs its answer fails too.
        reboots: the change takes effect at a reboot.
        undo: shell commands that revert the change if no role can; `apply` corrects all others.
        alone: tried without others, because it changes what their commands or checks do.
    """

    name: str
    checks: tuple[str, ...]
    do: str
    silences: bool = False
    reboots: bool = False
    undo: str = ""
    alone: bool = False


def _mutation(name: str, checks: str, do: str, **more: Any) -> Mutation:
    """Return a mutation that must be reported by these checks, separated by blanks."""
    return Mutation(name, tuple(checks.split()), do, **more)


OLD_LIBRARY = (
    "cd /tmp && apt-get -q update && apt-get -q download libnvidia-ml1=535.261.03-1"
    " && dpkg -i --force-depends --force-downgrade libnvidia-ml1_*.deb"
)
OTHER_PCI = "cp -rL /sys/bus/pci/devices /run/pci 2>/dev/null; {}; mount --bind /run/pci /sys/bus/pci/devices"
OWN_PCI = "umount /sys/bus/pci/devices; rm -r /run/pci"
DKMS = "/lib/modules/$K/updates/dkms"
UNITS = "gpu.persistence_unit gpu.clocks_unit gpu.modes_unit"
STOP = "systemctl stop nvidia-persistenced"

MUTATIONS = (
    _mutation(
        "another release of the system",
        "system.os",
        "sed -i 's/^VERSION_ID=.*/VERSION_ID=\"11\"/' /usr/lib/os-release",
        undo="sed -i 's/^VERSION_ID=.*/VERSION_ID=\"12\"/' /usr/lib/os-release",
    ),
    _mutation(
        "a package half installed",
        "dpkg.consistent",
        "cd /tmp && apt-get -q update && apt-get -q download hello && dpkg --unpack hello_*.deb",
    ),
    # dpkg clears the hold of a package that it unpacks.
    _mutation("a library of an older driver", "driver.packages pins.hold", OLD_LIBRARY, silences=True),
    _mutation(
        "a package of the driver removed",
        "driver.packages pins.hold",
        "dpkg --purge --force-depends --force-hold nvidia-smi",
        silences=True,
    ),
    _mutation(
        "the kernel's headers removed", "kernel.headers", "dpkg --purge --force-depends linux-headers-$K"
    ),
    _mutation(
        "the module deleted",
        "driver.module_on_disk driver.module_flavour",
        f"rm {DKMS}/nvidia-current.ko*; depmod $K",
        alone=True,
    ),
    _mutation(
        "a module of another version",
        "driver.module_on_disk",
        f"for each in {DKMS}/nvidia-current*.ko; do cp /root/other.ko $each; done; depmod $K",
    ),
    _mutation(
        "a module of the other flavour",
        "driver.module_flavour",
        f"for each in {DKMS}/nvidia-current*.ko; do cp /root/open.ko $each; done; depmod $K",
        alone=True,
    ),
    _mutation("the blacklist deleted", "nouveau.blacklist", "rm /etc/modprobe.d/gpuprov-nouveau.conf"),
    _mutation("the blacklist emptied", "nouveau.blacklist", "echo '#' >/etc/modprobe.d/gpuprov-nouveau.conf"),
    _mutation(
        "nouveau in the driver's place",
        f"nouveau.loaded driver.loaded profiling.counters_now {UNITS}",
        f"{STOP}; modprobe -r nvidia_uvm nvidia; modprobe nouveau",
        silences=True,
    ),
    _mutation(
        "the module unloaded",
        f"driver.loaded profiling.counters_now {UNITS}",
        f"{STOP}; modprobe -r nvidia_uvm nvidia",
        silences=True,
    ),
    _mutation("library and module disagree", "", "gpuprov-sim fault mismatch", silences=True),
    _mutation("nvidia-smi never answers", "", "gpuprov-sim fault hang", silences=True),
    _mutation("a GPU off the bus", "gpu.visible", "gpuprov-sim fault gpu-lost 1", silences=True),
    _mutation(
        "a GPU taken out",
        "gpu.count gpu.visible",
        OTHER_PCI.format("rm -r $(grep -lx 0x20b2 /run/pci/*/device | head -1 | xargs dirname)"),
        undo=OWN_PCI,
        alone=True,
    ),
    _mutation(
        "GPUs of another model",
        "gpu.model",
        OTHER_PCI.format("grep -lx 0x20b2 /run/pci/*/device | while read f; do echo 0x20b0 >$f; done"),
        undo=OWN_PCI,
        alone=True,
    ),
    _mutation(
        "persistence off, and with it clocks and limit",
        "gpu.persistence gpu.clocks gpu.power_limit",
        "nvidia-smi -pm 0",
    ),
    _mutation(
        "persistence off on one GPU",
        "gpu.persistence gpu.clocks gpu.power_limit",
        "nvidia-smi -i 2 -pm 0",
    ),
    _mutation(
        "the persistence daemon disabled", "gpu.persistence_unit", "systemctl disable nvidia-persistenced"
    ),
    _mutation("other clocks on one GPU", "gpu.clocks", "nvidia-smi -i 3 -ac 1593,1095"),
    _mutation("clocks reset", "gpu.clocks", "nvidia-smi -rac"),
    _mutation("the clocks' unit disabled", "gpu.clocks_unit", "systemctl disable gpuprov-gpu-clocks"),
    _mutation("a hold released", "pins.hold", "apt-mark unhold libcuda1"),
    _mutation("all holds released", "pins.hold", "apt-mark showhold | xargs apt-mark unhold"),
    _mutation(
        "unattended upgrades let at the driver", "pins.unattended", "rm /etc/apt/apt.conf.d/52gpuprov-pins"
    ),
    _mutation("the modes' unit disabled", "gpu.modes_unit", "systemctl disable gpuprov-gpu-modes"),
    _mutation("another power limit", "gpu.power_limit", "nvidia-smi -i 1 -pl 250"),
    _mutation("another compute mode", "gpu.compute_mode", "nvidia-smi -i 0 -c 3"),
    _mutation("ECC off from the next boot on", "gpu.ecc_pending", "nvidia-smi -i 0 -e 0"),
    # gpuprov's unit requests ECC again at that boot.
    _mutation("ECC off", "gpu.ecc", "nvidia-smi -i 0 -e 0", reboots=True),
    _mutation(
        "a limit of logins lifted",
        "tuning.limits",
        "sed -i s/16384/4096/ /etc/security/limits.d/90-gpuprov.conf",
    ),
    _mutation(
        "a limit of logins lifted by the site, which has the last word",
        "tuning.limits",
        "echo '* - nofile 4096' >/etc/security/limits.d/zz-site.conf",
        undo="rm /etc/security/limits.d/zz-site.conf",
    ),
    _mutation(
        "a limit of services lifted",
        "tuning.service_limits",
        "sed -i s/16384/4096/ /etc/systemd/system.conf.d/90-gpuprov.conf; systemctl daemon-reexec",
    ),
    _mutation(
        "a limit of services lifted by the site, which has the last word",
        "tuning.service_limits",
        "printf '[Manager]\\nDefaultLimitNOFILE=4096\\n' >/etc/systemd/system.conf.d/zz-site.conf;"
        " systemctl daemon-reexec",
        undo="rm /etc/systemd/system.conf.d/zz-site.conf; systemctl daemon-reexec",
    ),
    _mutation(
        "a limit of services lifted by a drop-in for all of them",
        "tuning.service_limits",
        "mkdir -p /etc/systemd/system/service.d;"
        " printf '[Service]\\nLimitNOFILE=2048\\n' >/etc/systemd/system/service.d/zz-site.conf;"
        " systemctl daemon-reload",
        undo="rm -r /etc/systemd/system/service.d; systemctl daemon-reload",
    ),
    _mutation(
        "a variable of logins taken away", "tuning.environment", "sed -i /OMP_NUM_THREADS/d /etc/environment"
    ),
    _mutation(
        "a variable for finding faults left on",
        "tuning.debugging",
        "echo CUDA_LAUNCH_BLOCKING=1 >>/etc/environment",
    ),
    _mutation(
        "passwords let in",
        "ssh.options",
        "sed -i 's/^PasswordAuthentication.*/PasswordAuthentication yes/'"
        " /etc/ssh/sshd_config.d/00-gpuprov.conf; systemctl reload ssh; sleep 1",
    ),
    _mutation("sshd's unit masked", "ssh.at_boot", "systemctl -q mask ssh.service"),
    _mutation("the firewall's unit disabled", "firewall.unit", "systemctl disable gpuprov-firewall"),
)

BYSTANDERS = {
    # sshd uses the first value that it reads.
    "a later word of the site's on passwords": (
        "printf 'PasswordAuthentication yes\\n' >/etc/ssh/sshd_config.d/00-site.conf;"
        " systemctl reload ssh; sleep 1"
    ),
    "a package of the site's own": "apt-get -q update && apt-get -q -y install hello",
    "a package held by the site": "apt-mark hold less",
    "a module option of no concern": "echo 'options snd slots=a' >/etc/modprobe.d/sound.conf",
    "a blacklist of no concern": "echo 'blacklist pcspkr' >/etc/modprobe.d/beep.conf",
    "a unit of the site's own": (
        "printf '[Service]\\nExecStart=/bin/true\\n[Install]\\nWantedBy=multi-user.target\\n'"
        " >/etc/systemd/system/site.service; systemctl enable -q site.service"
    ),
    "an account": "useradd -m somebody",
    "another time zone": "ln -sf /usr/share/zoneinfo/Asia/Tokyo /etc/localtime",
    "another host name": "hostname elsewhere",
    "another message of the day": "echo welcome >/etc/motd",
    "a cron job": "echo '0 0 * * * root true' >/etc/cron.d/site",
    "an empty configuration of Docker": "mkdir -p /etc/docker; echo '{}' >/etc/docker/daemon.json",
    "an Xid in the journal": "gpuprov-sim fault xid 0 13",
    "the package lists fetched": "apt-get -q update",
    "a busy disk": "head -c 200M /dev/zero >/var/tmp/big",
    "an unattended origin of the site's own": (
        "echo 'Unattended-Upgrade::Package-Blacklist { \"postgresql\"; };' >/etc/apt/apt.conf.d/60site"
    ),
}

# Checks, or whole areas, that no change of the campaign contradicts: the reason, or the file that tests them.
ELSEWHERE = {
    "system.arch": "a processor stays what it is",
    "gpu.nvswitches": "the campaign's machine has none",
    "secure_boot.state": "scripts/campaign secureboot, on machines with firmware of their own",
    "module.signature": "scripts/campaign secureboot",
    "hardware.*": "a lab node shows this machine's processors and memory, no drives and no RDMA ports",
    "tuning.governor": "a lab node has no frequency governors",
    "tuning.hugepages": "a lab node may not change this machine's",
    "tuning.sysctl": "tests/lab/test_system_tuning.py, with a parameter that a lab node may set",
    "tuning.sysctl_at_boot": "tests/lab/overruling.py",
    "driver.unpackaged": "tests/lab/overruling.py",
    "driver.initramfs": "tests/unit/verify/test_module_loading.py",
    "gpu.mig": "tests/lab/test_gpu_settings.py",
    "gpu.power_range": "tests/lab/test_gpu_settings.py",
    "gpu.mig_pending": "tests/lab/test_gpu_settings.py",
    "gpu.mig_layout": "tests/lab/test_gpu_settings.py",
    "ssh.login_groups": "scripts/campaign neighbours",
    "firewall.controller": "scripts/campaign neighbours",
    "ssh.ports": "tests/lab/test_ssh_hardening.py",
    "ssh.main_process": "tests/lab/test_ssh_hardening.py",
    "ssh.port_labels": "tests/lab/test_selinux.py",
    "ssh.undone": "tests/lab/test_ssh_hardening.py",
    "firewall.networks": "tests/lab/test_ssh_hardening.py",
    "firewall.input": "tests/lab/test_ssh_hardening.py",
    "firewall.forward": "tests/lab/test_ssh_hardening.py",
    "repositories.*": "tests/lab/test_nvidia_driver.py",
    "fabric_manager.*": "tests/lab/test_nvidia_driver.py",
    "gpu.confidential": "tests/unit/locking/test_guests.py",
    "gpudirect.*": "tests/lab/test_gpudirect.py",
    "doca_ofed.*": "tests/lab/test_gpudirect.py",
    "gds.*": "tests/lab/test_gpudirect.py",
    "imex.*": "tests/lab/test_imex.py",
    "health.*": "tests/lab/test_health.py",
    "cuda.*": "tests/lab/test_nvidia_driver.py",
    "cudnn.*": "tests/lab/test_nvidia_driver.py",
    "nccl.*": "tests/lab/test_nvidia_driver.py",
    "docker.*": "tests/lab/test_docker.py",
    "containerd.*": "tests/lab/test_containerd.py",
    "podman.*": "tests/lab/test_podman.py",
    "container_toolkit.*": "tests/lab/test_docker.py",
    "storage.*": "tests/lab/test_storage.py",
    "*.absent": "scripts/campaign roles, whose last lock has nothing of it",
    "scratch.*": "tests/lab/test_storage.py",
    "monitoring.*": "a campaign without a metrics package in Debian 12's archive",
    "profiling.packages": "a campaign without NVIDIA's repository",
}


def excused(check: str) -> bool:
    """Return whether another test covers a check, or none can."""
    return any(fnmatch(check, pattern) for pattern in ELSEWHERE)


@dataclass
class Outcome:
    """Result of one change; an empty list of complaints is a pass."""

    name: str
    complaints: list[str] = field(default_factory=list)


class Witnesses:
    """Results of drift and verify on a provisioned node, and its correction by apply."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node, self.folder = node, folder
        [self.group] = read_lock(folder / "fleet.lock.yml").groups.values()
        stated = expectations(self.group)
        self.stated = {each.check for each in stated}
        self.proofs = {each.check for each in proofs(self.group)}
        asked = {each.check for each in stated if each.needs_driver and "smi" in READS[each.check]}
        self.need_driver = asked | {"driver.answers"}

    def drift(self) -> set[str]:
        """Return the checks that drift reports."""
        [node] = json.loads(gpuprov(self.folder, "drift", "-o", "json", code=None).stdout)["nodes"]
        return {each["check"] for each in node["drift"]} if node["status"] != "error" else {node["reason"]}

    def named_by_drift(self) -> dict[str, list[str]]:
        """Return the checks that drift reports, each with its actual value and the places that set it."""
        [node] = json.loads(gpuprov(self.folder, "drift", "-o", "json", code=None).stdout)["nodes"]
        return {each["check"]: [str(each["actual"]), *each["by"]] for each in node["drift"]}

    def verify(self) -> set[str]:
        """Return the checks that fail in verify."""
        [node] = json.loads(gpuprov(self.folder, "verify", "-o", "json", code=None).stdout)["nodes"]
        if node["status"] in ("unreachable", "error"):
            return {node["message"]}
        return {each["check"] for each in node["checks"] if each["status"] == "failed"}

    @property
    def _given(self) -> str:
        """Lines before each change: variables that it may use."""
        return f"K={self.node.kernel} V={self.group.components.driver.version}\n"

    def attempt(self, do: str) -> str:
        """Run shell commands on the node up to one that fails; return its message, "" if all succeed."""
        done = self.node.run(f"{self._given}set -e\n{do}", check=False)
        return (done.stderr.strip() or f"exit {done.returncode}") if done.returncode else ""

    def change(self, do: str, *, reboots: bool = False) -> None:
        """Run shell commands on the node, then reboot it if requested."""
        self.node.run(f"{self._given}{do}")
        if reboots:
            self.node.reboot()
            self.node.run("systemctl is-system-running --wait", check=False)

    def testify(self, *mutations: Mutation) -> Outcome:
        """Change the node, compare drift and verify with the expected checks, and correct the node."""
        outcome = Outcome(", ".join(each.name for each in mutations))
        must: set[str] = set()
        for each in mutations:
            self.change(each.do, reboots=each.reboots)
            must |= (set(each.checks) & self.stated) | (self.need_driver if each.silences else set())
        seen, failed = self.drift(), self.verify()
        outcome.complaints += _differing("drift", seen, must)
        outcome.complaints += _differing("verify", failed - self.proofs, must)
        for each in mutations:
            if each.undo:
                self.change(each.undo)
        if not all(each.undo for each in mutations):
            mended = gpuprov(self.folder, "apply", "--reboot", "--yes", "--allow-downgrade", code=None)
            if mended.returncode:
                outcome.complaints.append(f"apply: exit {mended.returncode}: {mended.stdout}{mended.stderr}")
        outcome.complaints += _differing("drift afterwards", self.drift(), set())
        return outcome

    def overlook(self, name: str, do: str) -> Outcome:
        """Make a change that neither drift nor verify may report."""
        outcome = Outcome(name)
        self.change(do)
        outcome.complaints += _differing("drift", self.drift(), set())
        outcome.complaints += _differing("verify", self.verify(), set())
        return outcome


AT_ONCE = 7


def turns(mutations: Iterable[Mutation]) -> list[list[Mutation]]:
    """Return mutations in groups that are made at once: no two in a group are reported by the same check."""
    groups: list[list[Mutation]] = []
    for mutation in mutations:
        for group in groups:
            if len(group) < AT_ONCE and not any(_clash(mutation, each) for each in group):
                group.append(mutation)
                break
        else:
            groups.append([mutation])
    return groups


def _clash(one: Mutation, other: Mutation) -> bool:
    """Return whether two mutations cannot be made at once."""
    alone = any(each.alone or each.silences or each.reboots for each in (one, other))
    return alone or bool(set(one.checks) & set(other.checks))


def possible(mutations: Iterable[Mutation], group: LockedGroup) -> list[Mutation]:
    """Return the mutations that a group's lock makes relevant."""
    stated = {each.check for each in expectations(group)}
    return [mutation for mutation in mutations if stated.issuperset(mutation.checks[:1])]


def _differing(witness: str, seen: set[str], must: set[str]) -> list[str]:
    """Return what a witness does not name, and what it names beyond that."""
    complaints = []
    if missed := must - seen:
        complaints.append(f"{witness} does not name {', '.join(sorted(missed))}")
    if beyond := seen - must:
        complaints.append(f"{witness} names {', '.join(sorted(beyond))}")
    return complaints

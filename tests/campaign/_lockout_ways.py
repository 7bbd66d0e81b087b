"""Ways to lose access to a server: the fault, its moment, and the fleet's settings meanwhile."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov_lab import Node, engine
from gpuprov_lab.host import execute
from gpuprov_lab.network import GATEWAY

ADMIN = "ops"
SWITCH = "var/lib/gpuprov/deadman"
OPTIONS = "etc/ssh/sshd_config.d/00-gpuprov.conf"
CONFIG = "etc/ssh/sshd_config"
BLOCK = "# BEGIN gpuprov"
ADD = (
    "add() { if [ -d /etc/ssh/sshd_config.d ]; then echo $* >/etc/ssh/sshd_config.d/00-another.conf;"
    f' else sed -i "1i $*" /{CONFIG}; fi; }}'
)
"""Shell function that adds an option of sshd before all others."""
RULES = "etc/gpuprov/firewall.nft"
BOOT_S = 30.0
SESSION_S = 400.0
"""Seconds until a virtual node accepts a session again, after a boot or the switch's time."""
KEPT = (
    *("etc/ssh", "etc/sudoers", "etc/sudoers.d", "etc/default/ssh", "etc/sysconfig/sshd", "etc/gpuprov"),
    f"home/{ADMIN}/.ssh",
)
"""Paths that the dead man's switch restores."""
DENY = "tcp dport 22 ct state new drop"
SHUT = "table inet gpuprov { chain input { type filter hook input priority 0; " + DENY + "; }; }"
"""Rules in gpuprov's own table that drop new SSH connections."""


@dataclass
class Trial:
    """One node that loses access, and its controller; `sshd` is the unit of the node's sshd."""

    node: Node
    folder: Path
    guard: int
    sshd: str
    controller: subprocess.Popen[str] | None = None
    broken_at: float = 0.0
    seen: str = ""
    before: dict[str, bytes] = field(default_factory=dict)

    def files(self) -> dict[str, bytes]:
        """Return the files that the switch restores as they are now: path → mode, owner and content."""
        found = {}
        for top in (self.node.root / name for name in KEPT):
            for path in [top, *top.rglob("*")] if top.exists() else []:
                at = path.lstat()
                content = path.read_bytes() if path.is_file() else b"no file"
                found[str(path.relative_to(self.node.root))] = (
                    b"%o %d:%d " % (at.st_mode, at.st_uid, at.st_gid) + content
                )
        return found

    def console(self, command: str) -> str:
        """Run a command on the node by another way than a new SSH login; return its output.

        For a virtual node it is an SSH session that stays open: it is not cut off, while new logins are
        refused. `$SSHD` in the command is the unit of sshd, and `add OPTION VALUE` adds an option of it.
        """
        command = f"SSHD={self.sshd}; {ADD}; {command}"
        if self.node.virtual:
            return self._by_session(command)
        return execute(["nsenter", f"--target={self._init()}", "--all", "/bin/sh", "-c", command])

    def _init(self) -> int:
        """Return the node's first process; while the node boots it has none for a moment.

        Raises:
            NodeFailed: it has none within `BOOT_S`.
        """
        deadline = time.monotonic() + BOOT_S
        while time.monotonic() < deadline:
            if found := [pid for pid in engine.processes(self.node.machine) if _first(pid)]:
                return found[0]
            time.sleep(0.1)
        raise NodeFailed(f"{self.node.name} has no first process", expected=f"one within {BOOT_S:g} s")

    def has(self, path: str) -> bool:
        """Return whether a file exists on the node."""
        if self.node.virtual:
            return self.console(f"test ! -e /{path} || echo there") == "there\n"
        return (self.node.root / path).exists()

    @property
    def hardened(self) -> bool:
        """Whether gpuprov's options of sshd are on the disk."""
        return self.has(OPTIONS) or BLOCK in self.text(CONFIG)

    def text(self, path: str) -> str:
        """Return a file of the node; "" if it does not exist."""
        return self.console(f"cat /{path}").strip() if self.has(path) else ""

    def _by_session(self, command: str) -> str:
        """Run a command in an SSH session that stays open during the trial, and is opened again after a boot.

        Raises:
            NodeFailed: the command failed, or no session can be opened within `SESSION_S`.
        """
        deadline = time.monotonic() + SESSION_S
        while True:
            try:
                return execute([*self.open_session(), command])
            except NodeFailed as error:
                if " exited with 255: " not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(5)

    def open_session(self) -> list[str]:
        """Return the ssh command of that session."""
        ssh, *words = self.node.ssh_command()
        shared = (
            *("ControlMaster=auto", f"ControlPath={self.folder / 'console'}", "ControlPersist=600"),
            *("ServerAliveInterval=30", "ServerAliveCountMax=10"),
        )
        return [ssh, *(word for option in shared for word in ("-o", option)), *words]

    def await_armed(self) -> None:
        """Wait until the switch is armed and nothing has changed yet."""
        self._await(lambda: self.has(f"{SWITCH}/armed"), "armed")

    def await_written(self) -> None:
        """Wait until sshd's options are on the disk."""
        self._await(lambda: self.hardened, "written")

    def await_filed(self) -> None:
        """Wait until the rules are on the disk."""
        self._await(lambda: self.has(RULES), "to have rules")

    def await_restoring(self) -> None:
        """Wait until the old state is being restored; the controller learns this later."""
        self._await(lambda: self.has(f"{SWITCH}/restoring"), "restoring")

    def await_loaded(self) -> None:
        """Wait until the firewall's rules are loaded."""
        self._await(self._denies, "loaded")

    def _denies(self) -> bool:
        """Return whether the node has gpuprov's firewall, after a short pause."""
        time.sleep(0.1)
        return "inet gpuprov\n" in self.console("nft list tables")

    def cut_network(self, seconds: float) -> None:
        """Disconnect the node from the network for some seconds."""
        self._in_network("ip link set eth0 down")
        time.sleep(seconds)
        self._in_network(f"ip link set eth0 up && ip route replace default via {GATEWAY}")

    def kill_controller(self) -> None:
        """Kill the controller as a power failure does, without a message or cleanup."""
        assert self.controller
        self.controller.kill()

    def _in_network(self, command: str) -> str:
        """Run a command in the network of the node's link; return its output."""
        return execute(["ip", "netns", "exec", self.node.link.namespace, "sh", "-c", command])

    def _await(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds, and record that time.

        Raises:
            GpuprovError: the controller ended before; `what` is the condition in its message.
        """
        assert self.controller
        while not holds():
            if self.controller.poll() is not None:
                result = self.controller.communicate()[1].strip().splitlines()[-3:]
                raise GpuprovError(f"the controller ended before the node was {what}: {result}")
            time.sleep(1 if self.node.virtual else 0.01)
        self.broken_at = time.monotonic()


Step = Callable[[Trial], None]


@dataclass(frozen=True)
class Way:
    """One way to lose access to a server.

    Attributes:
        during: step while apply runs.
        before: step before apply runs.
        settings: settings of the fleet.
        lock: changes the lock by hand.
        refused: preconditions must stop the run before anything changes.
        full: a disk is full at the end, and each file must be as before.
        kept: the change may also be kept.
        virtual: needs a node with its own kernel and clock. Only the switch is armed, as if the controller
            died at that moment: a whole apply takes minutes on an emulated node.
    """

    name: str
    during: Step | None = None
    before: Step | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    user: str = ADMIN
    lock: Callable[[dict[str, Any]], None] | None = None
    refused: bool = False
    full: bool = False
    kept: bool = False
    virtual: bool = False


def without_ssh(group: dict[str, Any]) -> None:
    """Remove the rules that accept SSH from the firewall in the lock."""
    rules = group["settings"]["firewall"]["value"]["ruleset"]
    rules["input"] = [rule for rule in rules["input"] if "dport 22" not in rule]


def at(moment: str, *commands: str) -> Step:
    """Return a step that runs commands on the node's console at a moment of the change."""

    def step(trial: Trial) -> None:
        getattr(trial, f"await_{moment}")()
        trial.console(" && ".join(commands))

    return step


def killed(moment: str) -> Step:
    """Return a step that kills the controller at a moment of the change."""

    def step(trial: Trial) -> None:
        getattr(trial, f"await_{moment}")()
        trial.kill_controller()

    return step


def cut(moment: str) -> Step:
    """Return a step that cuts the network at a moment of the change until after the node has restored."""

    def step(trial: Trial) -> None:
        getattr(trial, f"await_{moment}")()
        trial.cut_network(trial.guard + 5)

    return step


def rebooted(trial: Trial) -> None:
    """Reboot the node while no login is possible."""
    trial.await_loaded()
    trial.console("systemctl --no-block reboot")


def clock_set(*jumps: str) -> Step:
    """Return a step that blocks SSH, then sets the clock several times; only the switch can restore it."""

    def step(trial: Trial) -> None:
        """Close the network, and set the node's clock to each time."""
        trial.console(f"nft '{SHUT}'")
        set_clock = "; sleep 5; ".join(f"date --set '{jump}' +%T" for jump in jumps)
        clocks = trial.console(f"date +%T; {set_clock}")
        trial.seen = f"its clock went from {' to '.join(clocks.split())}"

    return step


KEYS = f"/home/{ADMIN}/.ssh/authorized_keys"
RESTART = "systemctl restart $SSHD"
WAYS = (
    Way(
        "another key in authorized_keys",
        at("armed", f"ssh-keygen -qt ed25519 -N '' -f /tmp/k && cp /tmp/k.pub {KEYS}"),
    ),
    Way("authorized_keys removed", at("written", f"rm {KEYS}")),
    Way("~/.ssh removed", at("written", f"rm -r /home/{ADMIN}/.ssh")),
    Way("home folder open to all (StrictModes)", at("armed", f"chmod 777 /home/{ADMIN}")),
    Way("sudo rights removed", at("armed", f"rm /etc/sudoers.d/{ADMIN} && gpasswd -d {ADMIN} sudo")),
    Way("group typo in allow_groups", settings={"ssh": {"allow_groups": ["opps"]}}, refused=True),
    Way(
        "another drop-in: AllowUsers without the admin",
        at("armed", "add AllowUsers nobody", RESTART),
    ),
    Way("another drop-in: no keys", at("armed", "add PubkeyAuthentication no", RESTART)),
    Way(
        "sshd's configuration broken, sshd does not start",
        at("written", "add Nonsense yes", f"{RESTART} || true"),
    ),
    Way("sshd stopped and masked", at("written", "systemctl mask --now $SSHD"), kept=True),
    Way(
        "host key replaced", at("armed", "cd /etc/ssh && rm ssh_host_ed25519_key* && ssh-keygen -A", RESTART)
    ),
    Way(
        "new port blocked by another firewall",
        at(
            "loaded",
            "nft add table inet other",
            "nft 'add chain inet other c { type filter hook input priority -9; }'",
            "nft add rule inet other c tcp dport 2222 drop",
        ),
        settings={"ssh": {"port": 2222}},
    ),
    Way(
        "new port taken",
        before=lambda trial: trial.console("systemd-run python3 -m http.server 2222; sleep 1"),
        settings={"ssh": {"port": 2222}},
        refused=True,
    ),
    Way("firewall without SSH", lock=without_ssh),
    Way(
        "firewall for another network only",
        settings={"firewall": {"ssh_from": ["192.0.2.0/24"], "fleet": ["192.0.2.0/24"]}},
        refused=True,
    ),
    Way("the only admin disabled: root: no", settings={"ssh": {"root": "no"}}, user="root", refused=True),
    Way(
        "sshd's configuration broken beforehand",
        before=lambda trial: trial.console("add Nonsense yes"),
        refused=True,
    ),
    Way("controller killed when armed", killed("armed")),
    Way("controller killed when options are written", killed("written")),
    Way("controller killed when nobody gets in", killed("loaded"), lock=without_ssh),
    Way("network cut when armed", cut("armed")),
    Way("network cut when options are written", cut("written")),
    Way("network cut when nobody gets in", cut("loaded"), lock=without_ssh),
    Way(
        "rebooted when nobody gets in, controller killed",
        lambda trial: (rebooted(trial), trial.kill_controller())[0],
        lock=without_ssh,
    ),
    Way("rebooted when nobody gets in", rebooted, lock=without_ssh),
    Way("clock set 6 hours ahead, then 12 back", clock_set("6 hours", "12 hours ago"), virtual=True),
)


def _first(pid: int) -> bool:
    """Return whether a process is the first of its node."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the process may end during the read
        return False
    spaces = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
    return len(spaces) > 2 and spaces[-1] == "1"

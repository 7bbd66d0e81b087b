"""The ways to lose a server: what breaks it, when, and what the fleet wants of it meanwhile."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuprov.errors import GpuprovError, NodeFailed
from gpuprov.lab import Node, engine
from gpuprov.lab.host import execute
from gpuprov.lab.network import GATEWAY

ADMIN = "ops"
SWITCH = "var/lib/gpuprov/deadman"
OPTIONS = "etc/ssh/sshd_config.d/00-gpuprov.conf"
RULES = "etc/gpuprov/firewall.nft"
BOOT_S = 30.0
KEPT = ("etc/ssh", "etc/sudoers", "etc/sudoers.d", "etc/default/ssh", "etc/gpuprov", f"home/{ADMIN}/.ssh")
"""What the switch gives back."""
DENY = "tcp dport 22 ct state new drop"
SHUT = "table inet gpuprov { chain input { type filter hook input priority 0; " + DENY + "; }; }"
"""What a firewall without SSH does, in gpuprov's own table."""


@dataclass
class Trial:
    """One node while it is being lost, with the controller that changes it."""

    node: Node
    folder: Path
    guard: int
    controller: subprocess.Popen[str] | None = None
    broken_at: float = 0.0
    seen: str = ""
    before: dict[str, bytes] = field(default_factory=dict)

    def files(self) -> dict[str, bytes]:
        """What the switch gives back, as it is now: path → mode, owner and content."""
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
        """Output of a command on the node, run by other ways than SSH.

        Of a virtual node it is a session that stays open: nobody new gets in, and it is not cut off.
        """
        if self.node.virtual:
            return execute([*self._open_session(), command])
        return execute(["nsenter", f"--target={self._init()}", "--all", "/bin/sh", "-c", command])

    def _init(self) -> int:
        """The node's first process; a node that is booting has none for a moment."""
        deadline = time.monotonic() + BOOT_S
        while time.monotonic() < deadline:
            if found := [pid for pid in engine.processes(self.node.machine) if _first(pid)]:
                return found[0]
            time.sleep(0.1)
        raise NodeFailed(f"{self.node.name} has no first process", expected=f"one within {BOOT_S:g} s")

    def has(self, path: str) -> bool:
        """Whether a file is on the node."""
        if self.node.virtual:
            return self.console(f"test ! -e /{path} || echo there") == "there\n"
        return (self.node.root / path).exists()

    def text(self, path: str) -> str:
        """A file of the node; "" where there is none."""
        return self.console(f"cat /{path}").strip() if self.has(path) else ""

    def _open_session(self) -> list[str]:
        ssh, *words = self.node.ssh_command()
        shared = ("ControlMaster=auto", f"ControlPath={self.folder / 'console'}", "ControlPersist=600")
        return [ssh, *(word for option in shared for word in ("-o", option)), *words]

    def await_armed(self) -> None:
        """Until the switch is armed and nothing has changed yet."""
        self._await(lambda: self.has(f"{SWITCH}/armed"), "armed")

    def await_written(self) -> None:
        """Until sshd's options are on the disk."""
        self._await(lambda: self.has(OPTIONS), "written")

    def await_filed(self) -> None:
        """Until the rules are on the disk."""
        self._await(lambda: self.has(RULES), "to have rules")

    def await_restoring(self) -> None:
        """Until the old state comes back; sooner than the controller is told."""
        self._await(lambda: self.has(f"{SWITCH}/restoring"), "restoring")

    def await_loaded(self) -> None:
        """Until the firewall denies."""
        self._await(self._denies, "loaded")

    def _denies(self) -> bool:
        time.sleep(0.1)
        return "inet gpuprov\n" in self.console("nft list tables")

    def cut_network(self, seconds: float) -> None:
        """Pull the node's cable for some time."""
        self._in_network("ip link set eth0 down")
        time.sleep(seconds)
        self._in_network(f"ip link set eth0 up && ip route replace default via {GATEWAY}")

    def kill_controller(self) -> None:
        """As a power cut does: nothing is said, nothing is cleaned up."""
        assert self.controller
        self.controller.kill()

    def _in_network(self, command: str) -> str:
        return execute(["ip", "netns", "exec", self.node.link.namespace, "sh", "-c", command])

    def _await(self, holds: Callable[[], bool], what: str) -> None:
        assert self.controller
        while not holds():
            if self.controller.poll() is not None:
                told = self.controller.communicate()[1].strip().splitlines()[-3:]
                raise GpuprovError(f"the controller ended before the node was {what}: {told}")
            time.sleep(0.01)
        self.broken_at = time.monotonic()


Step = Callable[[Trial], None]


@dataclass(frozen=True)
class Way:
    """One way to lose a server.

    `before` happens before the run, `during` while it runs; `settings` are the fleet's, `lock` changes the
    lock by hand. `refused` says that preconditions have to stop it before anything changes, `full` that a
    disk is full in the end and each file has to be as it was, `kept` that the change may stay instead.
    `virtual` says that it takes a node with a kernel, and a clock, of its own. There the switch is armed and
    nothing follows, as if the controller died that moment: what apply does takes an emulated node minutes.
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
    """A firewall whose rules let no SSH in."""
    rules = group["settings"]["firewall"]["value"]["ruleset"]
    rules["input"] = [rule for rule in rules["input"] if "dport 22" not in rule]


def at(moment: str, *commands: str) -> Step:
    """Run commands on the node's console once the change has come so far."""

    def step(trial: Trial) -> None:
        getattr(trial, f"await_{moment}")()
        trial.console(" && ".join(commands))

    return step


def killed(moment: str) -> Step:
    """Kill the controller once the change has come so far."""

    def step(trial: Trial) -> None:
        getattr(trial, f"await_{moment}")()
        trial.kill_controller()

    return step


def cut(moment: str) -> Step:
    """Cut the network once the change has come so far, until after the node has given up."""

    def step(trial: Trial) -> None:
        getattr(trial, f"await_{moment}")()
        trial.cut_network(trial.guard + 5)

    return step


def rebooted(trial: Trial) -> None:
    """Reboot the node while nobody gets in."""
    trial.await_loaded()
    trial.console("systemctl --no-block reboot")


def clock_set(*jumps: str) -> Step:
    """Shut everybody out, then set the clock several times; the switch's timer is all that is left."""

    def step(trial: Trial) -> None:
        trial.console(f"nft '{SHUT}'")
        set_clock = "; sleep 5; ".join(f"date --set '{jump}' +%T" for jump in jumps)
        clocks = trial.console(f"date +%T; {set_clock}")
        trial.seen = f"its clock went from {' to '.join(clocks.split())}"

    return step


KEYS = f"/home/{ADMIN}/.ssh/authorized_keys"
OTHERS = "/etc/ssh/sshd_config.d/00-another.conf"
RESTART = "systemctl restart ssh"
WAYS = (
    Way(
        "another key in authorized_keys",
        at("armed", f"ssh-keygen -qt ed25519 -N '' -f /tmp/k && cp /tmp/k.pub {KEYS}"),
    ),
    Way("authorized_keys removed", at("written", f"rm {KEYS}")),
    Way("home folder open to all (StrictModes)", at("armed", f"chmod 777 /home/{ADMIN}")),
    Way("sudo rights removed", at("armed", f"rm /etc/sudoers.d/{ADMIN} && gpasswd -d {ADMIN} sudo")),
    Way("group typo in allow_groups", settings={"ssh": {"allow_groups": ["opps"]}}, refused=True),
    Way(
        "another drop-in: AllowUsers without the admin",
        at("armed", f"echo AllowUsers nobody >{OTHERS}", RESTART),
    ),
    Way("another drop-in: no keys", at("armed", f"echo PubkeyAuthentication no >{OTHERS}", RESTART)),
    Way(
        "sshd's configuration broken, sshd does not start",
        at("written", f"echo Nonsense yes >{OTHERS}", f"{RESTART} || true"),
    ),
    Way("sshd stopped and masked", at("written", "systemctl mask --now ssh")),
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
        before=lambda trial: trial.console(f"echo Nonsense yes >{OTHERS}"),
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
    """Whether a process is the first of its node."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it may end while it is read
        return False
    spaces = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
    return len(spaces) > 2 and spaces[-1] == "1"

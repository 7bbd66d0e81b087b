"""Ways to lose a server while SSH and firewall change, each on a real node: is the operator in afterwards?

    scripts/campaign lockout [NAME...] [--guard SECONDS] [--at-once N]

A way ends well when the fleet's own login works again by itself: plain ssh, the same user and key, sudo. What
breaks a node is done from its console; nothing that mends it is.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import yaml

from gpuprov.errors import GpuprovError
from gpuprov.lab import Lab, Node, engine, lab_names, saved_images
from gpuprov.lab.host import execute, locked
from gpuprov.lab.images import drop_image
from gpuprov.lab.variants import with_admin

ADMIN = "ops"
SWITCH = "var/lib/gpuprov/deadman"
SYSTEMS = ("debian12", "debian13")
PROFILE = "hgx-a100-4"
KERNELS = {"debian12": "6.1.0-56-amd64", "debian13": "6.12.94+deb13-amd64"}


@dataclass
class Trial:
    """One node while it is being lost, with the controller that changes it."""

    node: Node
    folder: Path
    guard: int
    controller: subprocess.Popen[str] | None = None
    broken_at: float = 0.0

    def console(self, command: str) -> str:
        """Output of a command on the node, run by other ways than SSH."""
        pid = next(pid for pid in engine.processes(self.node.machine) if _first(pid))
        return execute(["nsenter", f"--target={pid}", "--all", "/bin/sh", "-c", command])

    def await_armed(self) -> None:
        """Until the switch is armed and nothing has changed yet."""
        self._await(lambda: (self.node.root / SWITCH / "armed").exists(), "armed")

    def await_written(self) -> None:
        """Until sshd's options are on the disk."""
        self._await(lambda: (self.node.root / "etc/ssh/sshd_config.d/00-gpuprov.conf").exists(), "written")

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
        self._in_network(f"ip link set eth0 up && ip route replace default via {_gateway()}")

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
    lock by hand. `refused` says that preconditions have to stop it before anything changes.
    """

    name: str
    during: Step | None = None
    before: Step | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    user: str = ADMIN
    lock: Callable[[dict[str, Any]], None] | None = None
    refused: bool = False


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


def small_disk(trial: Trial) -> None:
    """Put the node on a file system of 300 MB."""
    node = trial.node
    with locked(node.lab_folder / "lock"):  # a node without its root would be taken for a broken one
        node.stop()
        engine.unmount_below(node.root)
        execute(["rm", "-rf", node.upper / "var/cache/apt/archives"])
        execute(["cp", "-a", node.folder, trial.folder / "kept"])
        execute(["mount", "-t", "tmpfs", "-o", "size=300m", "gpuprov-lockout", node.folder])
        execute(["cp", "-a", f"{trial.folder}/kept/.", node.folder])
        node.mount()
        node.start()


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
    Way(
        "disk full",
        at(
            "armed",
            "dd if=/dev/zero of=/fill bs=1M || dd if=/dev/zero of=/fill2 bs=1k || test -s /fill",
        ),
        before=small_disk,
    ),
)


@dataclass(frozen=True)
class Outcome:
    """How one way ended: `seconds` from the break until the operator was in again."""

    way: Way
    system: str
    how: str
    seconds: float
    recovered: bool
    told: str


def say(line: str = "", *, to: TextIO = sys.stdout) -> None:
    """A line of the report, or of the progress."""
    to.write(line + "\n")
    to.flush()


def main() -> int:
    """Try the ways; 0 when every node came back."""
    parser = argparse.ArgumentParser(prog="scripts/campaign lockout")
    parser.add_argument("names", nargs="*", help="only ways with these words in their names")
    parser.add_argument("--guard", type=int, default=30, help="seconds until a node restores")
    parser.add_argument("-v", "--verbose", action="store_true", help="print what each run said")
    parser.add_argument("--at-once", type=int, default=3, help="nodes at a time")
    wanted = parser.parse_args()
    _remove_leftovers()
    ways = [way for way in WAYS if not wanted.names or any(name in way.name for name in wanted.names)]
    begun = time.monotonic()
    with Lab(f"lockout-{os.getpid()}") as lab, tempfile.TemporaryDirectory() as folder:
        images = {system: _image(lab, system) for system in SYSTEMS}
        try:
            with ThreadPoolExecutor(wanted.at_once) as pool:
                jobs = [
                    pool.submit(_try, lab, images, number, way, Path(folder), wanted.guard)
                    for number, way in enumerate(ways)
                ]
                outcomes = [job.result() for job in jobs]
        finally:
            lab.down()
            for image in images.values():
                lab.drop(image)
    _say(outcomes, time.monotonic() - begun, wanted.guard, verbose=wanted.verbose)
    return 0 if all(outcome.recovered for outcome in outcomes) else 1


def _remove_leftovers() -> None:
    """Nodes and images of campaigns that were killed: their names tell the process that owned them."""

    def orphaned(name: str) -> bool:
        return name.startswith("lockout-") and not Path("/proc", name.rpartition("-")[2]).exists()

    for name in filter(orphaned, lab_names()):
        Lab(name).down()
    for name in filter(orphaned, saved_images()):
        drop_image(name)


def _image(lab: Lab, system: str) -> str:
    """A system with an admin and nftables, so that a change takes seconds."""
    [node] = lab.up(1, system, names=[f"base-{system}"], prepare=[with_admin(ADMIN)])
    node.run("apt-get -qq update && apt-get -qqy install nftables >/dev/null")
    lab.save(node, f"lockout-{system}-{os.getpid()}")
    return f"lockout-{system}-{os.getpid()}"


def _try(lab: Lab, images: dict[str, str], number: int, way: Way, folder: Path, guard: int) -> Outcome:
    system = SYSTEMS[number % len(SYSTEMS)]
    [node] = lab.up(1, image=images[system], names=[f"lost{number}"])
    own = folder / node.name
    own.mkdir()
    trial = Trial(node, own, guard)
    try:
        if way.before:
            way.before(trial)
        outcome = _lose(lab, trial, way, system)
    except GpuprovError as error:
        outcome = Outcome(way, system, f"not tried: {error}", 0.0, recovered=False, told="")
    say(f"  {outcome.seconds:5.1f} s  {way.name}: {outcome.how}", to=sys.stderr)
    lab.down([node.name])
    return outcome


def _lose(lab: Lab, trial: Trial, way: Way, system: str) -> Outcome:
    _fleet(lab, trial, way, system)
    locked = _gpuprov(trial, "lock").communicate()[1]
    if "no" in way.settings.get("ssh", {}).values():
        return Outcome(way, system, "refused by lock", 0.0, _gets_in(trial, way.user), locked)
    if way.lock:
        path = trial.folder / "fleet.lock.yml"
        lock = yaml.safe_load(path.read_text())
        for group in lock["groups"].values():
            way.lock(group)
        path.write_text(yaml.safe_dump(lock))
    options = ["--yes", "--no-verify", "--role", "ssh_hardening", "--role", "firewall"]
    trial.broken_at = time.monotonic()
    trial.controller = _gpuprov(trial, "apply", *options, "--guard", str(trial.guard))
    if way.during:
        way.during(trial)
    told = trial.controller.communicate()[1]
    _await_rest(trial)
    recovered = _gets_in(trial, way.user)
    seconds = time.monotonic() - trial.broken_at
    undone = trial.node.root / SWITCH / "undone"
    kept = (trial.node.root / "etc/ssh/sshd_config.d/00-gpuprov.conf").exists()
    why = undone.read_text().strip() if undone.exists() else ""
    if way.refused:
        return Outcome(way, system, "refused, nothing changed", 0.0, recovered and not kept, told)
    how = "the change was kept" if kept else why.partition(": ")[2].partition(";")[0] or "nothing recorded"
    return Outcome(way, system, how, seconds, recovered and not kept, told)


def _fleet(lab: Lab, trial: Trial, way: Way, system: str) -> None:
    settings = {"ssh": {}, "firewall": {"fleet": ["192.0.2.0/24"]}, "kernel": KERNELS[system], **way.settings}
    group = {
        "profile": PROFILE,
        "os": system,
        "stack": {"repository": "distribution"},
        "hosts": {trial.node.name: trial.node.address},
        "settings": settings,
    }
    ssh = {"user": way.user, "identity_file": str(lab.identity_file), "known_hosts": str(lab.known_hosts)}
    (trial.folder / "fleet.yml").write_text(yaml.safe_dump({"groups": {"lost": group}, "ssh": ssh}))


def _gpuprov(trial: Trial, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gpuprov", *words],
        cwd=trial.folder,
        env={**os.environ, "XDG_STATE_HOME": str(trial.folder)},
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _await_rest(trial: Trial) -> None:
    """Until the node is not waiting to restore any more; it has the guard's time and some for a boot."""
    deadline = time.monotonic() + trial.guard + 60
    folder = trial.node.root / SWITCH
    while (folder / "armed").exists() or (folder / "restoring").exists():
        if time.monotonic() > deadline:
            return
        time.sleep(0.1)


def _gets_in(trial: Trial, user: str) -> bool:
    """Whether the fleet's login works again; sshd of OpenSSH 10 may punish failed tries for some seconds."""
    deadline = time.monotonic() + 60
    command = "sudo -n true" if user != "root" else "true"
    while time.monotonic() < deadline:
        try:
            if trial.node.run(command, user=user, check=False, timeout=20).returncode == 0:
                return True
        except GpuprovError:
            time.sleep(1)
    return False


def _first(pid: int) -> bool:
    """Whether a process is the first of its node."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
    spaces = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
    return len(spaces) > 2 and spaces[-1] == "1"


def _gateway() -> str:
    from gpuprov.lab.network import GATEWAY

    return str(GATEWAY)


def _say(outcomes: list[Outcome], seconds: float, guard: int, *, verbose: bool) -> None:
    width = max(len(outcome.way.name) for outcome in outcomes)
    for outcome in outcomes:
        verdict = "in again" if outcome.recovered else "LOST"
        name = f"{outcome.way.name:<{width}}"
        say(f"{name}  {outcome.system}  {verdict:<8}  {outcome.seconds:5.1f} s  {outcome.how}")
        if verbose or not outcome.recovered:
            say(outcome.told)
    back = sum(outcome.recovered for outcome in outcomes)
    slowest = max(outcome.seconds for outcome in outcomes)
    total = f"{back} of {len(outcomes)} ways recovered, the slowest in {slowest:.0f} s"
    say(f"{total} with a guard of {guard} s; {seconds:.0f} s in all")


if __name__ == "__main__":
    sys.exit(main())

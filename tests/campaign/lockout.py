"""Causes each loss of access to a real node during a change of SSH and firewall, and checks that it ends.

    scripts/campaign lockout [NAME...] [--system ID | --selinux] [--guard SECONDS] [--at-once N]

A way is recovered if the fleet's own login works again without help: plain ssh, the same user and key, sudo.
Faults are caused from the node's console; nothing is corrected from there. Without --system the nodes are
Debian 12 and 13 in turn. On a system with dnf firewalld runs at first, and must run again where the change
was not kept. With --selinux all ways are tried on one virtual node of RHEL's family that enforces SELinux:
each file must have the label of the policy, and nothing may be denied.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpuprov.access.deadman import LIMITS, Guard, arm
from gpuprov.bootstrap.enter import python_of
from gpuprov.catalog import load
from gpuprov.catalog.platforms import platform
from gpuprov.errors import GpuprovError
from gpuprov.model.lock import read_lock
from gpuprov.ssh.transport import open_session, targets
from gpuprov_lab import Lab, lab_names, saved_images
from gpuprov_lab.images import drop_image
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.serve import served
from gpuprov_lab.releases import BY_SYSTEM
from gpuprov_lab.variants import with_admin
from tests.campaign import _lockout_enforcing as enforcing
from tests.campaign._lockout_full_disks import FULL_DISKS, wrong_files
from tests.campaign._lockout_ways import ADMIN, SWITCH, WAYS, Trial, Way
from tests.lab.command_line import start
from tests.systems import DEBIAN, IMAGES, OF_DNF, SSH

PROFILE = "hgx-a100-4"
VIRTUAL_GUARD_S = 180
"""An emulated node takes seconds for steps that are immediate on others."""
KERNELS = {"debian12": "6.1.0-56-amd64", "debian13": "6.12.94+deb13-amd64"}
OF_MIRROR = {"repository": "nvidia", "driver": "580.126.16"}
"""Stack of a system whose distribution has no driver."""
FIREWALLS = {
    "apt": "apt-get -qq update && apt-get -qqy install nftables >/dev/null",
    "dnf": "dnf -q -y install nftables firewalld && systemctl -q enable --now firewalld",
}
FIREWALLD = "systemctl is-enabled firewalld; systemctl is-active firewalld"


@dataclass(frozen=True)
class Nodes:
    """Images of nodes by system, and the repositories of fleets."""

    images: dict[str, str]
    repositories: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """Result of one way; `seconds` is the time from the fault until the login worked again."""

    way: Way
    system: str
    how: str
    seconds: float
    recovered: bool
    message: str
    tried: bool = True


def main() -> int:
    """Run the campaign; return 0 if every node recovered."""
    parser = argparse.ArgumentParser(prog="scripts/campaign lockout")
    parser.add_argument("names", nargs="*", help="only ways with these words in their names, in this order")
    parser.add_argument("--system", choices=[*DEBIAN, *OF_DNF], help="all nodes are of this one")
    parser.add_argument("--selinux", action="store_true", help="on a virtual node that enforces it")
    parser.add_argument("--guard", type=int, default=30, help="seconds until a node restores")
    parser.add_argument("-v", "--verbose", action="store_true", help="print what each run said")
    parser.add_argument("--at-once", type=int, default=3, help="nodes at a time")
    wanted = parser.parse_args()
    _remove_leftovers()
    named = wanted.names or [""]
    matching = (way for name in named for way in (*WAYS, *FULL_DISKS) if name in way.name)
    ways = list({way.name: way for way in matching}.values())
    if wanted.selinux:
        return _enforcing(list(enforcing.tried(ways)), wanted)
    if wanted.system in OF_DNF:
        for way in (way for way in ways if way.virtual):
            print(f"not tried: {way.name}: a played node has no kernel of its own to boot")
        ways = [way for way in ways if not way.virtual]
    begun = time.monotonic()
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(f"lockout-{os.getpid()}"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        systems = [
            wanted.system or DEBIAN[0 if way.virtual else number % len(DEBIAN)]
            for number, way in enumerate(ways)
        ]
        nodes = Nodes(
            {system: _image(lab, system) for system in sorted(set(systems))},
            _repositories(stack, folder, sorted(set(systems) & {*OF_DNF})),
        )
        try:
            with ThreadPoolExecutor(wanted.at_once) as pool:
                jobs = [
                    pool.submit(_try, nodes, number, system, way, folder, wanted.guard)
                    for number, (system, way) in enumerate(zip(systems, ways, strict=True))
                ]
                outcomes = [job.result() for job in jobs]
        finally:
            lab.down()
            for image in nodes.images.values():
                lab.drop(image)
    _say(outcomes, time.monotonic() - begun, wanted.guard, verbose=wanted.verbose)
    return 0 if all(outcome.recovered for outcome in outcomes) else 1


def _enforcing(ways: list[Way], wanted: argparse.Namespace) -> int:
    """Try ways one after another on a node that enforces SELinux; return 0 if it recovered from each."""
    begun, guard = time.monotonic(), max(wanted.guard, enforcing.GUARD_S)
    outcomes = []
    with Lab(f"lockout-{os.getpid()}") as lab, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        repositories = _repositories(stack, folder, [enforcing.SYSTEM])
        node = enforcing.prepared(lab, FIREWALLS["dnf"])
        print(f"    booted and ready: {time.monotonic() - begun:.0f} s", file=sys.stderr)
        for number, way in enumerate(ways):
            trial = enforcing.returned(node, folder / str(number), guard)
            outcomes.append(_tried(lab, trial, way, enforcing.SYSTEM, repositories))
    _say(outcomes, time.monotonic() - begun, guard, verbose=wanted.verbose)
    return 0 if all(outcome.recovered for outcome in outcomes) else 1


def _remove_leftovers() -> None:
    """Remove nodes and images of killed campaigns: their names contain the process id of their owner."""

    def orphaned(name: str) -> bool:
        return name.startswith("lockout-") and not Path("/proc", name.rpartition("-")[2]).exists()

    for name in filter(orphaned, lab_names()):
        Lab(name).down()
    for name in filter(orphaned, saved_images()):
        drop_image(name)


def _image(lab: Lab, system: str) -> str:
    """Save an image of a system with its firewalls, so that a change takes seconds; return its name."""
    [node] = lab.up(1, IMAGES[system], names=[f"base-{system}"])
    node.run(FIREWALLS[platform(system).manager])
    python = python_of(system)  # as `gpuprov bootstrap`
    node.run(f"command -v {python} || dnf -q -y install {python}")
    lab.save(node, f"lockout-{system}-{os.getpid()}")
    return f"lockout-{system}-{os.getpid()}"


def _repositories(stack: ExitStack, folder: Path, systems: list[str]) -> dict[str, Any]:
    """Serve a mirror for these systems; return the repositories of a fleet, none without a system."""
    if not systems:
        return {}
    mirror = nvidia.build(folder / "mirror", load(), systems)
    url = stack.enter_context(served(mirror.root)).url
    return {name: {"url": place, "key": str(mirror.key)} for name, place in mirror.urls(url).items()}


def _try(nodes: Nodes, number: int, system: str, way: Way, folder: Path, guard: int) -> Outcome:
    """Try a way on a new node in a separate lab.

    Starting a node removes broken ones of its lab, and a rebooting node looks broken.
    """
    sshd = (platform(system).sshd_unit or "").removesuffix(".service")
    with Lab(f"lockout-{number}-{os.getpid()}") as lab:
        names = [f"lost{number}"]
        [node] = lab.up(1, image=nodes.images[system], names=names, prepare=[with_admin(ADMIN)])
        own = folder / node.name
        own.mkdir()
        return _tried(lab, Trial(node, own, guard, sshd), way, system, nodes.repositories)


def _tried(lab: Lab, trial: Trial, way: Way, system: str, repositories: dict[str, Any]) -> Outcome:
    """Try one way on a node, and print what happened; return its outcome."""
    begun = time.monotonic()
    try:
        if way.virtual and not trial.node.virtual:
            trial.node, trial.guard = lab.virtualise(trial.node), max(trial.guard, VIRTUAL_GUARD_S)
            trial.console("true")  # opens the persistent session
        if way.before:
            way.before(trial)
        _fleet(lab, trial, way, system, repositories)
        outcome = _lose(trial, way, system)
    except GpuprovError as error:
        outcome = Outcome(way, system, str(error), 0.0, recovered=False, message="", tried=False)
    took = f"{time.monotonic() - begun:.0f} s in all"
    verdict = "in again" if outcome.recovered else "NOT recovered"
    said = f"  {outcome.seconds:5.1f} s, {took}, {verdict}  {way.name}: {outcome.how}"
    print(said, file=sys.stderr, flush=True)
    return outcome


def _lose(trial: Trial, way: Way, system: str) -> Outcome:
    """Apply with a way's fault; return the outcome, with how the node can be reached again."""
    locked = start(trial.folder, "lock").communicate()[1]
    if "no" in way.settings.get("ssh", {}).values():
        return Outcome(way, system, "refused by lock", 0.0, _gets_in(trial, way.user), locked)
    if way.lock:
        path = trial.folder / "fleet.lock.yml"
        lock = yaml.safe_load(path.read_text())
        for group in lock["groups"].values():
            way.lock(group)
        path.write_text(yaml.safe_dump(lock))
    if way.virtual:
        return _lose_alone(trial, way, system)
    options = ["--yes", "--no-verify", "--role", "ssh_hardening", "--role", "firewall"]
    trial.broken_at = time.monotonic()
    trial.controller = start(trial.folder, "apply", *options, "--guard", str(trial.guard))
    if way.during:
        way.during(trial)
    result = trial.controller.communicate()[1]
    _await_rest(trial)
    recovered = _gets_in(trial, way.user)
    seconds = time.monotonic() - trial.broken_at
    kept, why = trial.hardened, trial.text(f"{SWITCH}/undone")
    wrong = wrong_files(trial, kept=kept) if way.full else []
    wrong += _wrong_firewalld(trial, kept=kept) if system in OF_DNF else []
    wrong += enforcing.wrong_labels(trial) if trial.node.virtual else []
    well = recovered and (way.kept or not kept) and not wrong
    if way.refused:
        return Outcome(way, system, _with(wrong, "refused, nothing changed"), 0.0, well, result)
    how = "the change was kept" if kept else _reason(why)
    return Outcome(way, system, _with(wrong, how), seconds, well, result)


def _lose_alone(trial: Trial, way: Way, system: str) -> Outcome:
    """Arm the switch as apply does, and do not return."""
    [target] = targets(read_lock(trial.folder / "fleet.lock.yml"), [trial.node.name])
    trial.broken_at = time.monotonic()
    with open_session(target, LIMITS) as session:
        arm(session, Guard(trial.guard), "lockout")
    assert way.during
    way.during(trial)
    _await_rest(trial)
    recovered = _gets_in(trial, way.user)
    seconds = time.monotonic() - trial.broken_at
    how = f"{_reason(trial.text(f'{SWITCH}/undone'))}; {trial.seen}, the guard was {trial.guard} s"
    # A restore before the guard's time is an error: a good change needs that time.
    return Outcome(way, system, how, seconds, recovered and seconds >= trial.guard, "")


def _wrong_firewalld(trial: Trial, *, kept: bool) -> list[str]:
    """Return firewalld's unit if it is not as before, or after a kept change not off."""
    there = trial.console(f"{FIREWALLD} || :").split()
    return (
        []
        if there == (["disabled", "inactive"] if kept else ["enabled", "active"])
        else ["firewalld", *there]
    )


def _with(wrong: list[str], how: str) -> str:
    """Return a text, with the files that are not as they were."""
    return f"{how}; not as they were: {', '.join(wrong)}" if wrong else how


def _reason(undone: str) -> str:
    """Return the reason of a restore from the line that the node records."""
    return undone.partition(": ")[2].partition(";")[0] or "nothing recorded"


def _fleet(lab: Lab, trial: Trial, way: Way, system: str, repositories: dict[str, Any]) -> None:
    """Write the fleet of a trial with the way's settings."""
    kernel = trial.node.kernel if trial.node.virtual else KERNELS.get(system) or BY_SYSTEM[system].kernel
    settings = {"firewall": {"fleet": ["192.0.2.0/24"]}, "kernel": kernel, **way.settings}
    settings["ssh"] = {**SSH.get(system, {}), **way.settings.get("ssh", {})}
    group = {
        "profile": PROFILE,
        "os": system,
        "stack": OF_MIRROR if repositories else {"repository": "distribution"},
        "hosts": {trial.node.name: trial.node.address},
        "settings": settings,
    }
    ssh = {"user": way.user, "identity_file": str(lab.identity_file), "known_hosts": str(lab.known_hosts)}
    (trial.folder / "fleet.yml").write_text(
        yaml.safe_dump({"groups": {"lost": group}, "ssh": ssh, "repositories": repositories})
    )


def _await_rest(trial: Trial) -> None:
    """Wait until the node is no longer armed or restoring: the guard's time and more for a boot.

    An emulated node takes longer for everything, and longer still if it is queried often.
    """
    grace_s, pause_s = (600.0, 5.0) if trial.node.virtual else (60.0, 0.1)
    deadline = time.monotonic() + trial.guard + grace_s
    while trial.has(f"{SWITCH}/armed") or trial.has(f"{SWITCH}/restoring"):
        if time.monotonic() > deadline:
            return
        time.sleep(pause_s)


def _gets_in(trial: Trial, user: str) -> bool:
    """Return whether the fleet's login works again; sshd of OpenSSH 10 may block it for some seconds."""
    deadline = time.monotonic() + 60
    command = "sudo -n true" if user != "root" else "true"
    while time.monotonic() < deadline:
        try:
            if trial.node.run(command, user=user, check=False, timeout=20).returncode == 0:
                return True
        except GpuprovError:
            time.sleep(1)
    return False


def _say(outcomes: list[Outcome], seconds: float, guard: int, *, verbose: bool) -> None:
    """Print a line for each outcome, and the sum."""
    width = max(len(outcome.way.name) for outcome in outcomes)
    for outcome in outcomes:
        verdict = "in again" if outcome.recovered else "LOST" if outcome.tried else "not tried"
        name = f"{outcome.way.name:<{width}}"
        print(f"{name}  {outcome.system}  {verdict:<9}  {outcome.seconds:5.1f} s  {outcome.how}")
        if verbose or not outcome.recovered:
            print(outcome.message)
    back = sum(outcome.recovered for outcome in outcomes)
    slowest = max(outcome.seconds for outcome in outcomes)
    total = f"{back} of {len(outcomes)} ways recovered, the slowest in {slowest:.0f} s"
    print(f"{total} with a guard of {guard} s; {seconds:.0f} s in all")


if __name__ == "__main__":
    sys.exit(main())

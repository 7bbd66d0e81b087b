"""Makes single changes to a provisioned node: drift must report, verify fail, and apply correct each of them.

    scripts/campaign mutations [--system ID] [--only TEXT]... [--alone] [--times N] [--overruling]
    scripts/campaign mutations --markdown

Changes that different checks report are made at once; after a complaint each of them is made alone, too.
Then it tries every way to override a setting or component (docs/effective.md): drift and verify must report
it, and apply must correct it or name its place. Last it looks ten times at a node without changes, some of
them right after a reboot or while packages are installed, and makes changes that concern no check. Exit 1 if
drift or verify missed or invented anything. On another system than Debian 12 the driver is NVIDIA's, from the
mirror, with CUDA, cuDNN and NCCL; changes that have no counterpart there are printed with their reasons.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from gpuprov.bootstrap.enter import python_of
from gpuprov.catalog import load
from gpuprov_lab import Lab, Node
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.key import signing_key
from gpuprov_lab.mirror.serve import served
from gpuprov_lab.simulator import stub_module
from tests.campaign._overruling_table import markdown
from tests.lab.command_line import gpuprov
from tests.lab.mirror_node import ubuntu
from tests.lab.mutations import Mutation, Outcome, Witnesses, excused, possible, turns
from tests.lab.mutations_with_dnf import FURTHER_CUDA, Tables, tables
from tests.lab.overruling import Tally, Way, rounds, tried
from tests.lab.provisioned_node import MACHINE, NEWER, OLDER, PROFILE, provision
from tests.systems import DEBIAN, IMAGES, OF_DNF, SSH

SETTINGS = {
    "power_limit": 300,
    "compute_mode": "default",
    "ecc": True,
    "tuning": {
        "limits": {"nofile": 16384, "memlock": 4194304},  # within the limits of a lab node
        "environment": {"OMP_NUM_THREADS": 8},
        "sysctl": {"net.ipv4.tcp_keepalive_time": 7200},  # the current value: a lab node may not change it
    },
    "nccl": {"NCCL_DEBUG": "WARN"},
    "profiling_counters": True,
    "ssh": {
        "user_ca": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPn4YJJEzyGoObArZKMN83AnBB5zaQ83upW9vBH637T7 ca"]
    },
    "firewall": {},
}
CLEAN_LOOKS = 10
COMPILED_ON = DEBIAN[0]
"""The system whose node has its distribution's driver, and NVIDIA's packages on a second node."""
STACK: dict[str, Any] = {
    "repository": "nvidia",
    "driver": "580.126.16",
    "cuda": ["13.0", "12.6"],
    "cudnn": "9.15",
    "nccl": "auto",
}
AT_WORK = {
    False: "apt-get -q update; apt-get -q -y install --reinstall less",
    True: "dnf -q makecache; dnf -q -y reinstall tar",
}
"""Whether a node has dnf → a command that installs a package again."""


def main() -> int:
    """Change a node in each way, and print whether drift and verify find it; return 1 if one does not."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "--only",
        action="append",
        default=[],
        help="mutations, or with --overruling ways, with this text in their name; repeatable",
    )
    arguments.add_argument("--system", default=COMPILED_ON, choices=[COMPILED_ON, *OF_DNF])
    arguments.add_argument("--alone", action="store_true", help="make each mutation alone")
    arguments.add_argument("--times", type=int, default=1, help="make each group of mutations so often")
    arguments.add_argument("--overruling", action="store_true", help="only the ways to overrule")
    arguments.add_argument("--markdown", action="store_true", help="print docs/effective.md and do no more")
    given = arguments.parse_args()
    if given.markdown:
        print(markdown(), end="")
        return 0
    begun = time.monotonic()
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(f"mutations-{os.getpid()}"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuprov-mutations-")))
        bad = try_all(stack, lab, folder, tables(given.system), given)
    print(f"{time.monotonic() - begun:.0f} s, {bad} bad")
    return 1 if bad else 0


def try_all(stack: ExitStack, lab: Lab, folder: Path, changes: Tables, given: argparse.Namespace) -> int:
    """Make the requested changes, and print them; return the number of bad ones."""
    only, tally, of_dnf = given.only, Tally(), given.system in OF_DNF
    witnesses = prepare_with_dnf(stack, lab, folder, given.system) if of_dnf else prepare(lab, folder)
    for name, why in changes.none.items():
        print(f"    none  {name}: {why}")
    chosen = [each for each in possible(changes.mutations, witnesses.group) if _named(each.name, only)]
    groups = ([[each] for each in chosen] if given.alone else turns(chosen)) * given.times
    bad = 0 if given.overruling else count("mutations", mutated(witnesses, groups))
    if given.overruling or not only:
        ways = [way for way in changes.ways if _named(str(way), only)]
        for_cuda = [way for way in changes.with_cuda if _named(str(way), only)]
        bad += count("ways to overrule", overruled(witnesses, ways, tally))
        if for_cuda:
            with_cuda = witnesses if of_dnf else nvidias_node(stack, lab, folder / "nvidia")
            bad += count("ways to overrule CUDA", overruled(with_cuda, for_cuda, tally))
        print(tally)
    if not only and not given.overruling:
        bad += count("clean looks", clean_looks(witnesses, AT_WORK[of_dnf]))
        bad += count("bystanders", (witnesses.overlook(*each) for each in changes.bystanders.items()))
        named = {check for each in chosen for check in each.checks} | witnesses.need_driver
        named |= {way.check for way in changes.ways}
        unseen = [check for check in witnesses.stated - named if not excused(check)]
        bad += count("checks without a mutation", (Outcome(check, ["none"]) for check in unseen))
    return bad


def _named(name: str, only: list[str]) -> bool:
    """Return whether a name has one of the texts; every one has if there are none."""
    return not only or any(text in name for text in only)


def prepare(lab: Lab, folder: Path) -> Witnesses:
    """Provision a node with every possible setting."""
    node = provision(lab, folder, settings=SETTINGS)
    lay_out_stubs(node)
    return Witnesses(node, folder)


def prepare_with_dnf(stack: ExitStack, lab: Lab, folder: Path, system: str) -> Witnesses:
    """Provision a node of a system with dnf from the mirror, with every possible setting."""
    with signing_key() as key:
        mirror = nvidia.build(folder / "mirror", load(), [system], key=key)
    (mirror.root / "again").symlink_to(".")
    server = stack.enter_context(served(mirror.root))
    [node] = lab.up(1, os=IMAGES[system], gpu=MACHINE)
    python = python_of(system)  # as `gpuprov bootstrap`
    node.run(f"command -v {python} || dnf -q -y install {python}")
    urls = {**mirror.urls(server.url), **mirror.others(server.url)}
    fleet: dict[str, Any] = {
        "ssh": yaml.safe_load(lab.fleet(PROFILE))["ssh"],
        "repositories": {name: {"url": url, "key": str(mirror.key)} for name, url in urls.items()},
        "groups": {
            "train": {
                "profile": PROFILE,
                "os": system,
                "hosts": {node.name: node.address},
                "stack": {**STACK, "cuda": ["13.0", FURTHER_CUDA.get(system, "12.6")]},
                "settings": {
                    "kernel": node.kernel,
                    **SETTINGS,
                    "ssh": {**SETTINGS["ssh"], **SSH.get(system, {})},
                },
            }
        },
    }
    (folder / "fleet.yml").write_text(yaml.safe_dump(fleet))
    gpuprov(folder, "lock")
    gpuprov(folder, "apply", "--reboot", "--yes")
    witnesses = Witnesses(node, folder)
    driver = witnesses.group.components.driver
    lay_out_stubs(node, driver.version, driver.module)
    return witnesses


def lay_out_stubs(node: Node, locked: str = NEWER, flavour: str = "proprietary") -> None:
    """Write modules to the node that mutations put in place of the right ones.

    Args:
        locked: the driver's version in the lock.
        flavour: of its module in the lock.
    """
    from base64 import b64encode

    licences = {"open": "Dual MIT/GPL", "proprietary": "NVIDIA"}
    for name, version, licence in (
        ("other", OLDER, licences[flavour]),
        ("open", locked, licences["open"]),
        ("closed", locked, licences["proprietary"]),
    ):
        stub = stub_module(version, kernel=node.kernel, licence=licence)
        node.run(f"base64 -d >/root/{name}.ko", input=b64encode(stub).decode())


def nvidias_node(stack: ExitStack, lab: Lab, folder: Path) -> Witnesses:
    """Provision a node with CUDA, cuDNN and NCCL from a mirror of NVIDIA's repositories."""
    folder.mkdir()
    key = stack.enter_context(signing_key())
    mirror = nvidia.build(folder / "mirror", load(), ["ubuntu24.04"], key=key)
    node = ubuntu(lab, folder, mirror, stack.enter_context(served(mirror.root)))
    node.state()
    gpuprov(folder, "lock")
    gpuprov(folder, "apply", "--reboot", "--yes", "--no-verify")
    return Witnesses(node.node, folder)


def mutated(witnesses: Witnesses, groups: Iterable[list[Mutation]]) -> Iterator[Outcome]:
    """Make the mutations of each group at once, and each alone if there is a complaint."""
    for group in groups:
        outcome = witnesses.testify(*group)
        if not outcome.complaints:
            yield from (Outcome(each.name) for each in group)
            continue
        yield outcome
        if len(group) > 1:
            yield from map(witnesses.testify, group)


def overruled(witnesses: Witnesses, ways: Iterable[Way], tally: Tally) -> Iterator[Outcome]:
    """Try every way, in as few rounds as possible."""
    for turn in rounds(ways, witnesses.stated):
        yield from tried(witnesses, turn, tally)


def clean_looks(witnesses: Witnesses, at_work: str) -> Iterator[Outcome]:
    """Look at an unchanged node; every third time after a reboot, every third time during this command."""
    for number in range(CLEAN_LOOKS):
        when = ("at rest", "right after a reboot", "while packages are installed")[number % 3]
        if when == "right after a reboot":
            witnesses.node.reboot()
            witnesses.node.run("systemctl is-system-running --wait", check=False)
        elif when == "while packages are installed":
            witnesses.node.run(f"systemd-run --quiet sh -c '{at_work}'")
        yield witnesses.overlook(f"look {number + 1}, {when}", "true")


def count(title: str, outcomes: Iterator[Outcome]) -> int:
    """Print each outcome at once; return the number of bad ones."""
    total = bad = 0
    for outcome in outcomes:
        total, bad = total + 1, bad + bool(outcome.complaints)
        print(f"    {'BAD ' if outcome.complaints else 'good'}  {outcome.name}")
        for complaint in outcome.complaints:
            print(f"              {complaint}")
    print(f"{title}: {total}, {bad} bad")
    return bad


if __name__ == "__main__":
    sys.exit(main())

"""Makes single changes to a provisioned node: drift must report, verify fail, and apply correct each of them.

    scripts/campaign mutations [--only TEXT]... [--overruling] | --markdown

Then it tries every way to override a setting or component (docs/effective.md): drift and verify must report
it, and apply must correct it or name its place. Last it looks ten times at a node without changes, some of
them right after a reboot or while apt runs, and makes changes that concern no check. Exit 1 if drift or
verify missed or invented anything.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuprov.catalog import load
from gpuprov_lab import Lab, Node
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.key import signing_key
from gpuprov_lab.mirror.serve import served
from gpuprov_lab.simulator import stub_module
from tests.campaign._overruling_table import markdown
from tests.lab.command_line import gpuprov
from tests.lab.mirror_node import ubuntu
from tests.lab.mutations import BYSTANDERS, MUTATIONS, Outcome, Witnesses, excused, possible
from tests.lab.overruling import WAYS, WITH_CUDA, Tally, Way, rounds, tried
from tests.lab.provisioned_node import provision

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
    arguments.add_argument("--overruling", action="store_true", help="only the ways to overrule")
    arguments.add_argument("--markdown", action="store_true", help="print docs/effective.md and do no more")
    given = arguments.parse_args()
    if given.markdown:
        print(markdown(), end="")
        return 0
    only, begun, tally = given.only, time.monotonic(), Tally()
    with Lab(f"mutations-{os.getpid()}") as lab, tempfile.TemporaryDirectory() as name:
        witnesses = prepare(lab, Path(name))
        chosen = [each for each in possible(MUTATIONS, witnesses.group) if _named(each.name, only)]
        bad = 0 if given.overruling else count("mutations", map(witnesses.testify, chosen))
        if given.overruling or not only:
            ways, for_cuda = ([way for way in each if _named(str(way), only)] for each in (WAYS, WITH_CUDA))
            bad += count("ways to overrule", overruled(witnesses, ways, tally))
            if for_cuda:
                with nvidias_node(lab, Path(name, "nvidia")) as with_cuda:
                    bad += count("ways to overrule CUDA", overruled(with_cuda, for_cuda, tally))
            print(tally)
        if not only and not given.overruling:
            bad += count("clean looks", clean_looks(witnesses))
            bad += count("bystanders", (witnesses.overlook(*each) for each in BYSTANDERS.items()))
            named = {check for each in chosen for check in each.checks} | witnesses.need_driver
            named |= {way.check for way in WAYS}
            unseen = [check for check in witnesses.stated - named if not excused(check)]
            bad += count("checks without a mutation", (Outcome(check, ["none"]) for check in unseen))
    print(f"{time.monotonic() - begun:.0f} s, {bad} bad")
    return 1 if bad else 0


def _named(name: str, only: list[str]) -> bool:
    """Return whether a name has one of the texts; every one has if there are none."""
    return not only or any(text in name for text in only)


def prepare(lab: Lab, folder: Path) -> Witnesses:
    """Provision a node with every possible setting."""
    node = provision(lab, folder, settings=SETTINGS)
    lay_out_stubs(node)
    return Witnesses(node, folder)


def lay_out_stubs(node: Node) -> None:
    """Write modules to the node that mutations put in place of the right ones."""
    from base64 import b64encode

    for name, version, licence in (
        ("other", "535.261.03", "NVIDIA"),
        ("open", "535.309.01", "Dual MIT/GPL"),
    ):
        stub = stub_module(version, kernel=node.kernel, licence=licence)
        node.run(f"base64 -d >/root/{name}.ko", input=b64encode(stub).decode())


@contextmanager
def nvidias_node(lab: Lab, folder: Path) -> Iterator[Witnesses]:
    """Provision a node with CUDA, cuDNN and NCCL from a mirror of NVIDIA's repositories."""
    folder.mkdir()
    with signing_key() as key:
        mirror = nvidia.build(folder / "mirror", load(), ["ubuntu24.04"], key=key)
        with served(mirror.root) as server:
            node = ubuntu(lab, folder, mirror, server)
            node.state()
            gpuprov(folder, "lock")
            gpuprov(folder, "apply", "--reboot", "--yes", "--no-verify")
            yield Witnesses(node.node, folder)


def overruled(witnesses: Witnesses, ways: Iterable[Way], tally: Tally) -> Iterator[Outcome]:
    """Try every way, in as few rounds as possible."""
    for turn in rounds(ways, witnesses.stated):
        yield from tried(witnesses, turn, tally)


def clean_looks(witnesses: Witnesses) -> Iterator[Outcome]:
    """Look at an unchanged node; every third time after a reboot, every third time while apt runs."""
    for number in range(CLEAN_LOOKS):
        when = ("at rest", "right after a reboot", "while apt runs")[number % 3]
        if when == "right after a reboot":
            witnesses.node.reboot()
            witnesses.node.run("systemctl is-system-running --wait", check=False)
        elif when == "while apt runs":
            witnesses.node.run(
                "systemd-run --quiet sh -c 'apt-get -q update; apt-get -q -y install --reinstall less'"
            )
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

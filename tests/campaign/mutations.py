"""Single changes to a provisioned node: seen by drift, failed by verify, mended by apply, and no false alarm.

    scripts/campaign mutations [--only TEXT]

Then ten clean looks, some right after a reboot, some while apt runs, and changes that are nobody's business.
Exit 1 when a witness missed or made up anything.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gpuprov.lab import Lab, Node
from gpuprov.lab.simulator import stub_module
from tests.lab.mutations import BYSTANDERS, MUTATIONS, Outcome, Witnesses, excused, possible
from tests.lab.provisioned_node import provision

SETTINGS = {
    "power_limit": 300,
    "compute_mode": "default",
    "ecc": True,
    "tuning": {
        "limits": {"nofile": 16384, "memlock": 4194304},  # within what a lab node may have
        "environment": {"OMP_NUM_THREADS": 8},
    },
    "ssh": {},
    "firewall": {},
}
CLEAN_LOOKS = 10


def main() -> int:
    """Run the campaign."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--only", default="", help="mutations whose name holds this text")
    only = arguments.parse_args().only
    begun = time.monotonic()
    with Lab(f"mutations-{os.getpid()}") as lab, tempfile.TemporaryDirectory() as name:
        witnesses = prepare(lab, Path(name))
        chosen = [each for each in possible(MUTATIONS, witnesses.group) if only in each.name]
        bad = count("mutations", map(witnesses.testify, chosen))
        if not only:
            bad += count("clean looks", clean_looks(witnesses))
            bad += count("bystanders", (witnesses.overlook(*each) for each in BYSTANDERS.items()))
            named = {check for each in chosen for check in each.checks} | witnesses.need_driver
            unseen = [check for check in witnesses.stated - named if not excused(check)]
            bad += count("checks without a mutation", (Outcome(check, ["none"]) for check in unseen))
    print(f"{time.monotonic() - begun:.0f} s, {bad} bad")
    return 1 if bad else 0


def prepare(lab: Lab, folder: Path) -> Witnesses:
    """A provisioned node with every setting that it can have."""
    node = provision(lab, folder, settings=SETTINGS)
    lay_out_stubs(node)
    return Witnesses(node, folder)


def lay_out_stubs(node: Node) -> None:
    """Modules for mutations to put in the place of the right ones."""
    from base64 import b64encode

    for name, version, licence in (
        ("other", "535.261.03", "NVIDIA"),
        ("open", "535.309.01", "Dual MIT/GPL"),
    ):
        stub = stub_module(version, kernel=node.kernel, licence=licence)
        node.run(f"base64 -d >/root/{name}.ko", input=b64encode(stub).decode())


def clean_looks(witnesses: Witnesses) -> Iterator[Outcome]:
    """Looks at a node to which nothing was done; every third right after a reboot, others while apt runs."""
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
    """Say each outcome as it comes; returns how many were bad."""
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

"""Switches driver branches back and forth while apt and dpkg are killed at many moments.

    scripts/campaign kills [LINES]...

Each number is a count of lines in dpkg's log of a switch, after which dpkg and apt are killed (SIGKILL). The
next apply must end with one branch, its pins, and no half-installed package. Exit 1 if one did not.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from gpuprov.catalog import load
from gpuprov_lab import Lab
from gpuprov_lab.mirror import nvidia
from gpuprov_lab.mirror.serve import served
from tests.lab.mirror_node import MirrorNode, ubuntu

MOMENTS = (1, 5, 12, 25, 40, 60, 90, 130)
BRANCHES = ("570.195.03", "580.95.05")
NO_LIBRARIES = dict.fromkeys(("cuda", "cudnn", "nccl"))
CHECKS = ("driver.packages", "fabric_manager.packages", "repositories.", "pins.", "dpkg.")
ROLES = ("preflight", "repositories", "nvidia_driver", "package_pins")
PIN = "cat /etc/apt/preferences.d/nvidia-driver-pin"
RESIDUE = "dpkg-query -W -f '${db:Status-Abbrev}${Package}\\n' | grep '^rc.*nvidia'"


def main() -> int:
    """Kill dpkg at each moment of a change of the driver, apply again and print the complaints; return 1 if
    there are any.
    """
    moments = [int(word) for word in sys.argv[1:]] or list(MOMENTS)
    bad = 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuprov-kills-")))
        folder.chmod(0o755)
        lab = stack.enter_context(Lab(f"kills-{os.getpid()}"))
        mirror = nvidia.build(folder / "mirror", load(), ["ubuntu24.04"])
        server = stack.enter_context(served(mirror.root))
        node = ubuntu(lab, folder, mirror, server)
        node.state(driver=BRANCHES[0], **NO_LIBRARIES)
        outcome, _ = node.apply(*ROLES)
        if not outcome.ok:
            raise SystemExit(f"the first driver could not be installed: {outcome.failed}")
        for number, moment in enumerate(moments, start=1):
            began = time.monotonic()
            complaints = killed(node, BRANCHES[number % 2], moment)
            bad += bool(complaints)
            result = "; ".join(complaints) or "good"
            print(f"{time.monotonic() - began:5.0f} s  killed after {moment} lines of dpkg: {result}")
    print(f"{len(moments)} kills, {bad} bad")
    return 1 if bad else 0


def killed(node: MirrorNode, driver: str, moment: int) -> list[str]:
    """Switch to a driver, kill dpkg after this many lines, apply again; return the complaints."""
    node.state(driver=driver, **NO_LIBRARIES)
    node.kill_dpkg_after(moment)
    outcome, _ = node.apply(*ROLES, packages_allow_downgrade=True)
    node.node.run("systemctl stop killer.service", check=False)
    was_killed = not outcome.ok
    outcome, _ = node.apply(*ROLES, packages_allow_downgrade=True)
    other = next(each for each in BRANCHES if each != driver).partition(".")[0]
    differs = {check: seen for check, seen in node.drift().items() if check.startswith(CHECKS)}
    seen = {
        "the kill came too late": not was_killed,
        f"apply fails: {[each['msg'] for each in outcome.failed]}": not outcome.ok,
        "both branches are there": any(full.startswith(f"{other}.") for full in node.installed.values()),
        f"the pin is {node.says(PIN)!r}": f"Pin: version {other}." in node.says(PIN),
        f"left behind: {node.says(RESIDUE)}": bool(node.says(RESIDUE)),
        f"half done: {node.says('dpkg --audit')}": bool(node.says("dpkg --audit")),
        f"differs: {differs}": bool(differs),
    }
    return [text for text, wrong in seen.items() if wrong]


if __name__ == "__main__":
    sys.exit(main())

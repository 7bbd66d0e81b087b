"""Compiles Debian's own drivers completely by DKMS on nodes of each release, and verifies the nodes.

    scripts/campaign compiled [--os debian12 --os debian13]

For each release: a node, a lock of the release's driver, one apply with its reboot, and verification. Prints
what DKMS built for which kernel, the time, and the failed checks. Only the GPUs are simulated.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from gpuprov.model.lock import read_lock
from gpuprov_lab import Lab, Node
from tests.lab.command_line import gpuprov
from tests.lab.provisioned_node import MACHINE, PROFILE
from tests.systems import DEBIAN


def main() -> int:
    """Run the campaign; return 1 if a driver was not installed."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--os", action="append", choices=DEBIAN)
    bad = 0
    for system in arguments.parse_args().os or DEBIAN:
        with Lab(f"compiled-{system}-{os.getpid()}") as lab, tempfile.TemporaryDirectory() as folder:
            bad += compiled(lab, Path(folder), system)
    return 1 if bad else 0


def compiled(lab: Lab, folder: Path, system: str) -> int:
    """Apply a compiled driver to a node of a system and verify it, and print both; return how many failed."""
    [node] = lab.up(1, os=system, gpu=MACHINE)
    (folder / "fleet.yml").write_text(lab.fleet(PROFILE))
    gpuprov(folder, "lock")
    [locked] = read_lock(folder / "fleet.lock.yml").groups.values()
    driver = locked.components.driver
    print(f"{system}: {driver.module_package} {driver.closure[driver.module_package]}")
    begun = time.monotonic()
    applied = gpuprov(folder, "apply", "--reboot", "--yes", code=None)
    print(f"  apply: exit {applied.returncode} after {time.monotonic() - begun:.0f} s; {built(node)}")
    verified = gpuprov(folder, "verify", code=None)
    print(f"  verify: exit {verified.returncode}: {verified.stdout.splitlines()[0]}")
    if applied.returncode or verified.returncode:
        print(applied.stderr[-3000:] + verified.stdout[-3000:])
    return (applied.returncode != 0) + (verified.returncode != 0)


def built(node: Node) -> str:
    """Return DKMS's status, and the kernel and size of the module."""
    status = node.run("dkms status", check=False).stdout.strip().replace("\n", "; ")
    module = "$(find /lib/modules/*/updates/dkms -name 'nvidia-current.ko*' | head -n 1)"
    result = node.run(f"modinfo -F vermagic {module}; stat -c '%s bytes' {module}", check=False).stdout
    return f"dkms: {status}; {', '.join(result.split(chr(10))).strip(', ')}"


if __name__ == "__main__":
    sys.exit(main())

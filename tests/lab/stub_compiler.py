"""A stub in place of make, so that DKMS builds end within seconds; everything else remains real.

python -m tests.lab.stub_compiler LAB     # for every node of a lab, at the version in ./fleet.lock.yml
"""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

from gpuprov.model.lock import read_lock
from gpuprov_lab import Lab, Node
from gpuprov_lab.host import write_whole
from gpuprov_lab.simulator import stub_module
from gpuprov_lab.variants import inside

ERROR = "nv-pci.c:237:9: error: too few arguments to function 'pci_resize_resource'"
# Replaces make: puts stub modules in the build's place, or prints a compiler's error. DKMS builds in
# .../NAME/VERSION/build.
MAKE = f"""\
#!/bin/sh
if [ -e /root/broken-compiler ]; then echo "/var/lib/dkms/build/nvidia/{ERROR}"; exit 2; fi
stub=/root/stub-$(basename "$(dirname "$PWD")").ko
for part in '' -modeset -drm -uvm -peermem; do cp "$stub" "nvidia$part.ko" || exit; done
"""


def play_compiler(node: Node, *versions: str) -> None:
    """Make DKMS builds of these driver versions end at once with stubs, and disable initramfs updates."""
    for version in versions:
        stub = stub_module(version, kernel=node.kernel)
        node.run(f"base64 -d >/root/stub-{version}.ko", input=b64encode(stub).decode())
    node.run(
        "dpkg-divert --quiet --local --no-rename --divert /usr/bin/make.distrib --add /usr/bin/make"
        " && cat >/usr/bin/make && chmod 755 /usr/bin/make",
        input=MAKE,
    )
    # An initramfs takes longer than all other steps, and a node does not boot from it.
    node.run("echo update_initramfs=no >/etc/initramfs-tools/update-initramfs.conf")


def with_played_compiler(version: str) -> Callable[[Path], None]:
    """Return a step that installs the stub in a root before its first boot."""

    def step(root: Path) -> None:
        """Put a stub module and a fake `make` that installs it into the tree."""
        [kernel] = (path.name for path in (root / "usr/lib/modules").iterdir())
        (root / f"root/stub-{version}.ko").write_bytes(stub_module(version, kernel=kernel))
        inside(
            root, "dpkg-divert --quiet --local --no-rename --divert /usr/bin/make.distrib --add /usr/bin/make"
        )
        write_whole(root / "usr/bin/make", MAKE, 0o755)
        write_whole(root / "etc/initramfs-tools/update-initramfs.conf", "update_initramfs=no\n")

    return step


def main() -> None:
    """Install the stub on every node of the named lab."""
    [name] = sys.argv[1:]
    lock = read_lock(Path("fleet.lock.yml"))
    versions = {group.components.driver.version for group in lock.groups.values()}
    for node in Lab(name).nodes():
        play_compiler(node, *versions)


if __name__ == "__main__":
    main()

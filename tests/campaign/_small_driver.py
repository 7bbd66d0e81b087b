"""A driver of a few lines in place of NVIDIA's: kbuild, gcc, DKMS and the kernel that loads it are real.

On a node without GPUs it answers `modprobe` as NVIDIA's driver does; its message shows that it is not
NVIDIA's.
"""

from __future__ import annotations

from gpuprov_lab import Node

# Replaces make. DKMS calls it in .../NAME/VERSION/build, with the kernel's release among the arguments.
MAKE = r"""#!/bin/sh
case "$*" in *KERNEL_UNAME=*) ;; *) exec /usr/bin/make.distrib "$@" ;; esac
kernel=$(echo "$*" | sed 's/.*KERNEL_UNAME=\([^ ]*\).*/\1/')
version=$(basename "$(dirname "$PWD")")
mkdir -p small && cd small || exit
: >Kbuild
for part in '' -modeset -drm -uvm -peermem; do
    echo "obj-m += nvidia$part.o" >>Kbuild
    cat >nvidia$part.c <<EOF
#include <linux/module.h>
static int __init begin(void) {
    pr_err("NVRM: No NVIDIA GPU found, says a small nvidia$part.\n");
    return -ENODEV;
}
static void __exit end(void) {}
module_init(begin);
module_exit(end);
MODULE_LICENSE("NVIDIA");
MODULE_VERSION("$version");
EOF
    [ ! -e /root/broken-source ] || echo '#error this kernel is not supported' >>nvidia$part.c
done
/usr/bin/make.distrib -C "/lib/modules/$kernel/build" M="$PWD" modules && mv nvidia*.ko ..
"""


def play_source(node: Node) -> None:
    """Let DKMS build small modules on a node in place of the source in the driver's packages."""
    node.run(
        "dpkg-divert --quiet --local --rename --divert /usr/bin/make.distrib --add /usr/bin/make"
        " && cat >/usr/bin/make && chmod 755 /usr/bin/make",
        input=MAKE,
    )

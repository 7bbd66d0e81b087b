"""Virtual nodes that enforce SELinux: a played system of RHEL's family with Debian's kernel and policy.

Debian's policy maps every login to `unconfined_u`, as RHEL's targeted policy does; `RULES` are added to it.
QEMU starts the kernel directly, without firmware and boot loader. The disk has room for states of the running
machine: `vm.load_state` returns to one in a second, while a boot takes a minute.
"""

from __future__ import annotations

import struct
from pathlib import Path

from gpuprov_lab.archive import ARCHIVES
from gpuprov_lab.host import execute, write_whole
from gpuprov_lab.mirror.publishers import HIDDEN
from gpuprov_lab.variants import BORROWED_APT, inside

# program → its Debian package, in addition to the tools of every lab
TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "qemu-img": "qemu-utils", "mke2fs": "e2fsprogs"}
DISK_BYTES = 8 << 30  # sparse
PACKAGES = "selinux-policy-default policycoreutils policycoreutils-python-utils selinux-utils auditd"
COMMAND_LINE = "root=/dev/vda ro console=ttyS0 net.ifnames=0 mitigations=off security=selinux selinux=1"
# Programs of root give open files to systemd by the bus, as `systemd-run --pipe` does.
RULES = "(allow system_dbusd_t unconfined_t (fd (use)))"
"""Rules of Fedora's policy, the source of RHEL's, that Debian's lacks; in the language CIL."""
FILE_SYSTEMS = "/dev/vda / ext4 errors=remount-ro 0 1\n"
# The scripts of Debian's packages call dpkg by its path. The mode is in the file and not on the kernel's
# command line, as there systemd in the initramfs would need a policy. Modules are found by the kernel's own
# release, and the played system has them under Rocky's.
INSTALL = f"""\
{BORROWED_APT}
for name in dpkg dpkg-query; do ln -s $hidden/bin/$name /usr/bin/$name; done
apt install --no-install-recommends {PACKAGES}
rm /usr/bin/dpkg /usr/bin/dpkg-query
echo '{RULES}' >/root/lab.cil
semodule --noreload --install /root/lab.cil
rm /root/lab.cil
sed -i 's/^SELINUX=.*/SELINUX=enforcing/' /etc/selinux/config
systemctl enable systemd-networkd
cd /lib/modules
[ -e RELEASE ] || ln -s * RELEASE
dracut --quiet --force --no-hostonly --modules 'base fs-lib rootfs-block udev-rules kernel-modules' \
    --drivers 'virtio_pci virtio_blk ext4' /boot/lab.img RELEASE
"""
POLICY = "/etc/selinux/default/contexts/files/file_contexts"
# In a mount namespace of its own: setfiles works by /proc, and the tree's is a mere folder.
LABEL = f'mount -t proc proc "$0/proc" && exec chroot "$0" setfiles -m -F -e /proc {POLICY} /'


def is_for(root: Path) -> bool:
    """Return whether a virtual node of this tree enforces SELinux: whether it plays a system without apt."""
    return (root / HIDDEN / "apt").exists()


def make_disk(root: Path, disk: Path, network: str) -> None:
    """Make a disk, kernel and initramfs from a played tree, and install in the tree what they need.

    Every file has the label of the policy, as after an installation.

    Args:
        root: of a node that is off.
        network: content of a file of systemd-networkd.

    Raises:
        NodeFailed: a step fails.
    """
    [kernel] = (root / "boot").glob("vmlinuz-*")
    inside(root, INSTALL.replace("RELEASE", kernel_release(kernel)))
    write_whole(root / "etc/fstab", FILE_SYSTEMS)
    write_whole(root / "etc/systemd/network/80-gpuprov-lab.network", network)
    for package in (root / ARCHIVES).glob("*.deb"):
        package.unlink()
    execute(["unshare", "--mount", "sh", "-c", LABEL, root])
    base = disk.with_name("disk.base")
    base.unlink(missing_ok=True)
    with base.open("wb") as file:
        file.truncate(DISK_BYTES)
    execute(["mke2fs", "-q", "-F", "-t", "ext4", "-d", root, "-E", "lazy_itable_init=1", base])
    execute(["cp", root / "boot/lab.img", disk.with_name("initrd")])
    execute(["cp", kernel, disk.with_name("kernel")])
    execute(["qemu-img", "create", "-q", "-f", "qcow2", "-b", base, "-F", "raw", disk])


def kernel_release(image: Path) -> str:
    """Return the release in the header of a kernel for x86, as `uname -r` prints it."""
    content = image.read_bytes()
    start = struct.unpack_from("<H", content, 0x20E)[0] + 0x200
    return content[start : content.index(b"\0", start)].decode().split()[0]


def boot_arguments(disk: Path) -> list[str]:
    """Return QEMU's arguments for the kernel next to a disk; empty if it boots by itself."""
    kernel = disk.with_name("kernel")
    if not kernel.exists():
        return []
    return ["-kernel", str(kernel), "-initrd", str(disk.with_name("initrd")), "-append", COMMAND_LINE]

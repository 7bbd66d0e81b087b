"""Variants of a fresh server: steps for `Lab.up(prepare=[...])`, applied to a root before its first boot."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from gpuprov_lab.host import execute, write_whole
from gpuprov_lab.identity import authorise
from gpuprov_lab.images import contained
from gpuprov_lab.mirror.publishers import HIDDEN


def without_python(root: Path) -> None:
    """Purge every Python package, as on the smallest images of cloud providers; raises as `inside`."""
    inside(root, "apt-get -q -y purge --auto-remove 'python3*' 'libpython3*'")


def with_os_release(text: str) -> Callable[[Path], None]:
    """Return a step that replaces os-release, so that the node appears as another system."""

    def step(root: Path) -> None:
        (root / "etc/os-release").unlink(missing_ok=True)
        write_whole(root / "etc/os-release", text)

    return step


def with_admin(name: str, password: str = "") -> Callable[[Path], None]:
    """Return a step that adds an account with the lab's key and with sudo.

    Args:
        name: of the account.
        password: of the account, required by sudo; if empty, sudo needs no password.
    """

    def step(root: Path) -> None:
        inside(root, f"useradd --create-home --shell /bin/bash --groups sudo {shlex.quote(name)}")
        if password:
            inside(root, f"echo {shlex.quote(f'{name}:{password}')} | chpasswd")
        else:
            write_whole(root / "etc/sudoers.d" / name, f"{name} ALL=(ALL) NOPASSWD: ALL\n", 0o440)
        authorise(root / "home" / name, (root / "root/.ssh/authorized_keys").read_text())
        inside(root, f"chown -R {shlex.quote(name)}: /home/{shlex.quote(name)}/.ssh")

    return step


AT_BOOT = """\
[Unit]
DefaultDependencies=no
Before=sysinit.target systemd-sysctl.service

[Service]
Type=oneshot
ExecStart=/bin/sh -c '{command}'

[Install]
WantedBy=sysinit.target
"""


INSTALL = "apt-get -q -y install --no-install-recommends"
BORROWED_APT = f"""\
set -eu
hidden=/{HIDDEN}
export PATH=$hidden/bin:$PATH DPKG_ADMINDIR=$hidden/dpkg
mkdir -p /var/lib/apt/lists/partial /var/cache/apt/archives/partial
apt() {{
    apt-get -q -y -o Dir::Etc=$hidden/apt -o Dir::State::status=$hidden/dpkg/status \
        -o Dir::Bin::apt-key=$hidden/bin/apt-key -o Dir::Bin::dpkg=$hidden/bin/dpkg -o DPkg::Path=$PATH "$@"
}}
apt update
"""
"""Shell commands that give a played system Debian's apt for the rest of the script."""
BORROWED = f"""\
{BORROWED_APT}
rm -f /var/cache/apt/archives/*.deb
apt --no-install-recommends --download-only install cloud-init
for package in /var/cache/apt/archives/*.deb; do
    dpkg-deb --fsys-tarfile $package | tar --extract --keep-directory-symlink --directory /
done
rm /var/cache/apt/archives/*.deb
[ -e /usr/bin/nc ] || ln -s nc.openbsd /usr/bin/nc
if [ ! -e /usr/bin/python3 ]; then
    grep -lI '^#! */usr/bin/python3' /usr/bin/cloud-* |
        xargs sed -i '1s,/usr/bin/python3,/usr/libexec/platform-python,'
fi
for unit in cloud-init-local cloud-init-main cloud-init-network cloud-init cloud-config cloud-final; do
    [ ! -e /lib/systemd/system/$unit.service ] || systemctl enable $unit
done
"""
"""Shell commands that add Debian's cloud-init to a played system without apt; its units depend on the
release.
"""
CLOUD = """\
datasource_list: [NoCloud]
network: {config: disabled}
apt: {preserve_sources_list: true}
preserve_hostname: true
ssh_deletekeys: false
disable_root: false
"""


def with_cloud_init(user_data: bytes, distro: str = "") -> Callable[[Path], None]:
    """Return a step that installs Debian's own cloud-init, if missing, with a seed; network, login and host
    key remain the lab's.

    Args:
        user_data: as from a cloud.
        distro: cloud-init's class for a played system.
    """

    def step(root: Path) -> None:
        if not (root / "usr/bin/cloud-init").exists():
            played = (root / HIDDEN / "apt").exists()
            inside(root, BORROWED if played else f"apt-get -q update && {INSTALL} cloud-init")
        played_as = f"system_info: {{distro: {distro}}}\n" if distro else ""
        write_whole(root / "etc/cloud/cloud.cfg.d/99-gpuprov-lab.cfg", CLOUD + played_as)
        seed = root / "var/lib/cloud/seed/nocloud"
        seed.mkdir(parents=True, exist_ok=True)
        (seed / "user-data").write_bytes(user_data)
        (seed / "meta-data").write_text(f"instance-id: lab-{root.parent.name}\n")

    return step


STORAGE = """\
[storage]
driver = "vfs"
runroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"
"""
CONTAINERS = """\
[containers]
default_ulimits = ["nofile=1024:4096", "nproc=30000:30000"]
[engine]
runtime = "runc"
"""
PODMAN = {
    "etc/containers/containers.conf.d/00-lab.conf": CONTAINERS,
    "etc/containers/storage.conf": STORAGE,
}
"""File → content."""


def with_control_groups(root: Path) -> None:
    """Let the node create its own control groups, as dockerd does: remount them at every boot, and configure
    Podman.

    systemd-nspawn mounts the controllers of cgroup v1 read-only; the new groups are below the node's group.
    Podman uses runc, as crun refuses a machine with both versions of control groups, and no overlays in its
    store, as a node's root is one. Without these limits Podman 4 sets some that this machine may not allow.
    """
    for path, text in PODMAN.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        write_whole(root / path, text)
    every = "for group in /sys/fs/cgroup/*/cgroup.procs; do mount -o remount,bind,rw $${group%%/*}; done"
    at_boot(root, "control-groups", every)


def with_network_parameters(root: Path) -> None:
    """Let the node change the kernel parameters of its network namespace: remount them writable at every
    boot.
    """
    place = "/proc/sys/net"
    at_boot(root, "network-parameters", f"mount --bind {place} {place}; mount -o remount,bind,rw {place}")


def at_boot(root: Path, name: str, command: str) -> None:
    """Write and enable a unit that runs a shell command early at every boot; raises as `inside`."""
    unit = f"gpuprov-lab-{name}.service"
    write_whole(root / "etc/systemd/system" / unit, AT_BOOT.format(command=command))
    inside(root, f"systemctl --root=/ enable {unit}")


def inside(root: Path, command: str) -> None:
    """Run a shell command in a system that is not booted; raise NodeFailed if it fails."""
    execute(contained(root, "env", "DEBIAN_FRONTEND=noninteractive", "sh", "-c", command))

"""Files and units of a node's last good set: all that gpuprov's roles write, except SSH and firewall.

Those two could lock all users out: in a rollback their roles set them, under the dead man's switch.
"""

from __future__ import annotations

from typing import Any

from gpuprov.drift.probe_request import parameters
from gpuprov.model.lock import LockedGroup

FILES = (
    "/etc/apt/sources.list.d/*gpuprov*",
    "/etc/apt/preferences.d/*gpuprov*",
    "/etc/apt/keyrings/*gpuprov*",
    "/etc/apt/apt.conf.d/*gpuprov*",
    "/etc/yum.repos.d/*gpuprov*",
    "/etc/pki/rpm-gpg/*gpuprov*",
    "/etc/default/grub.d/*gpuprov*",
    "/etc/dracut.conf.d/*gpuprov*",
    "/etc/kernel/header_postinst.d/*gpuprov*",
    "/etc/kernel/install.d/*gpuprov*",
    "/etc/modprobe.d/*gpuprov*",
    "/etc/modules-load.d/*gpuprov*",
    "/etc/sysctl.d/*gpuprov*",
    "/etc/security/limits.d/*gpuprov*",
    "/etc/profile.d/gpuprov*",
    "/etc/ld.so.conf.d/*gpuprov*",
    "/etc/udev/rules.d/*gpuprov*",
    "/etc/systemd/system/gpuprov-*",
    "/etc/systemd/system/*.d/gpuprov.conf",
    "/usr/local/sbin/gpuprov-*",
    "/etc/nccl.conf",
    "/etc/docker/daemon.json",
    "/etc/sysconfig/docker",
    "/etc/containerd/config.toml",
    "/etc/containers/containers.conf.d/gpuprov.conf",
    "/var/lib/gpuprov/held",
    "/var/lib/gpuprov/packages/*",
    "/var/lib/gpuprov/daemon.json",
    "/var/lib/gpuprov/containerd.json",
)
"""Patterns as in the shell."""
EXCEPTED = r"~$|ssh|firewall|gpuprov-upgrade[.-]|gpuprov-dead"
"""Pattern of Ansible's backups, files under the dead man's switch, and temporary files of an upgrade."""


def managed(old: LockedGroup, new: LockedGroup) -> dict[str, Any]:
    """Return what a node of both locks records and restores.

    These are `files` (patterns), `excepted` files (a pattern), `units`, and `dnf_modules`: the modules of dnf
    that have a stream in one of the locks.
    """
    units = [unit for unit in parameters(old).units if "firewall" not in unit]
    streams = {group.components.driver.stream or "" for group in (old, new)}
    modules = sorted({stream.partition(":")[0] for stream in streams} - {""})
    return {"files": list(FILES), "excepted": EXCEPTED, "units": units, "dnf_modules": modules}

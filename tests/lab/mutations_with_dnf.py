"""The tables of `mutations` and `overruling` with the commands of a node with dnf, by system.

A change that has no counterpart there is in `NO_COUNTERPART` with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuprov.catalog.platforms import platform
from gpuprov.roles.nvidia_driver import BLS_ENTRIES, BLS_GUARD, BLS_HOOKS
from tests.campaign._roles_trials import ERASE, FETCH, FORCED, LOCKS, OWN_FILE, TWICE
from tests.lab.mutations import BYSTANDERS, MUTATIONS, Mutation
from tests.lab.overruling import RELOAD, WAYS, WITH_CUDA, Way
from tests.systems import OF_DNF

OLD_DRIVER = "3:580.95.05-$(rpm -q --qf '%{RELEASE}' nvidia-driver-cuda)"
MODULE = "$(modinfo -k $K -n nvidia)"
FOLDER = "$(dirname $(modinfo -k $K -n nvidia))"
AUTOMATIC = "/etc/dnf/automatic.conf"
PLUGIN = "/etc/dnf/plugins/versionlock.conf"
HEADERS = "/usr/src/kernels/$K/Makefile"
SSHD_CONFIG = "/etc/ssh/sshd_config"
RELOAD_SSHD = "systemctl reload sshd; sleep 1"
"""The port is closed for a moment."""


def _in_its_place(name: str) -> str:
    """Return the command that puts a stub in the place of `$each`; DKMS may compress its modules."""
    stub = f"/root/{name}.ko"
    return f"case $each in *.xz) xz --check=crc32 -c {stub} >$each ;; *) cp {stub} $each ;; esac"


OTHER_COMMANDS: dict[str, dict[str, Any]] = {
    "another release of the system": {
        "do": "cp /etc/os-release /root/; sed -i 's/^VERSION_ID=.*/VERSION_ID=\"7.9\"/' /etc/os-release",
        "undo": "cp /root/os-release /etc/os-release",
    },
    "a package half installed": {
        "name": "a package in two versions",
        "checks": ("dpkg.consistent", "pins.files"),
        "do": TWICE,
    },
    "a library of an older driver": {
        "do": f"cd /root && {FETCH} libnvidia-ml-{OLD_DRIVER}"
        f" && rpm --upgrade --oldpackage {FORCED} libnvidia-ml-*.rpm",
    },
    "a package of the driver removed": {"do": ERASE.format("nvidia-driver-cuda")},
    "the kernel's headers removed": {"do": f"rpm --erase --nodeps $(rpm -qf {HEADERS})"},
    "the module deleted": {"do": f"rm {MODULE}; depmod $K"},
    "a module of another version": {
        "do": f"for each in {FOLDER}/nvidia*.ko*; do {_in_its_place('other')}; done; depmod $K"
    },
    "a module of the other flavour": {
        "do": f"for each in {FOLDER}/nvidia*.ko*; do {_in_its_place('closed')}; done; depmod $K"
    },
    # Debian's packages blacklist nouveau, too. Here a GPU's PCI id loads it without our file.
    "the blacklist deleted": {"checks": ("nouveau.blacklist", "driver.loading")},
    "the blacklist emptied": {"checks": ("nouveau.blacklist", "driver.loading")},
    "a hold released": {"do": f"sed -i /^libnvidia-ml-/d {LOCKS}"},
    "all holds released": {"do": f": >{LOCKS}"},
    "unattended upgrades let at the driver": {"do": f"sed -i /^exclude/d {AUTOMATIC}"},
    "passwords let in": {
        "do": "sed -i 's/^PasswordAuthentication.*/PasswordAuthentication yes/'"
        f" /etc/ssh/sshd_config.d/00-gpuprov.conf; {RELOAD_SSHD}"
    },
    "sshd's unit masked": {"do": "systemctl -q mask sshd.service"},
}
"""Name of a mutation → its values on a node with dnf, where they differ."""
OTHER_BYSTANDERS = {
    "a later word of the site's on passwords": (
        f"printf 'PasswordAuthentication yes\\n' >/etc/ssh/sshd_config.d/00-site.conf; {RELOAD_SSHD}"
    ),
    "a package of the site's own": "dnf -q -y install nvme-cli",
    "a package held by the site": f"rpm -q --qf '%{{NAME}}-0:%{{VERSION}}-%{{RELEASE}}.*\\n' tar >>{LOCKS}",
    "the package lists fetched": "dnf -q makecache",
    "an unattended origin of the site's own": f"sed -i 's/^excludepkgs = /&postgresql /' {AUTOMATIC}",
}
OLD_SSHD_COMMANDS: dict[str, dict[str, Any]] = {
    "passwords let in": {
        "do": f"sed -i 's/^PasswordAuthentication.*/PasswordAuthentication yes/' {SSHD_CONFIG}; {RELOAD_SSHD}"
    },
}
"""Name of a mutation → its values where sshd has no drop-ins."""
OLD_SSHD_BYSTANDERS = {
    "a later word of the site's on passwords": (
        f"echo 'PasswordAuthentication yes' >>{SSHD_CONFIG}; {RELOAD_SSHD}"
    ),
}
SITE_REPOSITORY = "/etc/yum.repos.d/site.repo"
SAME_PACKAGES = (
    f"sed -e 's/^\\[gpuprov-/[site-/' -e '/^baseurl/s,//[^/]*/,&again/,' {OWN_FILE} >{SITE_REPOSITORY}"
)
"""The lock's repositories under other names and addresses; the mirror has them below `again/`, too."""
READ = "dnf -q -y makecache"
"""Command after which the packages of a repository are known, as with apt."""
ENTRY = f"{BLS_ENTRIES}/*-$K.conf"
HOOK, SSHD_UNIT = BLS_HOOKS[0], "/etc/systemd/system/sshd.service.d/site.conf"
PACKAGED, KEPT = "/usr/local/cuda-13.0/version.json", "mv /root/kept /usr/local/cuda-13.0/version.json"
"""A file that no daemon needs, so that the other ways of the round are corrected."""


def _of_package(do: str) -> dict[str, str]:
    """Return the values of a way that changes a file of a package of the lock."""
    return {"do": f"cp -p {PACKAGED} /root/kept; {do}", "place": PACKAGED, "undo": KEPT}


def _of_unit(text: str) -> dict[str, str]:
    """Return the values of a way that adds a drop-in to sshd's unit."""
    do = f"mkdir -p {SSHD_UNIT.rpartition('/')[0]}; printf '{text}\\n' >{SSHD_UNIT}; {RELOAD}"
    return {"do": do, "place": SSHD_UNIT, "undo": f"rm {SSHD_UNIT}; {RELOAD}"}


def _sshd(path: str, text: str) -> dict[str, str]:
    """Return the values of a way that adds a file for sshd."""
    return {
        "do": f"printf '{text}\\n' >{path}; {RELOAD_SSHD}",
        "place": path,
        "undo": f"rm {path}; {RELOAD_SSHD}",
    }


OTHER_WAYS: dict[str, dict[str, Any]] = {
    "repositories.file: a manual edit of gpuprov.sources": {"do": f"echo '# of the site' >>{OWN_FILE}"},
    "repositories.foreign: another source with packages of the lock, signed or not": {
        "do": f"{SAME_PACKAGES}; {READ}",
        "place": SITE_REPOSITORY,
        "undo": f"rm {SITE_REPOSITORY}",
    },
    "repositories.foreign: a source without a signature (trusted=yes, allow-insecure=yes) with packages of"
    " the lock": {
        "do": f"{SAME_PACKAGES}; sed -i s/gpgcheck=1/gpgcheck=0/ {SITE_REPOSITORY}; {READ}",
        "place": SITE_REPOSITORY,
        "undo": f"rm {SITE_REPOSITORY}",
    },
    "driver.module_on_disk: another module in place of the DKMS build": {
        "do": f"each={MODULE}; {_in_its_place('other')}; depmod $K"
    },
    "driver.loading: grub.cfg, for the next boot (module_blacklist=nvidia)": {
        "do": f"sed -i '/^options/s/$/ module_blacklist=nvidia/' {ENTRY}",
        "place": BLS_ENTRIES,
        "undo": f"sed -i 's/ module_blacklist=nvidia//' {ENTRY}",
    },
    "driver.next_kernel: gpuprov's part of GRUB's settings removed": {
        "by": "gpuprov's program for boot entries removed or not executable",
        "do": f"rm {BLS_GUARD}",
    },
    "driver.next_kernel: a kernel's hook of DKMS that is missing or not executable": {
        "do": f"chmod -x {HOOK}",
        "place": HOOK,
        "undo": f"chmod +x {HOOK}",
    },
    "driver.next_kernel: AUTOINSTALL in dkms.conf or /etc/dkms": {
        "do": "echo AUTOINSTALL=no >/etc/dkms/nvidia.conf",
        "place": "/etc/dkms/nvidia.conf",
        "undo": "rm /etc/dkms/nvidia.conf",
    },
    "pins.hold: APT::Ignore-Hold in apt.conf.d": {
        "do": f"sed -i 's/^enabled.*/enabled = 0/' {PLUGIN}",
        "place": PLUGIN,
        "undo": f"sed -i 's/^enabled.*/enabled = 1/' {PLUGIN}",
        "alone": True,
    },
    "pins.files: a file of a package that was removed": _of_package(f"rm {PACKAGED}"),
    "pins.files: a file of a package that was truncated or replaced, also by a link": _of_package(
        f"printf x | dd conv=notrunc of={PACKAGED}; touch -r /root/kept {PACKAGED}"
    ),
    "pins.files: chmod or chown of a file of a package": _of_package(f"chmod o-r {PACKAGED}"),
    "ssh.options: an earlier file of sshd_config.d": _sshd(
        "/etc/ssh/sshd_config.d/00-a-site.conf", "PasswordAuthentication yes"
    ),
    "ssh.options: a Match block for root, the login, all users or an address": _sshd(
        "/etc/ssh/sshd_config.d/00-a-match.conf", "Match Address 10.0.0.0/8\\nMaxAuthTries 9"
    ),
    "ssh.logins: an option that the lock does not state: a command for keys, another file of keys, …": _sshd(
        "/etc/ssh/sshd_config.d/zz-keys.conf",
        "AuthorizedKeysCommand /usr/local/bin/keys\\nAuthorizedKeysCommandUser nobody",
    ),
    "ssh.at_boot: /etc/ssh/sshd_not_to_be_run, or a drop-in with conditions that fail": _of_unit(
        "[Unit]\\nConditionPathExists=/none"
    ),
    "ssh.at_boot: a drop-in of the unit that starts another program": _of_unit(
        "[Service]\\nExecStart=\\nExecStart=/bin/true"
    ),
}
"""Check and description of a way → its values on a node with dnf, where they differ."""


def _appended(text: str) -> dict[str, str]:
    """Return the values of a way that adds lines at the end of sshd_config."""
    return {
        "do": f"cp -p {SSHD_CONFIG} /root/; printf '{text}\\n' >>{SSHD_CONFIG}; {RELOAD_SSHD}",
        "place": SSHD_CONFIG,
        "undo": f"cp -p /root/sshd_config {SSHD_CONFIG}; {RELOAD_SSHD}",
    }


OLD_SSHD_WAYS: dict[str, dict[str, Any]] = {
    "ssh.options: a Match block for root, the login, all users or an address": _appended(
        "Match Address 10.0.0.0/8\\nMaxAuthTries 9"
    ),
    "ssh.logins: an option that the lock does not state: a command for keys, another file of keys, …": (
        _appended("AuthorizedKeysCommand /usr/local/bin/keys\\nAuthorizedKeysCommandUser nobody")
    ),
}
"""Check and description of a way → its values where sshd has no drop-ins."""
NO_COUNTERPART = {
    "pins.unattended: #clear in a later file of apt.conf.d": (
        "dnf-automatic reads one file, and the mutation of it is tried"
    ),
    "pins.candidates: a preference for another version, by name, pattern or release": (
        "dnf has no preferences: the list of version locks decides"
    ),
    "pins.files: dpkg-divert by hand": "rpm has no diversions",
    "driver.loading: the kernel's command line (module_blacklist=nvidia)": (
        "a played node runs this machine's kernel, and its own has a boot entry, which is tried"
    ),
}
"""Mutation, bystander or way → the reason why a node with dnf has nothing like it."""
OLD_SSHD_LACKS = {"ssh.options: an earlier file of sshd_config.d": "its sshd has no drop-ins"}
FURTHER_CUDA = {"rhel10": "13.1"}
"""System → its second toolkit, if the repository does not have the usual one, 12.6."""


@dataclass(frozen=True)
class Tables:
    """All changes for nodes of one system.

    Attributes:
        none: those without a counterpart, with their reasons.
    """

    mutations: tuple[Mutation, ...]
    bystanders: Mapping[str, str]
    ways: tuple[Way, ...]
    with_cuda: tuple[Way, ...]
    none: Mapping[str, str]


def tables(system: str) -> Tables:
    """Return the changes for nodes of a system, by its id in the catalog."""
    if system not in OF_DNF:
        return Tables(MUTATIONS, BYSTANDERS, WAYS, WITH_CUDA, {})
    commands, bystanders, others, none = OTHER_COMMANDS, OTHER_BYSTANDERS, OTHER_WAYS, NO_COUNTERPART
    if platform(system).sshd_folder is None:
        commands = {**commands, **OLD_SSHD_COMMANDS}
        bystanders = {**bystanders, **OLD_SSHD_BYSTANDERS}
        others, none = {**others, **OLD_SSHD_WAYS}, {**none, **OLD_SSHD_LACKS}
    mutations = [replace(each, **commands.get(each.name, {})) for each in MUTATIONS]
    further = FURTHER_CUDA.get(system, "12.6")
    ways, with_cuda = (
        tuple(
            replace(way, **{"do": way.do.replace("cuda-12.6", f"cuda-{further}"), **others.get(str(way), {})})
            for way in each
            if str(way) not in none
        )
        for each in (WAYS, WITH_CUDA)
    )
    return Tables(tuple(mutations), {**BYSTANDERS, **bystanders}, ways, with_cuda, none)

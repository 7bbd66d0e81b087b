"""Commands with which an administrator changes packages, the initramfs and sshd of a system."""

from __future__ import annotations

from dataclasses import dataclass

from tests.systems import OF_DNF


@dataclass(frozen=True)
class Commands:
    """Commands of systems with one package manager.

    Attributes:
        chosen: prints the names of packages; those that a provisioned node has more are installed by hand.
        sources: start of the paths of files that the next two commands need.
        settings: further files that gpuprov writes on these systems alone, as a test of `find`.
        refresh: reads the repositories.
        install: installs the packages that follow, in one transaction.
        joined: what is between a package's name and its version there.
        held: prints what is held.
        hold: holds it; `{}` stands for these words.
        simulate: simulates an upgrade of all packages.
        initramfs: builds the initramfs.
        sshd: unit of sshd.
    """

    chosen: str
    sources: tuple[str, ...]
    settings: str
    refresh: str
    install: str
    joined: str
    held: str
    hold: str
    simulate: str
    initramfs: str
    sshd: str

    def package(self, name: str, version: str) -> str:
        """Return a package at a version."""
        return f"{name}{self.joined}{version}"


APT = Commands(
    chosen="apt-mark showmanual",
    sources=("/etc/apt/",),
    settings="-path '/etc/apt/*gpuprov*'",
    refresh="apt-get -q update",
    install="apt-get -q -y --no-install-recommends -o Dpkg::Options::=--force-confold install",
    joined="=",
    held="apt-mark showhold",
    hold="apt-mark hold {} >/dev/null",
    simulate="apt-get -s dist-upgrade >/dev/null",
    initramfs="update-initramfs -u || test ! -e /usr/sbin/update-initramfs",
    sshd="ssh",
)
LOCKS = "/etc/dnf/plugins/versionlock.list"
# Module streams are enabled by a file, as `dnf module enable` writes it: one start of dnf less.
DNF = Commands(
    chosen="rpm -qa --qf '%{NAME}\\n' | grep -v '^gpg-pubkey$'",
    sources=("/etc/yum.repos.d/", "/etc/pki/rpm-gpg/", "/etc/dnf/modules.d/"),
    settings="-path '/etc/dnf/modules.d/*.module' -o -path /etc/dnf/automatic.conf",
    refresh="dnf -q -y makecache",
    install="dnf -q -y --best --setopt=install_weak_deps=False install",
    joined="-",
    held=f"cat {LOCKS}",
    hold=f"printf '%s\\n' {{}} >{LOCKS}",
    simulate="dnf -q --assumeno upgrade >/dev/null 2>&1 || true",
    initramfs=(
        "for image in /boot/initramfs-*.img; do kernel=${image#*-};"
        ' dracut --quiet --force "$image" "${kernel%.img}"; done'
    ),
    sshd="sshd",
)


def commands_of(system: str) -> Commands:
    """Return the commands of a system, by its id in the catalog."""
    return DNF if system in OF_DNF else APT

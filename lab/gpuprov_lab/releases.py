"""Releases of systems with dnf that a Debian can play, one row each: what differs between them.

`gpuprov_lab.rpm_family` makes the nodes and `gpuprov_lab.mirror.publishers` the repositories of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

GNU_BASE = (
    *("filesystem", "setup", "glibc", "bash", "coreutils", "systemd", "systemd-udev", "dracut", "grubby"),
    *("grub2-tools", "kmod", "linux-firmware", "libgcc", "openssh-server", "openssh-clients", "sudo"),
    *("python3", "python3-libs", "dnf", "python3-dnf", "rpm", "dnf-plugins-core", "crypto-policies"),
    *("crypto-policies-scripts", "chkconfig", "iproute", "procps-ng", "pciutils", "tar", "dbus"),
    *("dbus-broker", "chrony"),
)
"""Packages of a fresh node of each release."""
MACS = (
    *("hmac-sha2-256-etm@openssh.com", "hmac-sha1-etm@openssh.com", "umac-128-etm@openssh.com"),
    *("hmac-sha2-512-etm@openssh.com", "hmac-sha2-256", "hmac-sha1", "umac-128@openssh.com", "hmac-sha2-512"),
)
"""MACs of the crypto policy DEFAULT, in the order of RHEL 9."""
PYTHON = "usr/bin/python3"


@dataclass(frozen=True)
class Release:
    """A release that a node plays.

    Attributes:
        image: the lab's name of it, without the suffix.
        system: its id in the catalog.
        codename: of the Debian that plays it.
        version: VERSION_ID in os-release.
        os_release: the whole file.
        title: line of its release file, `Rocky Linux release 9.6 (Blue Onyx)`.
        kernel: release that Debian's kernel gets.
        dist: rpm's `%{dist}`.
        releasever: dnf's variable.
        release_file: name of its release file below /etc.
        repository_file: name of dnf's file of its own repositories.
        key: file name of its signing key.
        own: packages that no other release has, on a fresh node: that of the release file, that of dnf's
            file of its repositories, further ones.
        repositories: name of its own repositories → packages that only it offers; all others are in the
            first one.
        versions: stub package → versions, oldest first.
        base: packages of a fresh node that several releases have.
        python: program of its own Python; another one than `PYTHON` is not in PATH.
        pythons: further Pythons that it offers; their programs have the packages' names.
        kernels: packages of a kernel.
        policy_file: the drop-in of sshd that includes the crypto policy; "" for an sshd without drop-ins,
            whose unit passes the policy on the command line.
        macs: sshd's MACs in this policy.
        sshd_options: further lines of sshd_config.
        files: path → content of further files.
    """

    image: str
    system: str
    codename: str
    version: str
    os_release: str
    title: str
    kernel: str
    dist: str
    releasever: str
    release_file: str
    repository_file: str
    key: str
    own: tuple[str, ...]
    versions: Mapping[str, tuple[str, ...]]
    repositories: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {"baseos": (), "epel": ("dkms",)}
    )
    base: tuple[str, ...] = GNU_BASE
    python: str = PYTHON
    pythons: tuple[str, ...] = ()
    kernels: tuple[str, ...] = (
        "kernel",
        "kernel-core",
        "kernel-modules",
        "kernel-modules-core",
        "kernel-devel",
    )
    policy_file: str = "50-redhat.conf"
    macs: tuple[str, ...] = MACS
    sshd_options: str = ""
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def number(self) -> str:
        """Return the release's number in addresses: `9` of `rhel9`."""
        return self.system.lstrip("abcdefghijklmnopqrstuvwxyz")

    @property
    def evr(self) -> str:
        """Return version and release of the kernel's packages."""
        return self.kernel.removesuffix(".x86_64")

    def oldest(self, package: str) -> str:
        """Return the oldest version of a stub package."""
        return self.versions[package][0]


def _rocky_file(version: str, name: str) -> str:
    """Return the os-release of a Rocky Linux."""
    major = version.partition(".")[0]
    return f"""\
NAME="Rocky Linux"
VERSION="{version} ({name})"
ID="rocky"
ID_LIKE="rhel centos fedora"
VERSION_ID="{version}"
PLATFORM_ID="platform:el{major}"
PRETTY_NAME="Rocky Linux {version} ({name})"
CPE_NAME="cpe:/o:rocky:rocky:{major}::baseos"
"""


ROCKY_8 = Release(
    image="rocky8",
    system="rhel8",
    codename="bookworm",
    version="8.10",
    os_release=_rocky_file("8.10", "Green Obsidian"),
    title="Rocky Linux release 8.10 (Green Obsidian)",
    kernel="4.18.0-553.40.1.el8_10.x86_64",
    dist="el8",
    releasever="8",
    release_file="rocky-release",
    repository_file="rocky.repo",
    key="RPM-GPG-KEY-rockyofficial",
    own=("rocky-release", "rocky-repos", "rocky-gpg-keys"),
    versions={
        "gcc": ("8.5.0-23.el8_10",),
        "make": ("1:4.2.1-11.el8",),
        "dkms": ("3.2.2-1.el8",),
        "python3-dnf-plugin-versionlock": ("4.0.21-25.el8",),
        "dnf-automatic": ("4.7.0-20.el8",),
        "python3.12": ("3.12.8-1.el8_10",),
        "nftables": ("1:1.0.4-7.el8_10",),
        "firewalld": ("0.9.11-9.el8_10",),
        "podman": ("4:4.9.4-18.module+el8.10.0", "4:4.9.4-20.module+el8.10.0"),
        "perf": ("4.18.0-553.40.1.el8_10", "4.18.0-553.44.1.el8_10"),
        "sysstat": ("11.7.3-13.el8_10",),
        "golang-github-prometheus-node-exporter": ("1.3.1-4.el8",),
    },
    base=(
        *(name for name in GNU_BASE if name not in ("python3", "python3-libs", "dbus-broker")),
        *("platform-python", "dbus-daemon"),
    ),
    python="usr/libexec/platform-python",
    pythons=("python3.12",),
    kernels=("kernel", "kernel-core", "kernel-modules", "kernel-devel"),
    policy_file="",
)
ROCKY_9 = Release(
    image="rocky9",
    system="rhel9",
    codename="bookworm",
    version="9.6",
    os_release=_rocky_file("9.6", "Blue Onyx"),
    title="Rocky Linux release 9.6 (Blue Onyx)",
    kernel="5.14.0-570.12.1.el9_6.x86_64",
    dist="el9",
    releasever="9",
    release_file="rocky-release",
    repository_file="rocky.repo",
    key="RPM-GPG-KEY-Rocky-9",
    own=("rocky-release", "rocky-repos", "rocky-gpg-keys"),
    versions={
        "gcc": ("11.5.0-5.el9_5",),
        "make": ("1:4.3-8.el9",),
        "dkms": ("3.2.2-1.el9",),
        "python3-dnf-plugin-versionlock": ("4.3.0-20.el9",),
        "dnf-automatic": ("4.14.0-25.el9",),
        "python3.12": ("3.12.9-1.el9",),
        "nftables": ("1:1.0.9-3.el9",),
        "firewalld": ("1.3.4-9.el9_5",),
        "podman": ("6:5.4.0-9.el9_6", "6:5.4.0-12.el9_6"),
        "perf": ("5.14.0-570.12.1.el9_6", "5.14.0-570.21.1.el9_6"),
        "sysstat": ("12.5.4-9.el9",),
        "golang-github-prometheus-node-exporter": ("1.9.1-1.el9",),
    },
    pythons=("python3.12",),
)
ROCKY_10 = Release(
    image="rocky10",
    system="rhel10",
    codename="trixie",
    version="10.1",
    os_release=_rocky_file("10.1", "Red Quartz"),
    title="Rocky Linux release 10.1 (Red Quartz)",
    kernel="6.12.0-124.8.1.el10_1.x86_64",
    dist="el10",
    releasever="10",
    release_file="rocky-release",
    repository_file="rocky.repo",
    key="RPM-GPG-KEY-Rocky-10",
    own=("rocky-release", "rocky-repos", "rocky-gpg-keys"),
    versions={
        "gcc": ("14.3.1-2.1.el10",),
        "make": ("1:4.4.1-9.el10",),
        "dkms": ("3.2.2-1.el10_1",),
        "python3-dnf-plugin-versionlock": ("4.7.0-9.el10",),
        "dnf-automatic": ("4.20.0-18.el10",),
        "nftables": ("1:1.1.1-6.el10",),
        "firewalld": ("2.3.1-1.el10_0",),
        "podman": ("7:5.6.0-5.el10_1", "7:5.6.0-8.el10_1"),
        "perf": ("6.12.0-124.8.1.el10_1", "6.12.0-124.13.1.el10_1"),
        "sysstat": ("12.7.6-2.el10",),
        "golang-github-prometheus-node-exporter": ("1.9.1-3.el10_1",),
    },
    policy_file="40-redhat-crypto-policies.conf",
    macs=tuple(name for name in MACS if "sha1" not in name),
)
AMAZON_RELEASE = """\
NAME="Amazon Linux"
VERSION="2023"
ID="amzn"
ID_LIKE="fedora"
VERSION_ID="2023"
PLATFORM_ID="platform:al2023"
PRETTY_NAME="Amazon Linux 2023.9.20251110"
CPE_NAME="cpe:2.3:o:amazon:amazon_linux:2023"
VENDOR_NAME="AWS"
SUPPORT_END="2029-06-30"
"""
EIC = "opt/aws/bin/eic_run_authorized_keys"
AMAZON_2023 = Release(
    image="amazon2023",
    system="amzn2023",
    codename="bookworm",
    version="2023.9.20251110",
    os_release=AMAZON_RELEASE,
    title="Amazon Linux release 2023.9.20251110 (Amazon Linux)",
    kernel="6.12.53-69.119.amzn2023.x86_64",
    dist="amzn2023.0.1",
    releasever="2023.9.20251110",
    release_file="amazon-linux-release",
    repository_file="amazonlinux.repo",
    key="RPM-GPG-KEY-amazon-linux-2023",
    own=("system-release", "amazon-linux-repo-s3", "ec2-instance-connect"),
    versions={
        "gcc": ("11.5.0-5.amzn2023.0.5",),
        "make": ("1:4.3-5.amzn2023.0.2",),
        "dkms": ("3.0.13-1.amzn2023.0.1",),
        "python3-dnf-plugin-versionlock": ("4.3.0-13.amzn2023.0.5",),
        "dnf-automatic": ("4.14.0-1.amzn2023.0.6",),
        "python3.12": ("3.12.12-1.amzn2023.0.1",),
        "nftables": ("1:1.0.4-3.amzn2023.0.2",),
        "firewalld": ("1.2.3-1.amzn2023",),
        "docker": ("25.0.13-1.amzn2023.0.2", "25.0.14-1.amzn2023.0.1"),
        "containerd": ("1.7.27-1.amzn2023.0.5", "1.7.29-1.amzn2023.0.1"),
        "runc": ("1.3.3-1.amzn2023.0.1",),
        "sysstat": ("12.5.6-1.amzn2023.0.4",),
    },
    repositories={"amazonlinux": ()},
    pythons=("python3.12",),
    kernels=("kernel6.12", "kernel6.12-modules-extra", "kernel6.12-devel"),
    sshd_options=f"AuthorizedKeysCommand /{EIC} %u %f\nAuthorizedKeysCommandUser ec2-instance-connect\n",
    files={EIC: "#!/bin/sh\n# Stub of the gpuprov lab: nobody has sent a key.\n"},
)
RELEASES = (ROCKY_8, ROCKY_9, ROCKY_10, AMAZON_2023)
BY_SYSTEM = {release.system: release for release in RELEASES}

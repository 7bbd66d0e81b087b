"""A Debian that plays Rocky Linux 9: real dnf, rpm and dracut, stub packages, and programs that Debian lacks.

`files` has what is copied over Debian's files, `packages` the stubs in the played repositories.
What such a node does not prove is in docs/proof.md.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files as resources
from pathlib import Path

from gpuprov_lab.host import remove_tree, write_whole
from gpuprov_lab.mirror import rpm
from gpuprov_lab.mirror.key import signing_key
from gpuprov_lab.mirror.publishers import HIDDEN, UNITS
from gpuprov_lab.mirror.specs import PackageSpec
from gpuprov_lab.rocky import services, sshd

KERNEL = "5.14.0-570.12.1.el9_6.x86_64"
"""Release that Debian's kernel gets on the node."""
REPOSITORIES = "usr/share/gpuprov-lab/rocky"
STAGED = "usr/lib/gpuprov-lab/rocky"
"""Folder of the files that are copied over Debian's after its packages are configured."""
SOURCES = "etc/yum.repos.d/rocky.repo"
KEY = "etc/pki/rpm-gpg/RPM-GPG-KEY-Rocky-9"

RELEASE = """\
NAME="Rocky Linux"
VERSION="9.6 (Blue Onyx)"
ID="rocky"
ID_LIKE="rhel centos fedora"
VERSION_ID="9.6"
PLATFORM_ID="platform:el9"
PRETTY_NAME="Rocky Linux 9.6 (Blue Onyx)"
CPE_NAME="cpe:/o:rocky:rocky:9::baseos"
"""
DNF = """\
[main]
gpgcheck=1
installonly_limit=3
clean_requirements_on_remove=True
best=True
skip_if_unavailable=False
"""
REPOSITORY = """\
[{name}]
name=Rocky Linux 9 - {name}
baseurl=file:///{place}/{name}
enabled=1
gpgcheck=1
gpgkey=file:///{key}
"""
AUTOMATIC = """\
[commands]
upgrade_type = default
random_sleep = 0
download_updates = yes
apply_updates = no
reboot = never

[emitters]
emit_via = stdio

[base]
debuglevel = 1
"""
TIMER = """\
[Unit]
Description=dnf-automatic timer

[Timer]
OnCalendar=*-*-* 6:00

[Install]
WantedBy=timers.target
"""
SERVICE = """\
[Unit]
Description=dnf automatic

[Service]
Type=oneshot
ExecStart=/usr/bin/dnf-automatic --timer
"""
RUN_AUTOMATIC = """\
#!/bin/sh
exec python3 -c 'import sys; from dnf.automatic.main import main; sys.exit(main(sys.argv[1:]))' "$@"
"""
NEW_KERNEL = '#!/bin/sh\n[ "$1" != add ] || exec /usr/sbin/dkms autoinstall -k "$2"\n'

BASE = (
    *("rocky-release", "rocky-repos", "rocky-gpg-keys", "filesystem", "setup", "glibc", "bash", "coreutils"),
    *("systemd", "systemd-udev", "dracut", "grubby", "grub2-tools", "kmod", "linux-firmware", "libgcc"),
    *("openssh-server", "openssh-clients", "sudo", "python3", "python3-libs", "dnf", "python3-dnf", "rpm"),
    *("dnf-plugins-core", "crypto-policies", "crypto-policies-scripts", "chkconfig", "iproute", "procps-ng"),
    *(
        "pciutils",
        "tar",
        "dbus",
        "dbus-broker",
        "chrony",
        "kernel",
        "kernel-core",
        "kernel-modules",
        "kernel-modules-core",
    ),
)
"""Packages of a fresh node, as names in rpm's database; their files are Debian's, and belong to none."""
KERNELS = ("kernel", "kernel-core", "kernel-modules", "kernel-modules-core", "kernel-devel")
OFFERED = (
    *("gcc-c++", "elfutils-libelf-devel", "kernel-headers", "opencl-filesystem", "ocl-icd", "iptables"),
    *("container-selinux", "sysstat", "perf", "nvme-cli", "xfsprogs", "e2fsprogs", "nfs-utils"),
)


def packages() -> dict[str, list[PackageSpec]]:
    """Return the played repositories: name → stub packages."""
    version, _, release = KERNEL.removesuffix(".x86_64").partition("-")
    kernel = f"{version}-{release}"
    plain = [name for name in (*BASE, *OFFERED) if name not in KERNELS]
    contents = {"rocky-repos": {SOURCES: _sources().encode()}}
    base = [PackageSpec(name, "9.6-1.el9", "x86_64", files=contents.get(name, {})) for name in plain]
    base += [PackageSpec(name, kernel, "x86_64", files=_kernel_files(name)) for name in KERNELS]
    base += [
        _wrapper("gcc", "11.5.0-5.el9_5"),
        _wrapper("make", "1:4.3-8.el9"),
        _version_lock(),
        _automatic(),
        PackageSpec("python3.12", "3.12.9-1.el9", "x86_64", links={"usr/bin/python3.12": "python3"}),
        *services.firewalls(),
    ]
    return {"baseos": base, "epel": [_dkms()]}


def _sources() -> str:
    """Return dnf's file of the played repositories, which is the distribution's own."""
    return "\n".join(REPOSITORY.format(name=name, place=REPOSITORIES, key=KEY) for name in ("baseos", "epel"))


def _kernel_files(name: str) -> dict[str, bytes]:
    """Return the files of a kernel's package: headers of kernel-devel; {} for others."""
    if name != "kernel-devel":
        return {}
    folder = f"usr/src/kernels/{KERNEL}"
    return {f"{folder}/Makefile": b"all:\n", f"{folder}/include/generated/utsrelease.h": b""}


def _wrapper(name: str, version: str, folder: str = "usr/bin", needs: str = "") -> PackageSpec:
    """Return the stub that brings Debian's program of that name into PATH."""
    text = f'#!/bin/sh\nexec /{HIDDEN}/bin/{name} "$@"\n'
    relations = {"Depends": needs} if needs else {}
    return PackageSpec(
        name, version, "x86_64", relations=relations, files={f"{folder}/{name}": text.encode()}
    )


def _dkms() -> PackageSpec:
    """Return the stub of EPEL's DKMS, with the program that kernel-install(8) runs for a new kernel."""
    stub = _wrapper("dkms", "3.2.2-1.el9", "usr/sbin", needs="gcc, make")
    files = {**stub.files, "usr/lib/kernel/install.d/40-dkms.install": NEW_KERNEL.encode()}
    return replace(stub, files=files)


def _version_lock() -> PackageSpec:
    """Return the stub with dnf's plugin, which is a package of its own and not in fresh images."""
    place = "usr/lib/python3/dist-packages/dnf-plugins/versionlock.py"
    conf = b"[main]\nenabled = 1\nlocklist = /etc/dnf/plugins/versionlock.list\n"
    return PackageSpec(
        "python3-dnf-plugin-versionlock",
        "4.3.0-20.el9",
        "noarch",
        files={"etc/dnf/plugins/versionlock.conf": conf, "etc/dnf/plugins/versionlock.list": b""},
        links={place: f"/{HIDDEN}/versionlock.py"},
    )


def _automatic() -> PackageSpec:
    """Return the stub of dnf-automatic, with its configuration, program and timer."""
    files = {
        "etc/dnf/automatic.conf": AUTOMATIC,
        "usr/bin/dnf-automatic": RUN_AUTOMATIC,
        f"{UNITS}/dnf-automatic.timer": TIMER,
        f"{UNITS}/dnf-automatic.service": SERVICE,
    }
    encoded = {path: text.encode() for path, text in files.items()}
    return PackageSpec("dnf-automatic", "4.14.0-25.el9", "noarch", files=encoded)


def files() -> dict[str, str]:
    """Return path → content of the files that the node has in addition to the packages' own."""
    programs = {
        f"usr/sbin/{path.name}": path.read_text()
        for path in (resources("gpuprov_lab.rocky") / "programs").iterdir()
    }
    entry = f"title Rocky Linux ({KERNEL})\nversion {KERNEL}\nlinux /boot/vmlinuz-{KERNEL}\n"
    entry += f"initrd /boot/initramfs-{KERNEL}.img\noptions root=/dev/vda1 ro\n"
    return {
        **programs,
        **sshd.FILES,
        "etc/dnf/dnf.conf": DNF,
        "etc/dnf/vars/releasever": "9\n",
        "etc/dnf/plugins/local.conf": "[main]\nenabled = 0\n",
        "etc/rpm/macros.gpuprov-lab": "%_dbpath /var/lib/rpm\n",
        SOURCES: _sources(),
        "etc/ld.so.conf.d/lib64.conf": "/usr/lib64\n",
        "etc/rocky-release": "Rocky Linux release 9.6 (Blue Onyx)\n",
        "etc/default/grub": 'GRUB_DEFAULT=saved\nGRUB_CMDLINE_LINUX=""\nGRUB_ENABLE_BLSCFG=true\n',
        "etc/kernel/cmdline": "root=/dev/vda1 ro\n",
        "etc/sysconfig/kernel": "UPDATEDEFAULT=yes\nDEFAULTKERNEL=kernel-core\n",
        f"boot/loader/entries/0123456789abcdef0123456789abcdef-{KERNEL}.conf": entry,
    }


def add(root: Path) -> None:
    """Write the files (staged, the finish script moves them) and the repositories into a root; a new key
    signs these, and is not kept.
    """
    for path, text in files().items():
        staged = root / STAGED / path
        staged.parent.mkdir(parents=True, exist_ok=True)
        write_whole(staged, text, 0o755 if text.startswith("#!") else 0o644)
    remove_tree(root / REPOSITORIES)
    with signing_key() as key:
        for name, specs in packages().items():
            rpm.build(root / REPOSITORIES / name, specs, key)
        (root / KEY).parent.mkdir(parents=True, exist_ok=True)
        (root / KEY).write_bytes(key.public)


PLAY = f"""\
hidden=/{HIDDEN}
mkdir -p $hidden/bin $hidden/units
# The kernel under a name of Rocky's.
old=$(ls /lib/modules)
mv /lib/modules/$old /lib/modules/{KERNEL}
mv /boot/vmlinuz-$old /boot/vmlinuz-{KERNEL}
mv /boot/config-$old /boot/config-{KERNEL}
mv /boot/System.map-$old /boot/System.map-{KERNEL}
rm -f /boot/initrd.img-* /vmlinuz* /initrd.img*
ln -s /usr/src/kernels/{KERNEL} /lib/modules/{KERNEL}/build
depmod {KERNEL}
echo compress=cat >/etc/dracut.conf.d/lab.conf
dracut --quiet --force /boot/initramfs-{KERNEL}.img {KERNEL}
# Programs that stub packages bring into PATH again, and files that replace Debian's.
mv /usr/lib/python3/dist-packages/dnf-plugins/versionlock.py $hidden/
rm /etc/dnf/plugins/versionlock.*
for path in {" ".join(services.MOVED)}; do cp -L $path $hidden/bin/; rm $path; done
for name in {" ".join(services.MOVED_UNITS)}; do
    find /etc/systemd/system -name "$name*" -delete
    find /lib/systemd/system -maxdepth 1 -name "$name*" -print0 | xargs -0r mv -t $hidden/units
    rm -f /etc/init.d/$name*
done
rm -f /etc/systemd/system/dbus-org.fedoraproject.FirewallD1.service
rm -f /etc/nftables.conf /etc/sysconfig/nftables.conf
groupdel docker || :
rm /etc/ssh/sshd_config
cp -a --no-preserve=ownership /{STAGED}/. /
{sshd.PLAY}# Debian's package manager, last.
systemctl disable apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer
paths=$(dpkg --listfiles apt dpkg | grep -E '^/(usr/)?s?bin/.')
mv /lib/systemd/system/apt-daily* /lib/systemd/system/dpkg-db-backup* $hidden/units/
mv /var/lib/dpkg/alternatives /var/lib/alternatives
mv $paths $hidden/bin/
mv /var/lib/dpkg $hidden/dpkg
mv /etc/apt $hidden/apt
mv /etc/dpkg $hidden/etc-dpkg
mv /etc/debian_version $hidden/
ln -s alternatives /usr/sbin/update-alternatives
rpm --import /{KEY}
dnf -q -y install {" ".join(BASE)}
ln -s rocky-release /etc/redhat-release
ln -s rocky-release /etc/system-release
rm /etc/os-release
cat >/etc/os-release <<'end'
{RELEASE}end
"""
"""Shell commands that turn the installed Debian into the played system. The text has no braces."""

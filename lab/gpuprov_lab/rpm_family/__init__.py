"""A Debian that plays a system with dnf: real dnf, rpm and dracut, stub packages, programs Debian lacks.

`gpuprov_lab.releases` has what differs between the systems. `files` has what is copied over Debian's files,
`packages` the stubs in the played repositories. What such a node does not prove is in docs/proof.md.
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
from gpuprov_lab.releases import PYTHON, Release
from gpuprov_lab.rpm_family import services, sshd

REPOSITORIES = "usr/share/gpuprov-lab/repositories"
STAGED = "usr/lib/gpuprov-lab/played"
"""Folder of the files that are copied over Debian's after its packages are configured."""
KEYS = "etc/pki/rpm-gpg"

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
name={title} - {name}
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
exec /{python} -c 'import sys; from dnf.automatic.main import main; sys.exit(main(sys.argv[1:]))' "$@"
"""
NEW_KERNEL = '#!/bin/sh\n[ "$1" != add ] || exec /usr/sbin/dkms autoinstall -k "$2"\n'

OFFERED = (
    *("gcc-c++", "elfutils-libelf-devel", "kernel-headers", "opencl-filesystem", "ocl-icd", "iptables"),
    *("container-selinux", "sysstat", "perf", "nvme-cli", "xfsprogs", "e2fsprogs", "nfs-utils"),
)
"""Packages that a node can install, by their names only."""


def base(release: Release) -> tuple[str, ...]:
    """Return the packages of a fresh node, as names in rpm's database; their files are Debian's, and belong
    to none.
    """
    return (*release.own, *release.base, *(name for name in release.kernels if not name.endswith("-devel")))


def packages(release: Release) -> dict[str, list[PackageSpec]]:
    """Return the played repositories: name → stub packages."""
    plain = [name for name in (*release.own, *release.base, *OFFERED) if name not in release.kernels]
    contents = {release.own[1]: {_sources_file(release): _sources(release).encode()}}
    version = f"{release.version}-1.{release.dist}"
    found = [PackageSpec(name, version, "x86_64", files=contents.get(name, {})) for name in plain]
    found += [
        PackageSpec(name, release.evr, "x86_64", files=_kernel_files(release, name))
        for name in release.kernels
    ]
    found += [
        _wrapper("gcc", release.oldest("gcc")),
        _wrapper("make", release.oldest("make")),
        _dkms(release.oldest("dkms")),
        _version_lock(release.oldest("python3-dnf-plugin-versionlock")),
        _automatic(release),
        *(_python(release, name) for name in release.pythons),
        *services.firewalls(release),
    ]
    first, *others = release.repositories
    return {
        first: [spec for spec in found if all(spec.name not in release.repositories[name] for name in others)]
    } | {name: [spec for spec in found if spec.name in release.repositories[name]] for name in others}


def _sources_file(release: Release) -> str:
    """Return the path of dnf's file of the distribution's own repositories."""
    return f"etc/yum.repos.d/{release.repository_file}"


def _sources(release: Release) -> str:
    """Return dnf's file of the played repositories."""
    words = {"title": release.title, "place": REPOSITORIES, "key": f"{KEYS}/{release.key}"}
    return "\n".join(REPOSITORY.format(name=name, **words) for name in release.repositories)


def _kernel_files(release: Release, name: str) -> dict[str, bytes]:
    """Return the files of a kernel's package: headers of kernel-devel; {} for others."""
    if not name.endswith("-devel"):
        return {}
    folder = f"usr/src/kernels/{release.kernel}"
    return {f"{folder}/Makefile": b"all:\n", f"{folder}/include/generated/utsrelease.h": b""}


def _wrapper(name: str, version: str, folder: str = "usr/bin", needs: str = "") -> PackageSpec:
    """Return the stub that brings Debian's program of that name into PATH."""
    text = f'#!/bin/sh\nexec /{HIDDEN}/bin/{name} "$@"\n'
    relations = {"Depends": needs} if needs else {}
    return PackageSpec(
        name, version, "x86_64", relations=relations, files={f"{folder}/{name}": text.encode()}
    )


def _dkms(version: str) -> PackageSpec:
    """Return the stub of DKMS, with the program that kernel-install(8) runs for a new kernel."""
    stub = _wrapper("dkms", version, "usr/sbin", needs="gcc, make")
    files = {**stub.files, "usr/lib/kernel/install.d/40-dkms.install": NEW_KERNEL.encode()}
    return replace(stub, files=files)


def _version_lock(version: str) -> PackageSpec:
    """Return the stub with dnf's plugin, which is a package of its own and not in fresh images."""
    place = "usr/lib/python3/dist-packages/dnf-plugins/versionlock.py"
    conf = b"[main]\nenabled = 1\nlocklist = /etc/dnf/plugins/versionlock.list\n"
    return PackageSpec(
        "python3-dnf-plugin-versionlock",
        version,
        "noarch",
        files={"etc/dnf/plugins/versionlock.conf": conf, "etc/dnf/plugins/versionlock.list": b""},
        links={place: f"/{HIDDEN}/versionlock.py"},
    )


def _python(release: Release, name: str) -> PackageSpec:
    """Return the stub of a further Python; it is `python3` in PATH if the release's own is not there."""
    links = {f"usr/bin/{name}": f"/{release.python}"}
    if release.python != PYTHON:
        links[PYTHON] = name
    return PackageSpec(name, release.oldest(name), "x86_64", links=links)


def _automatic(release: Release) -> PackageSpec:
    """Return the stub of dnf-automatic, with its configuration, program and timer."""
    files = {
        "etc/dnf/automatic.conf": AUTOMATIC,
        "usr/bin/dnf-automatic": RUN_AUTOMATIC.format(python=release.python),
        f"{UNITS}/dnf-automatic.timer": TIMER,
        f"{UNITS}/dnf-automatic.service": SERVICE,
    }
    encoded = {path: text.encode() for path, text in files.items()}
    return PackageSpec("dnf-automatic", release.oldest("dnf-automatic"), "noarch", files=encoded)


def files(release: Release) -> dict[str, str]:
    """Return path → content of the files that the node has in addition to the packages' own."""
    programs = {
        f"usr/sbin/{path.name}": path.read_text()
        for path in (resources("gpuprov_lab.rpm_family") / "programs").iterdir()
    }
    kernel = release.kernel
    entry = f"title {release.title} ({kernel})\nversion {kernel}\nlinux /boot/vmlinuz-{kernel}\n"
    entry += f"initrd /boot/initramfs-{kernel}.img\noptions root=/dev/vda1 ro\n"
    return {
        **programs,
        **sshd.files(release),
        **release.files,
        "etc/dnf/dnf.conf": DNF,
        "etc/dnf/vars/releasever": f"{release.releasever}\n",
        "etc/dnf/plugins/local.conf": "[main]\nenabled = 0\n",
        "etc/rpm/macros.gpuprov-lab": "%_dbpath /var/lib/rpm\n",
        _sources_file(release): _sources(release),
        "etc/ld.so.conf.d/lib64.conf": "/usr/lib64\n",
        f"etc/{release.release_file}": f"{release.title}\n",
        "etc/default/grub": 'GRUB_DEFAULT=saved\nGRUB_CMDLINE_LINUX=""\nGRUB_ENABLE_BLSCFG=true\n',
        "etc/kernel/cmdline": "root=/dev/vda1 ro\n",
        "etc/sysconfig/kernel": "UPDATEDEFAULT=yes\nDEFAULTKERNEL=kernel-core\n",
        f"boot/loader/entries/0123456789abcdef0123456789abcdef-{kernel}.conf": entry,
    }


def add(root: Path, release: Release) -> None:
    """Write the files (staged, the finish script moves them) and the repositories into a root; a new key
    signs these, and is not kept.
    """
    for path, text in files(release).items():
        staged = root / STAGED / path
        staged.parent.mkdir(parents=True, exist_ok=True)
        write_whole(staged, text, 0o755 if text.startswith("#!") else 0o644)
    remove_tree(root / REPOSITORIES)
    with signing_key() as key:
        for name, specs in packages(release).items():
            rpm.build(root / REPOSITORIES / name, specs, key)
        (root / KEYS).mkdir(parents=True, exist_ok=True)
        (root / KEYS / release.key).write_bytes(key.public)


def _play_python(release: Release) -> str:
    """Return shell commands that take Debian's Python out of PATH, if the release's own is not there."""
    if release.python == PYTHON:
        return ""
    folder, _, name = release.python.rpartition("/")
    return f"""\
mkdir -p /{folder}
mv $(readlink -f /{PYTHON}) /{folder}/{name}3
ln -s {name}3 /{release.python}
grep -lIE '^#! ?/{PYTHON}' /usr/bin/* /usr/sbin/* $hidden/bin/* |
    xargs sed -i --follow-symlinks '1s,/{PYTHON},/{release.python},'
rm /{PYTHON}
"""


def play(release: Release) -> str:
    """Return shell commands that turn the installed Debian into the played system. The text has no braces."""
    kernel = release.kernel
    return f"""\
hidden=/{HIDDEN}
mkdir -p $hidden/bin $hidden/units
# The kernel under a name of the played system's.
old=$(ls /lib/modules)
mv /lib/modules/$old /lib/modules/{kernel}
mv /boot/vmlinuz-$old /boot/vmlinuz-{kernel}
mv /boot/config-$old /boot/config-{kernel}
mv /boot/System.map-$old /boot/System.map-{kernel}
rm -f /boot/initrd.img-* /vmlinuz* /initrd.img*
ln -s /usr/src/kernels/{kernel} /lib/modules/{kernel}/build
depmod {kernel}
echo compress=cat >/etc/dracut.conf.d/lab.conf
dracut --quiet --force /boot/initramfs-{kernel}.img {kernel}
# Programs that stub packages bring into PATH again, and files that replace Debian's.
mv /usr/lib/python3/dist-packages/dnf-plugins/versionlock.py $hidden/
rm /etc/dnf/plugins/versionlock.*
for path in {" ".join(services.MOVED)}; do cp -L $path $hidden/bin/; rm $path; done
for name in {" ".join(services.MOVED_UNITS)}; do
    find /etc/systemd/system -name "$name*" -prune -print0 | xargs -0r rm -r
    find /lib/systemd/system -maxdepth 1 -name "$name*" -print0 | xargs -0r mv -t $hidden/units
    rm -f /etc/init.d/$name*
done
rm -f /etc/systemd/system/dbus-org.fedoraproject.FirewallD1.service
rm -f /etc/nftables.conf /etc/sysconfig/nftables.conf
groupdel docker || :
rm /etc/ssh/sshd_config
cp -a --no-preserve=ownership /{STAGED}/. /
{sshd.play(release)}{_play_python(release)}# Debian's package manager, last.
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
rpm --import /{KEYS}/{release.key}
dnf -q -y install {" ".join(base(release))}
ln -sf {release.release_file} /etc/redhat-release
ln -sf {release.release_file} /etc/system-release
rm /etc/os-release
cat >/etc/os-release <<'end'
{release.os_release}end
"""

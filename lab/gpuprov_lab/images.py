"""Images: base systems built once from the package archive, and layers saved from provisioned nodes."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpuprov.errors import InvalidInput
from gpuprov_lab import rpm_family
from gpuprov_lab.archive import Archive, harvest, lend, read_archive
from gpuprov_lab.host import (
    CACHE,
    execute,
    execute_aloud,
    locked,
    remove_tree,
    require_tools,
    say,
    write_whole,
)
from gpuprov_lab.releases import RELEASES, Release

CODENAMES = {"debian12": "bookworm", "debian13": "trixie"}
MINIMAL, PLAYED = "-minimal", "-played"
"""Suffixes of names: a system's smallest image (`debian12-minimal`), and a Debian that has the programs of
another system (`ubuntu26.04-played`).
"""

# The least that boots, allows a login and runs Ansible's modules.
MINIMAL_PACKAGES = ("systemd-sysv", "openssh-server", "python3", "linux-image-amd64")
FIRST_PACKAGES = ("systemd", "systemd-sysv", "dbus", "ca-certificates", "gpg", "gpgv")
# Packages of a rented Debian server on its first day: a kernel, an initramfs, SSH, Python and automatic
# updates.
SERVER_PACKAGES = (
    *("openssh-server", "python3", "sudo", "iproute2", "procps", "kmod", "less", "pciutils"),
    *("linux-image-amd64", "initramfs-tools", "unattended-upgrades"),
)
# Without translations of descriptions each program of apt needs a third less time.
APT_SETTINGS = """\
// Packages stay in the cache, so that the next node need not fetch them.
APT::Keep-Downloaded-Packages "true";
Binary::apt::APT::Keep-Downloaded-Packages "true";
Acquire::Languages "none";
"""
# Run inside the new system. Timers of apt would start at a node's first boot and hold its locks at random
# times; an unused console costs time at boot. No node boots from its initramfs, so it gets no modules of
# the kernel by itself: it is made in a tenth of the time. Debian's installer writes the same file.
FINISH = """\
set -eu
export DEBIAN_FRONTEND=noninteractive
mkdir -p /etc/initramfs-tools/conf.d
echo MODULES=list >/etc/initramfs-tools/conf.d/driver-policy
apt-get -q update
apt-get -q -y dist-upgrade
apt-get -q -y install --no-install-recommends {packages}
systemctl disable apt-daily.timer apt-daily-upgrade.timer
systemctl mask console-getty.service
rm -f /etc/ssh/ssh_host_*
"""
# sudo-rs is sudo, the usual one is sudo.ws; GNU's coreutils are called gnuNAME, except for cp, mv and rm.
PLAY_UBUNTU_26 = """\
for path in /usr/bin/sudo /usr/sbin/visudo; do
    dpkg-divert --quiet --local --rename --divert $path.ws --add $path
    ln -s /usr/lib/cargo/bin/${{path##*/}} $path
done
for path in /usr/lib/cargo/bin/coreutils/*; do
    name=${{path##*/}}
    case $name in cp|mv|rm) continue ;; esac
    if dpkg-query --search /usr/bin/$name 2>/dev/null | grep -q ^coreutils:; then
        dpkg-divert --quiet --local --rename --divert /usr/bin/gnu$name --add /usr/bin/$name
        coreutils ln -s $path /usr/bin/$name
    fi
done
rm /etc/os-release
cat >/etc/os-release <<'end'
{os_release}end
"""
# Processes and mounts of a program run like this end with it, and it ends with this process in every case.
ALONE = ("setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


UBUNTU_RELEASE = """\
PRETTY_NAME="Ubuntu {version} LTS"
NAME="Ubuntu"
VERSION_ID="{version}"
VERSION="{version} LTS"
VERSION_CODENAME={codename}
ID=ubuntu
ID_LIKE=debian
UBUNTU_CODENAME={codename}
"""
"""os-release of Ubuntu."""


@dataclass(frozen=True)
class Recipe:
    """Contents of a base image.

    Attributes:
        os: name of the system that it is or plays.
        codename: of the Debian that it is built from.
        first: packages of debootstrap.
        then: packages that are installed by apt.
        finish: shell commands inside, after them.
        add: writes further files into the root, before the packages.
        added: a text that changes with these files.
    """

    os: str
    codename: str
    first: tuple[str, ...]
    then: tuple[str, ...]
    finish: str = FINISH
    add: Callable[[Path], None] | None = None
    added: str = ""

    @property
    def digest(self) -> str:
        """Return the first eight hexadecimal digits of a hash of all that makes the image."""
        made_of = repr((self.codename, self.first, self.then, APT_SETTINGS, self.finish)) + self.added
        return hashlib.sha256(made_of.encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Image:
    """Initial root of a node.

    Attributes:
        os: name of the system that it is or plays.
        layers: read-only folders, topmost first, as for overlayfs.
    """

    os: str
    layers: tuple[Path, ...]


def _recipes() -> dict[str, Recipe]:
    """Return name → recipe of every base image: full and minimal Debians, and those that
    play other systems.
    """
    found = {os: Recipe(os, codename, FIRST_PACKAGES, SERVER_PACKAGES) for os, codename in CODENAMES.items()}
    found |= {
        f"{os}{MINIMAL}": Recipe(os, codename, (), MINIMAL_PACKAGES) for os, codename in CODENAMES.items()
    }
    others = ("dracut", "sudo-rs", "rust-coreutils")
    then = (*(name for name in SERVER_PACKAGES if name != "initramfs-tools"), *others)
    release = UBUNTU_RELEASE.format(version="26.04", codename="resolute")
    finish = FINISH + PLAY_UBUNTU_26.replace("{os_release}", release)
    found[f"ubuntu26.04{PLAYED}"] = Recipe("ubuntu26.04", "trixie", FIRST_PACKAGES, then, finish)
    for played in RELEASES:
        found[f"{played.image}{PLAYED}"] = _with_dnf(played)
    return found


def _with_dnf(release: Release) -> Recipe:
    """Return the recipe of a Debian that plays a release, with its own dnf, rpm, dracut and DKMS."""
    without = ("initramfs-tools", "unattended-upgrades")
    then = (
        *(name for name in SERVER_PACKAGES if name not in without),
        *(
            "dracut",
            "dnf",
            "dnf-plugins-core",
            "rpm",
            "dkms",
            "gcc",
            "make",
            "python3-venv",
        ),  # RHEL's Python has ensurepip
        *rpm_family.services.programs(release),
    )
    added = repr((rpm_family.files(release), rpm_family.packages(release)))
    add = partial(rpm_family.add, release=release)
    finish = FINISH + rpm_family.play(release)
    return Recipe(release.system, release.codename, FIRST_PACKAGES, then, finish, add, added)


RECIPES = _recipes()
"""Name → recipe of the images that are built from the package archive."""


def contained(root: Path, *command: str) -> list[str]:
    """Return the command that runs a program in a system that is not booted, with this machine's network."""
    return [
        *ALONE,
        *("systemd-nspawn", "--quiet", f"--directory={root}", "--register=no", "--keep-unit", "--pipe"),
        *("--suppress-sync=yes", "--timezone=off", "--resolv-conf=copy-host", "--", *command),
    ]


def find_image(name: str) -> Image:
    """Return the image of that name: a base system (built now if missing), or a saved layer and those below
    it.

    Raises:
        InvalidInput: no such image.
        GpuprovError: the base system cannot be built.
    """
    if name in RECIPES:
        return Image(RECIPES[name].os, (base_image(name),))
    if not (_saved(name) / "image.json").is_file():
        known = ", ".join([*RECIPES, *saved_images()])
        raise InvalidInput(f"no lab image is called '{name}'", expected=f"one of {known}")
    record = json.loads((_saved(name) / "image.json").read_text())
    return Image(record["os"], (_saved(name) / "layer", *map(Path, record["below"])))


def base_image(name: str) -> Path:
    """Return the root folder of a base system, from the cache or built now (a few minutes).

    A lock makes concurrent calls wait for one build. The folder's name contains a hash of the recipe: a
    changed recipe is another image. Missing tools are installed before a build.

    Raises:
        KeyError: no such system.
        GpuprovError: it cannot be built.
    """
    recipe = RECIPES[name]
    root = CACHE / "images" / f"{name}-{recipe.digest}"
    with locked(CACHE / f"{name}.lock"):
        if not root.exists():
            require_tools()
            say(f"building the base image {name}; this is done once and takes a few minutes")
            _build(root, recipe, read_archive())
    return root


def _build(root: Path, recipe: Recipe, archive: Archive) -> None:
    """Build a base system with debootstrap and apt into `root`, which appears only when it is complete.

    Its downloaded packages are kept in `archive.fetched`, and not in the image.
    """
    part = root.with_name(f".{root.name}.part")
    remove_tree(part)
    part.mkdir(parents=True)
    part.chmod(0o755)
    include = [f"--include={','.join(recipe.first)}"] if recipe.first else []
    options = ["--force-check-gpg", "--variant=minbase", *include]
    execute_aloud([*ALONE, "debootstrap", *options, recipe.codename, part, archive.main], timeout=1800)
    (part / "etc/apt/sources.list").unlink(missing_ok=True)
    write_whole(part / "etc/apt/sources.list.d/debian.sources", archive.sources(recipe.codename))
    write_whole(part / "etc/apt/apt.conf.d/90gpuprov-lab", APT_SETTINGS + archive.settings)
    if recipe.add:
        recipe.add(part)
    lend(part)
    execute_aloud(
        contained(part, "sh", "-c", recipe.finish.format(packages=" ".join(recipe.then))), timeout=1800
    )
    harvest(part)
    for package in (part / "var/cache/apt/archives").glob("*.deb"):
        package.unlink()
    part.rename(root)


def saved_images() -> list[str]:
    """Return the names of the saved images, sorted."""
    return sorted(path.parent.name for path in CACHE.glob("saved/*/image.json"))


def save_image(name: str, upper: Path, image: Image) -> Image:
    """Move a stopped node's own layer into the cache under `name`, replacing an image of that name; drop
    apt's downloads.

    Return the new image; the node continues on it with a new, empty layer. A lock keeps other saves and
    removals out.

    Raises:
        InvalidInput: the name is a system's or not valid, or a node uses the image of that name.
    """
    if name in RECIPES or not name.replace("-", "").replace(".", "").isalnum():
        raise InvalidInput(
            f"'{name}' cannot name a saved image",
            expected="letters, digits, '-' and '.', not a system's name",
        )
    folder = _saved(name)
    with locked(CACHE / "saved.lock"):
        _refuse_in_use(name)
        remove_tree(folder)
        folder.mkdir(parents=True)
        shutil.rmtree(upper / "var/cache/apt/archives", ignore_errors=True)
        try:
            upper.rename(folder / "layer")
        except OSError:  # another file system; cp keeps overlayfs' own attributes and whiteouts
            execute(["cp", "-a", upper, folder / "layer"])
            remove_tree(upper)
        record = {
            "schema": "gpuprov.lab-image/1",
            "os": image.os,
            "below": [str(layer) for layer in image.layers],
        }
        write_whole(folder / "image.json", json.dumps(record, indent=1) + "\n")
    return find_image(name)


def drop_image(name: str) -> None:
    """Remove a saved image; no node may use it. A lock keeps other saves and removals out.

    Raises:
        InvalidInput: no such image, or a node uses it.
    """
    if name not in saved_images():
        raise InvalidInput(
            f"no saved lab image is called '{name}'", expected=", ".join(saved_images()) or "none is saved"
        )
    with locked(CACHE / "saved.lock"):
        _refuse_in_use(name)
        remove_tree(_saved(name))


def _refuse_in_use(name: str) -> None:
    """Raise InvalidInput if a mounted root of a node uses a saved image."""
    layer = f"{_saved(name)}/layer"
    if layer in Path("/proc/self/mounts").read_text():
        raise InvalidInput(f"nodes stand on the saved image '{name}'", do="take them down first")


def _saved(name: str) -> Path:
    """Return the folder of a saved image, existing or not."""
    return CACHE / "saved" / name

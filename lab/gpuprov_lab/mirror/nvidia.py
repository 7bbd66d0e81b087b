"""The whole mirror: NVIDIA's CUDA and container-toolkit repositories below one root, in their own layout.

ROOT/compute/cuda/repos/<folder>/<arch>/     flat apt or rpm repositories
ROOT/libnvidia-container/stable/{deb,rpm}/   the container toolkit's
ROOT/public/repo/doca/<release>/<system>/    DOCA-Host's, for systems that have it
ROOT/linux/centos/, ROOT/AppStream/ …        others that a system's packages come from, below its release
ROOT/keys/                                   the public key, armored and as a keyring
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from gpuprov.catalog import Catalog
from gpuprov.catalog.records import System
from gpuprov.errors import InvalidInput
from gpuprov.locking.repository.sources import DOCA_FOLDERS, NVIDIA_FOLDERS
from gpuprov_lab.mirror import apt, publishers, rpm
from gpuprov_lab.mirror.deb import build_deb, deb_name
from gpuprov_lab.mirror.key import SigningKey, signing_key
from gpuprov_lab.mirror.specs import (
    ARCHITECTURES,
    PackageSpec,
    cuda_repository,
    read_set,
    toolkit_repository,
)
from gpuprov_lab.mirror.stubs import with_contents
from gpuprov_lab.releases import BY_SYSTEM, Release

APT_ABOUT = {"Origin": "NVIDIA", "Label": "NVIDIA CUDA"}
KEYRING_FILE = "usr/share/keyrings/cuda-archive-keyring.gpg"

DOCA, DOCA_FAMILIES = "public/repo/doca/3.1.0", ("ubuntu", "debian", "rhel")
"""Folder of the DOCA-Host release in the mirror, and the families of its systems."""

Change = Callable[[str, list[PackageSpec]], list[PackageSpec]]
"""A function from a repository's folder (`debian12`) and its packages to the packages to build."""


@dataclass(frozen=True)
class Mirror:
    """A mirror on disk.

    Attributes:
        root: its folder, to be served or read as `file:`.
        key: the public key that signed it, armored.
    """

    root: Path
    key: Path

    def cuda(self, base: str = "") -> str:
        """Return the URL template of the CUDA repositories, with `{folder}` and `{arch}`, below `base` or as
        `file:`.
        """
        return f"{base or self._folder}/compute/cuda/repos/{{folder}}/{{arch}}/"

    def container_toolkit(self, base: str = "") -> str:
        """Return the URL of the container toolkit's repositories, below `base` or as `file:`."""
        return f"{base or self._folder}/libnvidia-container/stable"

    def urls(self, base: str = "") -> dict[str, str]:
        """Return both URLs by the repositories' ids, as in a fleet's `repositories`."""
        return {"nvidia": self.cuda(base), "container-toolkit": self.container_toolkit(base)}

    def doca(self, base: str = "") -> str:
        """Return the URL template of the DOCA-Host repositories."""
        return f"{base or self._folder}/{DOCA}/{{folder}}/{{arch}}/"

    def others(self, base: str = "") -> dict[str, str]:
        """Return the URL templates of the repositories of other publishers by id, for the RHEL family."""
        return {
            name: f"{base or self._folder}/{place}" for name, (place, _) in publishers.REPOSITORIES.items()
        }

    @property
    def _folder(self) -> str:
        """The root as a URL in apt's form, `file:/srv`."""
        return f"file:{self.root}"  # apt's form of a file URL


def build(
    root: Path,
    catalog: Catalog,
    systems: Iterable[str],
    arch: str = "x86_64",
    *,
    base: str = "",
    key: SigningKey | None = None,
    change: Change = lambda folder, specs: specs,
) -> Mirror:
    """Build the repositories of some systems below `root`, and return the mirror.

    Args:
        systems: ids of the catalog: `ubuntu24.04`, `debian12`, `rhel9`.
        base: URL of the root for nodes; written into the keyring package's sources list.
        key: signs; a new one by default.
        change: changes the packages of a repository: an older day, a new release overnight, stubs with
            contents.

    Raises:
        InvalidInput: no such system.
    """
    if key is None:
        with signing_key() as fresh:
            return build(root, catalog, systems, arch, base=base, key=fresh, change=change)
    mirror = _publish_key(root, key)
    for name in systems:
        if name not in catalog.systems:
            raise InvalidInput(f"system {name!r}", expected=f"one of {', '.join(catalog.systems)}")
        _build_cuda(mirror, catalog.systems[name], catalog, arch, base, key, change)
        if catalog.systems[name].family in DOCA_FAMILIES:
            _build_doca(mirror, catalog.systems[name], arch, key, change)
        if name in BY_SYSTEM:
            _build_others(mirror, BY_SYSTEM[name], arch, key, change)
    _build_toolkit(mirror, arch, key, change)
    return mirror


def _publish_key(root: Path, key: SigningKey) -> Mirror:
    """Write the public key below `keys/`, armored and as a keyring; return the mirror."""
    keys = root / "keys"
    keys.mkdir(parents=True, exist_ok=True)
    (keys / "mirror.asc").write_bytes(key.public)
    (keys / "mirror.gpg").write_bytes(key.binary())
    return Mirror(root, keys / "mirror.asc")


def _build_cuda(
    mirror: Mirror, system: System, catalog: Catalog, arch: str, base: str, key: SigningKey, change: Change
) -> None:
    """Build NVIDIA's CUDA repository of one system; for apt also its keyring package and pin file. Raises as
    `rpm.build` and `apt.build_flat`.

    Args:
        base: URL under which the mirror is served.
        change: returns the packages to publish, from the repository's name and its packages.
    """
    place = NVIDIA_FOLDERS[arch]
    folder = mirror.root / "compute/cuda/repos" / system.folder / place
    specs = change(system.folder, _filled(system, cuda_repository(system, arch, catalog)))
    if system.manager == "dnf":
        rpm.build(folder, specs, key)
    else:
        url = mirror.cuda(base).format(folder=system.folder, arch=place)
        keyring = _keyring_package(system, place, url, key)
        apt.build_flat(folder, [*specs, keyring], key, APT_ABOUT)
        (folder / deb_name(keyring)).write_bytes(build_deb(keyring))
        (folder / f"cuda-{system.folder}.pin").write_text(_origin_pin())
    if system.key_file:
        (folder / system.key_file).write_bytes(key.public)


def _build_toolkit(mirror: Mirror, arch: str, key: SigningKey, change: Change) -> None:
    """Build the container toolkit's repositories for apt and dnf, with their key."""
    stable = mirror.root / "libnvidia-container/stable"
    deb, rpms = stable / "deb" / ARCHITECTURES["apt"][arch], stable / "rpm" / arch
    apt.build_flat(deb, change("deb", toolkit_repository("apt", arch)), key, {"Origin": "NVIDIA"})
    rpm.build(rpms, change("rpm", toolkit_repository("dnf", arch)), key)
    (mirror.root / "libnvidia-container/gpgkey").write_bytes(key.public)


def _build_doca(mirror: Mirror, system: System, arch: str, key: SigningKey, change: Change) -> None:
    """Build the DOCA-Host repository of one system."""
    folder = mirror.root / DOCA / system.id / DOCA_FOLDERS[arch]
    specs = change("doca", read_set("doca", system.manager, arch))
    if system.manager == "dnf":
        rpm.build(folder, specs, key)
    else:
        apt.build_flat(folder, specs, key, {"Origin": "DOCA", "Label": "DOCA"})


def _build_others(mirror: Mirror, release: Release, arch: str, key: SigningKey, change: Change) -> None:
    """Build the repositories of other publishers for a release."""
    for name, (place, specs) in publishers.REPOSITORIES.items():
        folder = place.format(release=release.number, arch=arch)
        if found := specs(release):
            rpm.build(mirror.root / folder, change(name, found), key)


def _filled(system: System, specs: list[PackageSpec]) -> list[PackageSpec]:
    """Return the packages with contents at the paths of the system's family."""
    return [with_contents(spec, system.manager) for spec in specs]


def _keyring_package(system: System, place: str, url: str, key: SigningKey) -> PackageSpec:
    """Return the package cuda-keyring: the same file name in every folder, with
    another key and sources list.
    """
    line = f"deb [signed-by=/{KEYRING_FILE}] {url} /\n"
    sources = f"etc/apt/sources.list.d/cuda-{system.folder}-{place}.list"
    return PackageSpec(
        name="cuda-keyring",
        version="1.1-1",
        architecture="all",
        section="multiverse/devel",
        files={KEYRING_FILE: key.binary(), sources: line.encode()},
    )


def _origin_pin() -> str:
    """Return cuda-<distro>.pin, which the local installer's instructions copy to preferences.d."""
    return "Package: *\nPin: release l=NVIDIA CUDA\nPin-Priority: 600\n"

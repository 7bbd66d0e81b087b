"""Package repositories of a group: the fleet's mirrors, this machine's apt sources, or the catalog's."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

from gpuprov.catalog import Catalog
from gpuprov.catalog.records import System
from gpuprov.errors import InvalidInput, did_you_mean
from gpuprov.locking.repository.index import Index
from gpuprov.locking.repository.rpm import with_streams
from gpuprov.locking.repository.sources import (
    ARCHIVE_SUITES,
    RELEASED,
    AptSource,
    RepositorySpec,
    archive,
    container_toolkit,
    doca,
    mirrored,
    nvidia,
    open_all,
    parse_sources,
    published_key,
    released,
)
from gpuprov.locking.repository.versions import RPM
from gpuprov.model.fleet import Fleet
from gpuprov.model.lock import Repository
from gpuprov.untrusted.openpgp import Keys, armored
from gpuprov.untrusted.signature import required_keys
from gpuprov.untrusted.stated import stated_path

# A distribution's own packages are in several archives, which apt reads as one.
ARCHIVES = {
    "debian": ("debian", "debian-updates", "debian-security"),
    "debian-security": ("debian", "debian-updates", "debian-security"),
    "debian-backports": ("debian", "debian-updates", "debian-security", "debian-backports"),
    "ubuntu": ("ubuntu",),
}
KEYRINGS = {
    "debian": Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    "ubuntu": Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg"),
}


@dataclass(frozen=True)
class Archives:
    """Repositories that one system reads as one: their index, and their description in the lock."""

    index: Index
    repositories: dict[str, Repository]

    def with_stream(self, stream: str | None) -> Index:
        """Return the index that dnf sees with one module stream enabled, or none; an apt index is unchanged.

        Raises:
            Refused: no such stream.
        """
        is_rpm = self.index.order is RPM
        return with_streams(self.index, *filter(None, [stream])) if is_rpm else self.index


class Finder:
    """Opener of the groups' repositories; the same repository is read once."""

    def __init__(self, fleet: Fleet, catalog: Catalog) -> None:
        """Check the names of the fleet's repositories.

        Raises:
            InvalidInput: a name that is neither a repository of the catalog nor a key of `ARCHIVE_SUITES`.
        """
        known = dict.fromkeys((*catalog.repositories, *ARCHIVE_SUITES))
        for name in fleet.repositories:
            if name not in known:
                expected, meant = f"one of {', '.join(known)}", did_you_mean(name, known)
                with fleet.words.placing("repositories"):
                    raise InvalidInput(f"no repository {name!r}", expected=expected, do=meant)
        self._fleet, self._catalog = fleet, catalog
        self._open: dict[tuple[str, str, str, bool], Archives] = {}

    def archives(self, repository: str, system: System, arch: str, *, main: bool = False) -> Archives:
        """Open the repository with that id, and those that apt reads with it (`ARCHIVES`), for one system.

        Args:
            main: also read a distribution's component `main`, which is far larger than the components with
                drivers.

        Raises:
            InvalidInput: its URL is not stated, or its key is not known.
            Unreachable, Refused: it does not answer, or its signature or checksums are wrong.
        """
        key = (repository, system.id, arch, main)
        if key not in self._open:
            specs = [self._opened_as(each, system, arch) for each in ARCHIVES.get(repository, (repository,))]
            described = {spec.id: self._describe(spec, system) for spec in specs}
            read = specs if main else [_without_main(spec) for spec in specs]
            self._open[key] = Archives(open_all(read, arch), described)
        return self._open[key]

    def _opened_as(self, repository: str, system: System, arch: str) -> RepositorySpec:
        """Return the parameters to open one repository, with the fleet's `frozen` date if it states one;
        raises as `_spec`.
        """
        stated = self._fleet.repositories.get(repository)
        return replace(self._spec(repository, system, arch), frozen=stated.frozen if stated else None)

    def _spec(self, repository: str, system: System, arch: str) -> RepositorySpec:
        """Return the parameters to open one repository: the fleet's URL and key, or else the catalog's.

        If neither states a key, the one that the publisher has next to the repository is fetched; the spec
        has no key if this publisher has none there.

        Raises:
            InvalidInput: neither states a URL, or as `_archive_spec`.
            InvalidInput, Refused, Unreachable: as `_published_key`.
        """
        stated = self._fleet.repositories.get(repository)
        if repository in ARCHIVE_SUITES:
            return self._archive_spec(repository, system, arch, stated.url if stated else None)
        known = self._catalog.repositories.get(repository)
        url = stated.url if stated else known.url if known else None
        if url is None:
            raise InvalidInput(
                f"the repository {repository!r} has no address",
                do=f"state it in fleet.yml: repositories: {{{repository}: {{url: URL, key: FILE}}}}",
            )
        manager: Literal["apt", "rpm"] = "apt" if system.manager == "apt" else "rpm"
        if repository == "container-toolkit":
            spec = container_toolkit(url, arch, manager, self._key(repository))
            beside, key_file = url.rstrip("/").rpartition("/")[0], "gpgkey"
        elif repository == "doca":
            spec = doca(url, system.id, arch, manager, self._key(repository))
            beside, key_file = spec.url, ""
        elif repository in RELEASED:
            spec = released(repository, url, system.id, arch, self._key(repository))
            beside, key_file = url.partition("/{")[0], RELEASED[repository]
        else:
            spec = nvidia(url, system.folder, arch, manager, self._key(repository))
            beside, key_file = spec.url, system.key_file or ""
        if spec.keyring or not key_file:
            return spec
        return replace(spec, keyring=self._published_key(beside, key_file, system))

    def _published_key(self, url: str, key_file: str, system: System) -> bytes:
        """Fetch a publisher's key next to its repository; accept only the key in the catalog.

        Raises:
            InvalidInput: the catalog has no key of that name, or the published one is not complete.
            Refused: the published key is another one, not the only one in its file, or missing.
            Unreachable: it cannot be fetched.
        """
        keys = self._catalog.facts["systems"]["signing_keys"]
        known = next((key for key in keys if key["id"] == key_file.removesuffix(".pub")), None)
        if known is None:
            raise InvalidInput(f"the catalog has no key of {url} for {system.title}")
        return published_key(
            f"{url.rstrip('/')}/{key_file}",
            fingerprint=known.get("fingerprint"),
            sha256=known.get("key_sha256_without_version_line"),
        )

    def _archive_spec(self, repository: str, system: System, arch: str, url: str | None) -> RepositorySpec:
        """Return the parameters of a distribution's own repository.

        Its address is that of the fleet's mirror, else of this machine's apt sources if its system is of the
        same family, else the catalog's. The catalog is needed because this machine may have another system,
        or no apt.

        Raises:
            InvalidInput: there is no address, or this machine's apt sources lack the repository.
        """
        names = self._codenames(system)
        codename = next(name for name, version in names.items() if f"{system.family}{version}" == system.id)
        record = self._catalog.repositories.get(repository) or self._catalog.repositories[system.family]
        components = system.archive_components or record.components
        keyring = self._key(repository) or archive_keys(system.family)
        own_codename, sources = own_sources() if url is None else ("", [])
        if own_codename in names and sources:
            return archive(repository, codename, components, sources, own_codename, keyring=keyring)
        public = record.url_aarch64 if arch == "aarch64" and record.url_aarch64 else record.url
        if (place := url or public) is None:
            raise InvalidInput(
                f"neither this machine's apt sources nor the catalog has the address of {record.title}",
                do=f"name a mirror in fleet.yml: repositories: {{{repository}: URL}}",
            )
        return mirrored(repository, place, codename, components, keyring)

    def _codenames(self, system: System) -> dict[str, str]:
        """Return the family's releases: name in the archive → version, `bookworm` → `12`."""
        names: dict[str, str] = next(
            each.codenames
            for each in self._catalog.tables["systems.families"]
            if each.family == system.family
        )
        return names

    def _key(self, repository: str) -> Path | None:
        """Return the path of the key file that the fleet states for a repository, or None."""
        stated = self._fleet.repositories.get(repository)
        return stated_path(stated.key) if stated and stated.key else None

    def _describe(self, spec: RepositorySpec, system: System) -> Repository:
        """Return the lock's record of a repository; raises as `_key_text`.

        The node's own archive has no address, only the suites, and the components that may be missing on the
        node.
        """
        stated = self._fleet.repositories.get(spec.id)
        own = spec.id in ARCHIVE_SUITES and stated is None
        return Repository(
            url=None if own else spec.url,
            suites=list(spec.suites),
            components=list(spec.components),
            signed_by=_key_text(spec, named=stated is not None and stated.key is not None),
            frozen=spec.frozen,
            source="fleet.yml" if stated else f"the archive of {system.title}" if own else "the catalog",
        )


def _without_main(spec: RepositorySpec) -> RepositorySpec:
    """Return the parameters without the component `main`."""
    return replace(spec, components=tuple(each for each in spec.components if each != "main"))


def _key_text(spec: RepositorySpec, *, named: bool) -> str | None:
    """Return the armored key for the node; None if signatures are not checked, or the node's own keyring does
    that.

    Args:
        named: whether the fleet names its own key, which replaces the node's.

    Raises:
        InvalidInput: the keyring has no usable key.
    """
    keys = required_keys(spec.keyring, spec.url)
    return armored(keys) if keys and (named or spec.id not in ARCHIVE_SUITES) else None


def archive_keys(family: str) -> Keys:
    """Return a distribution's keys: the path of this machine's keyring file, which it updates, or the bytes
    of gpuprov's.
    """
    own = KEYRINGS[family]
    return own if own.is_file() else (files("gpuprov.locking.repository") / f"keys/{family}.asc").read_bytes()


@lru_cache(maxsize=1)
def own_sources(root: Path = Path("/")) -> tuple[str, list[AptSource]]:
    """Return this machine's release name and apt sources; an empty name or list if it has none.

    Files of sources that this user cannot read, or that are not UTF-8, are left out: those with passwords are
    root's.
    """
    release = root / "etc/os-release"
    values = (
        dict(line.split("=", 1) for line in release.read_text().splitlines() if "=" in line)
        if release.exists()
        else {}
    )
    folder = root / "etc/apt"
    files = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))]
    files += sorted((folder / "sources.list.d").glob("*.sources"))
    sources: list[AptSource] = []
    for path in filter(Path.is_file, files):
        with suppress(OSError, UnicodeDecodeError):
            sources += parse_sources(path.read_text(encoding="utf-8"))
    return values.get("VERSION_CODENAME", "").strip('"'), sources

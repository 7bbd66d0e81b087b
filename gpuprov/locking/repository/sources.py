"""Repositories by id, and their places for one operating system.

NVIDIA's come from a URL of the catalog; a distribution's own archive from the apt sources of a machine that
uses it, because every site has its mirror; both also from the fleet's `repositories:`. Callers pass these
values to the functions of this module.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Literal

from debian.deb822 import Deb822

from gpuprov.catalog.texts import fill
from gpuprov.errors import InvalidInput, Refused
from gpuprov.locking.repository.apt import open_apt
from gpuprov.locking.repository.fetch import Fetcher, place_of
from gpuprov.locking.repository.index import Index
from gpuprov.locking.repository.rpm import open_rpm
from gpuprov.untrusted.openpgp import UNSIGNED, Keyring, Keys, fingerprints, other_contents

DEB_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
NVIDIA_FOLDERS = {"x86_64": "x86_64", "aarch64": "sbsa"}
"""NVIDIA's folder name by architecture; that for arm64 servers differs from other repositories'."""

DOCA_FOLDERS = {"x86_64": "x86_64", "aarch64": "arm64-sbsa"}

ARCHIVE_SUITES = {
    "debian": ("{codename}",),
    "debian-updates": ("{codename}-updates",),
    "debian-security": ("{codename}-security",),
    "debian-backports": ("{codename}-backports",),
    "ubuntu": ("{codename}", "{codename}-updates", "{codename}-security"),
}
"""Suites of a distribution's own archive, as in the default sources of Debian 12 and Ubuntu 24.04."""

RELEASED = {"docker-ce": "gpg", "appstream": "", "epel": "", "amazonlinux": ""}
"""Repositories of rpms with a folder for each release → name of the key's file next to these folders.

Empty if no publisher serves all systems of the family: the fleet states the key.
"""

ONE_LINE = re.compile(r"deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)(?P<components>.*)")


@dataclass(frozen=True)
class RepositorySpec:
    """Parameters to open one repository.

    Attributes:
        id: its name in the catalog and the lock: `nvidia`, `debian-security`.
        manager: `apt` or `rpm`.
        url: root of the repository.
        suites: apt's suites; `/` for a flat repository. Empty for rpm.
        components: apt's components. Empty for a flat repository and for rpm.
        keyring: trusted keys, or `unsigned`; with None the repository cannot be opened.
        frozen: snapshot date of a mirror that is deliberately not updated.
    """

    id: str
    manager: Literal["apt", "rpm"]
    url: str
    keyring: Keyring | None
    suites: tuple[str, ...] = ()
    components: tuple[str, ...] = ()
    frozen: date | None = None

    def open(self, arch: str, fetcher: Fetcher | None = None) -> Index:
        """Return its index for `x86_64` or `aarch64`.

        Raises:
            GpuprovError: as for `open_apt` and `open_rpm`.
        """
        if self.manager == "rpm":
            return open_rpm(self.url, arch, self.keyring, fetcher=fetcher, frozen=self.frozen)
        architecture = DEB_ARCHITECTURES[arch]
        first, *others = (
            open_apt(
                self.url,
                suite,
                self.components,
                architecture,
                self.keyring,
                fetcher=fetcher,
                frozen=self.frozen,
            )
            for suite in self.suites
        )
        return first.union(*others)


def open_all(specs: Sequence[RepositorySpec], arch: str, fetcher: Fetcher | None = None) -> Index:
    """Return the combined index of several repositories of one packaging system; at least one.

    Raises:
        GpuprovError: as for `open_apt` and `open_rpm`.
    """
    first, *others = (spec.open(arch, fetcher) for spec in specs)
    return first.union(*others)


def nvidia(
    template: str, folder: str, arch: str, manager: Literal["apt", "rpm"], keyring: Keyring | None
) -> RepositorySpec:
    """Return NVIDIA's CUDA repository for one system.

    Args:
        template: `https://…/repos/{folder}/{arch}/`, from the catalog or a mirror of the same layout; a URL
            without the two fields is used unchanged.
        folder: the system's folder: `debian12`, `ubuntu2404`, `rhel9`.

    Raises:
        InvalidInput: the URL has another field, or a single brace.
    """
    url = _address("nvidia", template, folder=folder, arch=NVIDIA_FOLDERS[arch])
    return RepositorySpec("nvidia", manager, url, keyring, suites=("/",) if manager == "apt" else ())


def doca(
    template: str, system: str, arch: str, manager: Literal["apt", "rpm"], keyring: Keyring | None
) -> RepositorySpec:
    """Return NVIDIA's DOCA-Host repository for one system.

    Args:
        template: `https://…/doca/3.3.0/{folder}/{arch}/`, of one release of DOCA; a URL without the two
            fields is used unchanged.
        system: id in the catalog, which is the folder's name: `ubuntu24.04`.

    Raises:
        InvalidInput: the URL has another field, or a single brace.
    """
    url = _address("doca", template, folder=system, arch=DOCA_FOLDERS[arch])
    return RepositorySpec("doca", manager, url, keyring, suites=("/",) if manager == "apt" else ())


def container_toolkit(
    base: str, arch: str, manager: Literal["apt", "rpm"], keyring: Keyring | None
) -> RepositorySpec:
    """Return NVIDIA's container-toolkit repository below `…/stable/`: one for all deb systems, one for all
    rpm systems.

    Source: the published lists, `stable/deb/nvidia-container-toolkit.list` (`…/stable/deb/$(ARCH) /`) and
    `stable/rpm/nvidia-container-toolkit.repo` (`…/stable/rpm/$basearch`).
    """
    kind, place = ("deb", DEB_ARCHITECTURES[arch]) if manager == "apt" else ("rpm", arch)
    url = f"{base.rstrip('/')}/{kind}/{place}"
    return RepositorySpec(
        "container-toolkit", manager, url, keyring, suites=("/",) if manager == "apt" else ()
    )


def released(
    id: str,  # noqa: A002 - as the catalog spells it
    template: str,
    system: str,
    arch: str,
    keyring: Keyring | None,
) -> RepositorySpec:
    """Return a repository of rpms that has a folder for each release of a system.

    Args:
        template: `https://…/{release}/{arch}/stable`, from the catalog or a mirror; a URL without the two
            fields is used unchanged.
        system: id of the operating system; its number is the release: `rhel9`.

    Raises:
        InvalidInput: the URL has another field, or a single brace.
    """
    release = system.lstrip("abcdefghijklmnopqrstuvwxyz")
    return RepositorySpec(id, "rpm", _address(id, template, release=release, arch=arch), keyring)


def _address(name: str, template: str, **words: str) -> str:
    """Return the URL of a repository with the values of its fields.

    Raises:
        InvalidInput: it has another field, or a single brace.
    """
    url, fields = fill(template, words), " and ".join(f"{{{each}}}" for each in words)
    if "{" in url or "}" in url:
        raise InvalidInput(
            f"the repository {name} has the address {template[:200]}",
            expected=f"a URL without braces, or with the fields {fields}",
            do=f"correct repositories: {{{name}: {{url: URL}}}} in fleet.yml",
        )
    return url


@dataclass(frozen=True)
class AptSource:
    """One enabled `deb` entry of a machine's apt sources; `signed_by` is a path or the armored key itself."""

    uri: str
    suite: str
    components: tuple[str, ...]
    signed_by: str = ""
    trusted: bool = False


def parse_sources(text: str) -> list[AptSource]:
    """Parse the enabled `deb` entries of one apt sources file, in the one-line or the deb822 format
    (sources.list(5)).
    """
    bare = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if any(re.match(r"Types\s*:", line, re.IGNORECASE) for line in bare):
        return [source for paragraph in Deb822.iter_paragraphs(text) for source in _deb822_entries(paragraph)]
    return [entry for line in bare if (entry := _one_line_entry(line.partition("#")[0].strip()))]


def _deb822_entries(paragraph: Mapping[str, str]) -> Iterable[AptSource]:
    """Yield one entry for each URI and suite of a paragraph; none if it is disabled or has not the type
    `deb`.
    """
    if (
        "deb" not in paragraph.get("Types", "").split()
        or _yes_or_no(paragraph.get("Enabled", "yes")) is False
    ):
        return
    for uri in paragraph.get("URIs", "").split():
        for suite in paragraph.get("Suites", "").split():
            yield AptSource(
                uri.rstrip("/"),
                suite,
                tuple(paragraph.get("Components", "").split()),
                _signed_by(paragraph.get("Signed-By", "")),
                _yes_or_no(paragraph.get("Trusted", "no")) is True,
            )


def _signed_by(value: str) -> str:
    """Return a path unchanged; for an embedded key, replace the dots of deb822's blank lines."""
    lines = [line.strip() for line in value.strip().splitlines()]
    return "\n".join("" if line == "." else line for line in lines)


def _one_line_entry(line: str) -> AptSource | None:
    """Parse one line without its comment; None if it is not a `deb` entry."""
    parsed = ONE_LINE.fullmatch(line)
    if not parsed:
        return None
    options = dict(word.partition("=")[::2] for word in (parsed["options"] or "").split())
    return AptSource(
        parsed["uri"].rstrip("/"),
        parsed["suite"],
        tuple(parsed["components"].split()),
        options.get("signed-by", ""),
        _yes_or_no(options.get("trusted", "no")) is True,
    )


def _yes_or_no(word: str) -> bool | None:
    """Parse apt's spellings of yes and no (apt.conf(5)); None for any other text."""
    lowered = word.strip().lower()
    if lowered in {"yes", "true", "with", "on", "enable", "1"}:
        return True
    return False if lowered in {"no", "false", "without", "off", "disable", "0"} else None


def archive(
    id: str,  # noqa: A002 - as the catalog spells it
    codename: str,
    components: Iterable[str],
    sources: Sequence[AptSource],
    sources_codename: str,
    *,
    keyring: Keys,
    read_key: Callable[[str], Keys] = Path,
) -> RepositorySpec:
    """Return a distribution's own archive, at the place where a machine gets it from.

    Args:
        id: a key of ARCHIVE_SUITES.
        codename: the release to look up: `bookworm`, `noble`.
        components: the components to read.
        sources: the machine's apt sources.
        sources_codename: the release of that machine, whose suites its sources name.
        keyring: the archive's keys, for an entry without Signed-By.
        read_key: reader of the keys at a Signed-By path; by default a path of this machine.

    Raises:
        InvalidInput: no such id, or the sources name no such archive.
    """
    if id not in ARCHIVE_SUITES:
        raise InvalidInput(f"repository {id!r}", expected=f"one of {', '.join(ARCHIVE_SUITES)}")
    suite = ARCHIVE_SUITES[id][0].format(codename=sources_codename)
    found = [source for source in sources if source.suite == suite and "main" in source.components]
    own = keyring.name if isinstance(keyring, Path) else ""
    found.sort(key=lambda source: (own not in source.signed_by, bool(source.signed_by)))
    if not found:
        raise InvalidInput(
            f"no apt source with the suite {suite} and the component main",
            expected=f"the sources of a machine that uses {id}",
            do=f"name its mirror in the fleet: repositories: {{{id}: URL}}",
        )
    return mirrored(id, found[0].uri, codename, components, _keys(found[0], keyring, read_key))


def mirrored(
    id: str,  # noqa: A002 - as the catalog spells it
    url: str,
    codename: str,
    components: Iterable[str],
    keyring: Keyring | None,
) -> RepositorySpec:
    """Return a distribution's own archive at a URL, with the suites of `ARCHIVE_SUITES`."""
    suites = tuple(suite.format(codename=codename) for suite in ARCHIVE_SUITES[id])
    return RepositorySpec(id, "apt", url.rstrip("/"), keyring, suites, tuple(components))


def _keys(source: AptSource, keyring: Keys, read_key: Callable[[str], Keys]) -> Keyring:
    """Return the keys of an apt source.

    `unsigned` if it is trusted, else the key in its Signed-By or at that path, else the given keyring. A
    path is read with `read_key`.
    """
    if source.trusted:
        return UNSIGNED
    if source.signed_by.startswith("-----BEGIN"):
        return source.signed_by.encode()
    if not source.signed_by and not isinstance(keyring, Path):
        return keyring
    return read_key(source.signed_by or str(keyring))


def published_key(
    url: str, *, fingerprint: str | None = None, sha256: str | None = None, fetcher: Fetcher | None = None
) -> bytes:
    """Return a key that a repository publishes, if it is exactly the one in the catalog.

    Args:
        fingerprint: of the primary key.
        sha256: of the armored text without its Version line, if no fingerprint is known.

    Raises:
        Refused: it is missing, it is another key, or the file contains more keys.
        InvalidInput: it is not a complete key.
        Unreachable: it cannot be fetched.
    """
    content = (fetcher or Fetcher()).get(url)
    if content is None:
        raise Refused(f"no key at {place_of(url)}", do="name the repository's key file")
    lines = [line for line in content.splitlines(keepends=True) if not line.startswith(b"Version:")]
    digest = hashlib.sha256(b"".join(lines)).hexdigest()
    if sha256 and sha256 == digest:
        return content
    found = fingerprints(content)
    if not fingerprint or fingerprint.upper() not in found:
        raise Refused(
            f"the key at {place_of(url)} has the fingerprint {', '.join(found)} and the SHA256 {digest}",
            expected=fingerprint or sha256 or "a key that the catalog has",
            do="check whether the owner has announced a new key, then name the key file",
        )
    if surplus := other_contents(content, fingerprint):
        raise Refused(
            f"the key file {place_of(url)} has other keys than {fingerprint.upper()}: {', '.join(surplus)}",
            expected="only that key",
            do="do not install from it; if you have checked the key file yourself, name it in fleet.yml, "
            "repositories: {ID: {url: URL, key: FILE}}",
        )
    return content

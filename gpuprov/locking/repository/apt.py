"""Debian-style repositories: suites (`dists/bookworm`) and NVIDIA's flat ones (`/`).

The layout and the meaning of its fields: Debian's wiki page RepositoryFormat, apt-secure(8), sources.list(5).
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from debian.deb822 import PkgRelation
from debian.deb822 import Release as ReleaseFile

from gpuprov.errors import InvalidInput, Refused
from gpuprov.locking.repository.fetch import Fetcher
from gpuprov.locking.repository.index import Alternatives, Index, Package, Relation
from gpuprov.locking.repository.openpgp import Keyring, Keys
from gpuprov.locking.repository.signature import required_keys, verify_detached, verify_inline
from gpuprov.locking.repository.versions import DEB, Order

FIELDS = ("Package", "Version", "Architecture", "Source", "Pre-Depends", "Depends", "Provides")
FILE_FIELDS = ("Filename", "Size", "SHA256")
FIELD = re.compile(rf"^({'|'.join((*FIELDS, *FILE_FIELDS))}): *(.*(?:\n[ \t].*)*)$", re.MULTILINE)


def open_apt(
    url: str,
    suite: str,
    components: Sequence[str],
    architecture: str,
    keyring: Keyring | None,
    *,
    fetcher: Fetcher | None = None,
    now: datetime | None = None,
) -> Index:
    """The packages of one suite, after the checks that apt makes.

    Args:
        url: the repository's root, as in sources.list.
        suite: `bookworm`, `bookworm-security`; ending in `/` for a flat repository (then no components).
        components: `["main", "non-free"]`.
        architecture: Debian's name: `amd64`, `arm64`.
        keyring: the keys that may sign, or `unsigned` (apt's `trusted=yes`).
        now: the time to judge Valid-Until by; the clock's by default.

    Raises:
        InvalidInput: no key is known, or no repository, suite, component or architecture of that name there.
        Refused: signature, dates, sizes or checksums do not hold, or a named file is gone.
        Unreachable: no answer.
    """
    fetcher = fetcher or Fetcher()
    root = url.rstrip("/") + "/"
    base = root + suite.lstrip("/") if suite.endswith("/") else f"{root}dists/{suite}/"
    release = _release(base, suite, required_keys(keyring, root), fetcher)
    _check_dates(release, base, now or datetime.now(UTC))
    listed = _listed(release, base)
    parts = _parts(release, suite, components, architecture, listed, base)
    texts = [_packages_file(base, part, listed, release, fetcher) for part in parts]
    return Index(AptRecords(root.rstrip("/"), texts, architecture))


def _release(base: str, suite: str, keyring: Keys | None, fetcher: Fetcher) -> ReleaseFile:
    """The verified Release file: InRelease, or Release with Release.gpg."""
    text = fetcher.get(base + "InRelease")
    if text is not None:
        text = verify_inline(text, keyring, base + "InRelease") if keyring else text
    else:
        text = _release_beside_signature(base, suite, keyring, fetcher)
    release = ReleaseFile(text.decode("utf-8", errors="replace"))
    if "SHA256" not in release:
        raise InvalidInput(f"{base} has no Release file with SHA256 sums", expected="an apt repository")
    return release


def _release_beside_signature(base: str, suite: str, keyring: Keys | None, fetcher: Fetcher) -> bytes:
    text = fetcher.get(base + "Release")
    if text is None:
        raise InvalidInput(
            f"no InRelease or Release at {base}",
            expected=f"an apt repository with the suite {suite!r}",
            do="check the URL and the suite's name",
        )
    if keyring:
        signature = fetcher.get(base + "Release.gpg")
        if signature is None:
            raise Refused(
                f"{base}Release bears no signature",
                do="the mirror must be signed, or declared trusted as it is",
            )
        verify_detached(text, signature, keyring, base + "Release")
    return text


def _check_dates(release: ReleaseFile, base: str, now: datetime) -> None:
    """Raises Refused outside Date … Valid-Until (a replayed or stale mirror, or a wrong clock)."""
    until = release.get("Valid-Until")
    if until and now > _moment(until, base):
        raise Refused(
            f"{base} was valid until {until}, it is stale",
            do="sync the mirror again, and check the clock here",
        )
    date = release.get("Date")
    if date and _moment(date, base) > now:
        raise Refused(f"{base} is dated {date}, which is in the future", do="check the clock here")


def _moment(text: str, base: str) -> datetime:
    try:
        moment = parsedate_to_datetime(text)
    except ValueError as error:
        raise InvalidInput(f"{base}: {text!r} in Release", expected="a date as RFC 5322 writes it") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _listed(release: ReleaseFile, base: str) -> dict[str, tuple[int, str]]:
    """Size and SHA256 of each file that the Release names."""
    try:
        return {
            row["name"].removeprefix("./"): (int(row["size"]), row["sha256"]) for row in release["SHA256"]
        }
    except (KeyError, ValueError) as error:
        raise InvalidInput(
            f"{base}: the SHA256 list in Release cannot be read", expected="checksum, size, name"
        ) from error


def _parts(
    release: ReleaseFile,
    suite: str,
    components: Sequence[str],
    architecture: str,
    listed: Iterable[str],
    base: str,
) -> list[str]:
    """Names of the Packages files, without a compression's suffix."""
    names = set(listed)
    wanted = {f"{component}/binary-{architecture}/Packages": component for component in components}
    if suite.endswith("/"):
        wanted = {"Packages": "/"}
    for part, component in wanted.items():
        if not any(part + suffix in names for suffix in UNPACK):
            raise InvalidInput(
                f"{base} has no packages for {component} {architecture}",
                expected=f"a component of {release.get('Components', '/')}"
                f" and an architecture of {release.get('Architectures', 'its own')}",
            )
    return list(wanted)


def _packages_file(
    base: str, part: str, listed: dict[str, tuple[int, str]], release: ReleaseFile, fetcher: Fetcher
) -> str:
    """The text of one Packages file, in the first compression that the mirror has.

    A mirror need not keep every form that its Release names (the plain one mostly lives there as a checksum
    only).
    """
    by_hash = release.get("Acquire-By-Hash") == "yes"
    if listed.get(part, (None, ""))[0] == 0:
        return ""
    forms = [part + suffix for suffix in UNPACK if part + suffix in listed]
    for name in forms:
        size, sha256 = listed[name]
        folder = name.rpartition("/")[0]
        places = [f"{base}{folder}/by-hash/SHA256/{sha256}"] if by_hash else []
        for place in (*places, base + name):
            content = fetcher.get(place, size=size, sha256=sha256)
            if content is not None:
                return _unpacked(content, name.removeprefix(part), base + name)
    raise Refused(
        f"{base}{forms[0]} is named by the Release file and is gone (404)",
        do="the mirror is half synced: try again in some minutes, or sync it again",
    )


def _unzstd(content: bytes) -> bytes:
    if not shutil.which("zstd"):
        raise OSError("zstd is not installed here")
    done = subprocess.run(["zstd", "-dcq"], input=content, capture_output=True, timeout=120, check=False)
    if done.returncode:
        raise OSError(done.stderr.decode(errors="replace").strip())
    return done.stdout


def _plain(content: bytes) -> bytes:
    return content


UNPACK: dict[str, Callable[[bytes], bytes]] = {
    ".xz": lzma.decompress,
    ".gz": gzip.decompress,
    ".zst": _unzstd,
    ".bz2": bz2.decompress,
    "": _plain,
}
"""How to unpack a file by its suffix; the order is the order of choice."""


def _unpacked(content: bytes, suffix: str, name: str) -> str:
    return unpack(content, suffix, name).decode("utf-8", errors="replace")


def unpack(content: bytes, suffix: str, name: str) -> bytes:
    """Unpacked content. Raises Refused when it is cut off or not of its kind."""
    try:
        return UNPACK[suffix](content)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise Refused(
            f"{name} cannot be unpacked: {error}",
            expected=f"a whole {suffix.lstrip('.')} file",
            do="the mirror is broken: sync it again",
        ) from error


@dataclass(frozen=True, slots=True)
class _Stanza:
    """One paragraph of a Packages file, parsed when somebody asks for it: Debian's main has 60,000."""

    text: str

    def package(self, repository: str) -> Package:
        try:
            return self._parsed(repository)
        except (KeyError, ValueError) as error:
            name = _value(self.text, "Package")
            raise InvalidInput(f"{repository}: the stanza of {name} cannot be read: {error}") from error

    def _parsed(self, repository: str) -> Package:
        said: dict[str, str] = dict(FIELD.findall(self.text))
        name = said["Package"]
        return Package(
            name=name,
            version=said["Version"],
            architecture=said["Architecture"],
            source=said.get("Source", name).partition(" ")[0],
            depends=parse_depends(said.get("Pre-Depends", "")) + parse_depends(said.get("Depends", "")),
            provides=tuple(offer for group in parse_depends(said.get("Provides", "")) for offer in group),
            filename=said.get("Filename", "").removeprefix("./"),
            size=int(said.get("Size", 0)),
            sha256=said.get("SHA256", ""),
            repository=repository,
        )


class AptRecords:
    """The stanzas of Packages files, by name and by what they provide."""

    order: Order = DEB

    def __init__(self, origin: str, texts: Iterable[str], architecture: str) -> None:
        self.origin = origin
        self.architectures = (architecture, "all")
        self._stanzas: dict[str, list[_Stanza]] = {}
        self._provided: dict[str, set[str]] = {}
        for text in texts:
            for stanza in text.split("\n\n"):
                self._add(stanza.strip("\n"))

    def _add(self, text: str) -> None:
        if not text:
            return
        name = _value(text, "Package")
        if not name or not _value(text, "Version"):
            raise InvalidInput(f"a stanza without Package or Version in {self.origin}: {text[:60]!r}")
        self._stanzas.setdefault(name, []).append(_Stanza(text))
        for offer in _value(text, "Provides").split(","):
            self._provided.setdefault(offer.partition("(")[0].strip(), set()).add(name)

    def names(self) -> Iterable[str]:
        return self._stanzas

    def packages(self, name: str) -> Sequence[Package]:
        parsed = (stanza.package(self.origin) for stanza in self._stanzas.get(name, ()))
        return [package for package in parsed if package.architecture in self.architectures]

    def providers(self, name: str) -> Iterable[str]:
        return self._provided.get(name, ())


def _value(text: str, name: str) -> str:
    """A one-line field, without a regular expression: this runs for every stanza of an archive."""
    at = 0 if text.startswith(f"{name}:") else text.find(f"\n{name}:") + 1
    if at == 0 and not text.startswith(f"{name}:"):
        return ""
    end = text.find("\n", at)
    return text[at + len(name) + 1 : end if end >= 0 else None].strip()


def parse_depends(text: str) -> tuple[Alternatives, ...]:
    """A dependency field: groups of which each needs one alternative. `foo:any` counts as `foo`."""
    if not text.strip():
        return ()
    groups = PkgRelation.parse_relations(" ".join(text.split()))
    return tuple(tuple(_relation(parsed) for parsed in group) for group in groups)


def _relation(parsed: PkgRelation.ParsedRelation) -> Relation:
    operator, version = parsed["version"] or ("", "")
    return Relation(parsed["name"], operator, version)

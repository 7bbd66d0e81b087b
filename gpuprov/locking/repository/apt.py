"""Debian-style repositories: suites (`dists/bookworm`) and NVIDIA's flat ones (`/`).

Layout and fields: Debian's wiki page RepositoryFormat, apt-secure(8), sources.list(5).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from debian.deb822 import PkgRelation

from gpuprov.errors import InvalidInput, Refused
from gpuprov.locking.repository.fetch import Fetcher
from gpuprov.locking.repository.index import Alternatives, Index, Package, Relation
from gpuprov.locking.repository.limits import Count, short_name
from gpuprov.locking.repository.release import Release, read_release
from gpuprov.locking.repository.unpack import UNPACK, unpack
from gpuprov.locking.repository.versions import DEB, Order
from gpuprov.untrusted import shown
from gpuprov.untrusted.openpgp import Keyring
from gpuprov.untrusted.stated import stated_file

# python-debian logs a relation that it cannot parse, and so prints control characters of the index.
logging.getLogger(PkgRelation.__module__).setLevel(logging.ERROR)

FIELDS = ("Package", "Version", "Architecture", "Source", "Pre-Depends", "Depends", "Provides")
FILE_FIELDS = ("Filename", "Size", "SHA256")
STANZA = 1 << 20
"""Maximum length of a stanza in characters, whose relations need up to 500 times as much memory."""
OPERATORS = {"<<": "<<", "<=": "<=", "=": "=", ">=": ">=", ">>": ">>", "<": "<=", ">": ">="}
"""Operators of relations; the last two are old spellings (Debian Policy 7.1)."""
_NAMES = "|".join((*FIELDS, *FILE_FIELDS))
FIELD = re.compile(rf"^({_NAMES}): *(.*(?:\n[ \t].*)*)$", re.MULTILINE)


def open_apt(
    url: str,
    suite: str,
    components: Sequence[str],
    architecture: str,
    keyring: Keyring | None,
    *,
    fetcher: Fetcher | None = None,
    now: datetime | None = None,
    frozen: date | None = None,
) -> Index:
    """Return the packages of one suite, after the same checks as apt's.

    Args:
        url: the repository's root, as in sources.list.
        suite: `bookworm`, `bookworm-security`; ending in `/` for a flat repository (then no components).
        components: `["main", "non-free"]`.
        architecture: Debian's name: `amd64`, `arm64`.
        keyring: the trusted keys, or `unsigned` (apt's `trusted=yes`).
        now: time for the check of dates; by default the current time.
        frozen: snapshot date of a mirror that is deliberately not updated.

    Raises:
        InvalidInput: no key is known, or the repository, suite, component or architecture does not exist.
        Refused: signature, suite, dates, sizes or checksums are wrong, or a listed file is missing.
        Unreachable: no answer.
    """
    fetcher = fetcher or Fetcher()
    root = url.rstrip("/") + "/"
    release = read_release(root, suite, keyring, fetcher, now=now, frozen=frozen)
    parts = _parts(release, suite, components, architecture)
    texts = [_packages_file(release, part, fetcher) for part in parts]
    return Index(AptRecords(root.rstrip("/"), texts, architecture))


def _parts(release: Release, suite: str, components: Sequence[str], architecture: str) -> list[str]:
    """Return the names of the Packages files, without the suffix of a compression.

    Raises:
        InvalidInput: the Release file lists none for a component and the architecture.
    """
    wanted = {f"{component}/binary-{architecture}/Packages": component for component in components}
    if suite.endswith("/"):
        wanted = {"Packages": "/"}
    for part, component in wanted.items():
        if not any(part + suffix in release.files for suffix in UNPACK):
            raise InvalidInput(
                f"{release.base} has no packages for {component} {architecture}",
                expected=f"a component of {release.components}"
                f" and an architecture of {release.architectures}",
            )
    return list(wanted)


def _packages_file(release: Release, part: str, fetcher: Fetcher) -> str:
    """Return the text of one Packages file, in the first compression that the mirror has.

    A mirror may lack some of the forms in its Release file: the uncompressed one is usually only listed with
    its checksum.

    Raises:
        Refused: the mirror has none of them, or the content is wrong.
    """
    plain, _ = release.files.get(part, (None, ""))
    if plain == 0:
        return ""
    forms = [part + suffix for suffix in UNPACK if part + suffix in release.files]
    for name in forms:
        size, sha256 = release.files[name]
        folder = name.rpartition("/")[0]
        places = [f"{release.base}{folder}/by-hash/SHA256/{sha256}"] if release.by_hash else []
        for place in (*places, release.base + name):
            content = fetcher.get(place, size=size, sha256=sha256)
            if content is not None:
                text = unpack(content, name.removeprefix(part), release.base + name, plain)
                return text.decode("latin-1")  # 1 byte of memory for each; the fields that are read are ASCII
    raise Refused(
        f"{release.base}{forms[0]} is named by the Release file but is gone (404)",
        do="try again in a few minutes, or sync the mirror again: it is incomplete",
    )


@dataclass(frozen=True, slots=True)
class _Stanza:
    """One paragraph of a Packages file, parsed at first use: Debian's main has 60,000."""

    text: str

    def package(self, repository: str) -> Package:
        """Parse the paragraph.

        Raises:
            InvalidInput: a required field is missing or invalid; the message names the package.
        """
        with stated_file(
            f"{repository}: the stanza of {shown(_value(self.text, 'Package'))}",
            expected="a stanza of Packages",
        ):
            return self._parsed(repository)

    def _parsed(self, repository: str) -> Package:
        """Parse the paragraph; any error if a required field is missing or invalid."""
        said: dict[str, str] = dict(FIELD.findall(self.text))
        name = short_name(said["Package"])
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
    """Stanzas of Packages files, by name and by the names that they provide.

    Attributes:
        origin: URL of the repository.
        architectures: those of the packages to return, including `all`.
    """

    order: Order = DEB

    def __init__(self, origin: str, texts: Iterable[str], architecture: str) -> None:
        """Split the texts into stanzas; they are parsed at first use.

        Raises:
            InvalidInput: a stanza without a name or a version.
            Refused: more packages, or relations, than an index may have.
        """
        self.origin = origin
        self.architectures = (architecture, "all")
        self._stanzas: dict[str, list[_Stanza]] = {}
        self._provided: dict[str, set[str]] = {}
        count = Count(origin)
        for text in texts:
            count.require(text.count("\n\n"))
            for stanza in text.split("\n\n"):
                self._add(stanza.strip("\n"), count)

    def _add(self, text: str, count: Count) -> None:
        """Add a stanza to the indexes; an empty one is left out.

        Raises:
            InvalidInput: it has no name or no version.
            Refused: it is longer than `STANZA`, or as `Count.add`.
        """
        if not text:
            return
        if len(text) > STANZA:
            raise Refused(f"a stanza in {self.origin} has more than {STANZA} characters: {text[:60]!r}")
        name = _value(text, "Package")
        if not name or not _value(text, "Version"):
            raise InvalidInput(f"a stanza without Package or Version in {self.origin}: {text[:60]!r}")
        self._stanzas.setdefault(name, []).append(_Stanza(text))
        count.add(text.count(",") + text.count("|"))  # of all fields, before they are parsed
        for offer in _value(text, "Provides").split(","):
            self._provided.setdefault(offer.partition("(")[0].strip(), set()).add(name)

    def names(self) -> Iterable[str]:
        """Return every package name."""
        return self._stanzas

    def packages(self, name: str) -> Sequence[Package]:
        """Return all versions of a package for these architectures, possibly empty.

        Raises:
            InvalidInput: a stanza of the package cannot be read.
        """
        parsed = (stanza.package(self.origin) for stanza in self._stanzas.get(name, ()))
        return [package for package in parsed if package.architecture in self.architectures]

    def providers(self, name: str) -> Iterable[str]:
        """Return the names of packages that provide a name in any version, possibly empty."""
        return self._provided.get(name, ())


def _value(text: str, name: str) -> str:
    """Return a one-line field, or an empty text if it is missing.

    No regular expression is used: this runs for every stanza of an archive.
    """
    at = 0 if text.startswith(f"{name}:") else text.find(f"\n{name}:") + 1
    if at == 0 and not text.startswith(f"{name}:"):
        return ""
    end = text.find("\n", at)
    return text[at + len(name) + 1 : end if end >= 0 else None].strip()


def parse_depends(text: str) -> tuple[Alternatives, ...]:
    """Parse a dependency field into groups; each needs one alternative. `foo:any` counts as `foo`; no
    text, no group.
    """
    if not text.strip():
        return ()
    groups = PkgRelation.parse_relations(" ".join(text.split()))
    return tuple(tuple(_relation(parsed) for parsed in group) for group in groups)


def _relation(parsed: PkgRelation.ParsedRelation) -> Relation:
    """Convert a relation; without a stated version, operator and version are empty; ValueError for an unknown
    operator.
    """
    operator, version = parsed["version"] or ("", "")
    if operator and operator not in OPERATORS:
        raise ValueError(f"the operator {operator} of {parsed['name']}")
    return Relation(parsed["name"], OPERATORS.get(operator, ""), version)

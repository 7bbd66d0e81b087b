"""RPM repositories: repomd.xml and its signature, primary.xml, and dnf's module streams.

Layout: createrepo_c(8) and its metadata; module documents: the modulemd v2 specification.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from io import BytesIO
from pathlib import PurePosixPath
from typing import Any
from xml.etree import ElementTree

import yaml

from gpuprov.errors import InvalidInput, Refused
from gpuprov.locking.repository.fetch import Fetcher
from gpuprov.locking.repository.freshness import check_dates
from gpuprov.locking.repository.index import Index, Package, PackageList, Relation
from gpuprov.locking.repository.limits import LOOK, NAME, Count, short_name
from gpuprov.locking.repository.markup import elements, root_of
from gpuprov.locking.repository.release import SHA256
from gpuprov.locking.repository.unpack import UNPACK, unpack
from gpuprov.locking.repository.versions import RPM
from gpuprov.untrusted import shown
from gpuprov.untrusted.openpgp import Keyring, Keys
from gpuprov.untrusted.signature import required_keys, verify_detached
from gpuprov.untrusted.stated import stated_file

REPO = "{http://linux.duke.edu/metadata/repo}"
COMMON = "{http://linux.duke.edu/metadata/common}"
RPM_NS = "{http://linux.duke.edu/metadata/rpm}"
PACKAGE_B = 8 << 20
"""Maximum size in bytes of a package in primary.xml, which needs up to 50 times as much memory: the kernel of
SUSE has about 2 MB.
"""
MODULE_B = 2 << 20
"""Maximum size in bytes of a document in modules.yaml, which needs up to 250 times as much memory."""
INSIDE = re.compile("[A-Za-z0-9_.+~-][A-Za-z0-9_.+~/-]*")
"""Path of a metadata file in a repository; createrepo_c writes `repodata/SHA256-primary.xml.gz`."""
OPERATORS = {"LT": "<<", "LE": "<=", "EQ": "=", "GE": ">=", "GT": ">>"}


def open_rpm(
    url: str,
    arch: str,
    keyring: Keyring | None,
    *,
    fetcher: Fetcher | None = None,
    frozen: date | None = None,
) -> Index:
    """Return the packages of one repository for an architecture and `noarch`, with those of module streams
    marked (see `with_streams`).

    Args:
        url: the repository's root, the folder of `repodata`.
        arch: `x86_64` or `aarch64`.
        keyring: trusted keys for repomd.xml (dnf's `repo_gpgcheck`), or `unsigned`.
        frozen: snapshot date of a mirror that is deliberately not updated.

    Raises:
        InvalidInput: no key is known, or there is no repository.
        Refused: signature, date, sizes or checksums are wrong, or a listed file is missing.
        Unreachable: no answer.
    """
    fetcher = fetcher or Fetcher()
    root = url.rstrip("/")
    described = _repomd(root, required_keys(keyring, root), fetcher, frozen)
    primary = _metadata(root, described, "primary", fetcher)
    if primary is None:
        raise InvalidInput(f"{root}/repodata/repomd.xml names no primary", expected="an rpm repository")
    modules = _metadata(root, described, "modules", fetcher)
    streams = _streams(modules, root) if modules else {}
    return Index(PackageList(RPM, root, list(_packages(primary, root, streams, (arch, "noarch")))))


def with_streams(index: Index, *enabled: str) -> Index:
    """Return the packages that dnf sees with only these module streams enabled (`nvidia-driver:570-dkms`).

    A package of another stream is hidden, and so is every package outside streams that shares its name with
    one of an enabled stream. Source: dnf's documentation, "Modularity", package filtering.

    Raises:
        Refused: no such stream; the message lists the available ones.
    """
    if enabled in index.by_streams:
        return index.by_streams[enabled]
    every = list(index.packages())
    index.budget.spend(sum(LOOK + len(package.streams) for package in every))
    offered = sorted({stream for package in every for stream in package.streams})
    for stream in enabled:
        if stream not in offered:
            where = ", ".join(index.origins)
            raise Refused(f"no module stream {stream} in {where}", expected=f"one of {', '.join(offered)}")
    wanted = frozenset(enabled)
    taken = {package.name for package in every if package.streams & wanted}
    index.by_streams[enabled] = index.only(
        lambda package: bool(package.streams & wanted) or (not package.streams and package.name not in taken)
    )
    return index.by_streams[enabled]


@dataclass(frozen=True)
class _File:
    """A metadata file listed in repomd.xml; `open_size` is its uncompressed size."""

    href: str
    size: int | None
    open_size: int | None
    sha256: str


def _repomd(root: str, keyring: Keys | None, fetcher: Fetcher, frozen: date | None) -> dict[str, _File]:
    """Return the metadata files that a verified repomd.xml lists with a SHA256, by kind (`primary`,
    `modules`).

    Raises:
        InvalidInput: it does not exist, or cannot be read.
        Refused: it is not signed, not by one of the keys, or its date is wrong.
    """
    name = f"{root}/repodata/repomd.xml"
    content = fetcher.get(name)
    if content is None:
        raise InvalidInput(
            f"no repodata/repomd.xml at {root}", expected="an rpm repository", do="check the URL"
        )
    if keyring:
        signature = fetcher.get(name + ".asc")
        if signature is None:
            raise Refused(
                f"{name} is not signed", do="sign the mirror, or declare it trusted without a signature"
            )
        verify_detached(content, signature, keyring, name)
    parsed = root_of(content, name)
    try:
        described = {kind: file for data in parsed.iter(REPO + "data") for kind, file in _file(data)}
    except (KeyError, ValueError) as error:
        raise InvalidInput(f"{name} cannot be read", expected="a repomd of an rpm repository") from error
    check_dates(name, _written(parsed), frozen=frozen)
    return described


def _written(repomd: ElementTree.Element) -> datetime | None:
    """Return the time of the newest metadata file, which dnf takes for a repository's age; None if not
    stated.
    """
    stated = (data.findtext(REPO + "timestamp") for data in repomd.iter(REPO + "data"))
    try:
        return datetime.fromtimestamp(max(float(each) for each in stated if each), UTC)
    except (ValueError, OverflowError, OSError):  # not stated, or not a time
        return None


def _file(data: ElementTree.Element) -> Iterator[tuple[str, _File]]:
    """Yield kind and description of a metadata file; nothing if its location or SHA256 is not stated.

    Raises:
        KeyError, ValueError: an attribute is missing, or the checksum or a size is invalid.
    """
    checksum = data.find(REPO + "checksum")
    location = data.find(REPO + "location")
    if checksum is None or location is None or checksum.get("type") != "sha256":
        return
    sha256 = checksum.text or ""
    if not SHA256.fullmatch(sha256):
        raise ValueError(f"the sum {sha256!r}")
    size, open_size = _bytes(data.findtext(REPO + "size")), _bytes(data.findtext(REPO + "open-size"))
    yield data.attrib["type"], _File(location.attrib["href"], size, open_size, sha256)


def _bytes(text: str | None) -> int | None:
    """Parse a stated size; None: not stated. ValueError if it is below zero, which would be no limit, or
    no number.
    """
    size = int(text) if text else None
    if size is not None and size < 0:
        raise ValueError(f"the size {size}")
    return size


def _metadata(root: str, described: dict[str, _File], kind: str, fetcher: Fetcher) -> bytes | None:
    """Return an uncompressed metadata file; None if repomd.xml lists none of the kind with a SHA256.

    Raises:
        Refused: the file is missing or outside of the repository, or its content is wrong.
    """
    file = described.get(kind)
    if file is None:
        return None
    if not INSIDE.fullmatch(file.href) or ".." in file.href.split("/"):
        raise Refused(
            f"{root}/repodata/repomd.xml names the file {shown(file.href[:NAME])}",
            expected="a path inside of the repository",
            do="do not install from it",
        )
    name = f"{root}/{file.href}"
    content = fetcher.get(name, size=file.size, sha256=file.sha256)
    if content is None:
        raise Refused(
            f"{name} is named by repomd.xml but is gone (404)",
            do="try again in a few minutes, or sync the mirror again: it is incomplete",
        )
    suffix = PurePosixPath(file.href).suffix
    return unpack(content, suffix if suffix in UNPACK else "", name, file.open_size)


def _packages(
    primary: bytes, root: str, streams: Mapping[str, frozenset[str]], architectures: Collection[str]
) -> Iterator[Package]:
    """Yield the packages of these architectures in primary.xml.

    Raises:
        InvalidInput: it is not XML, or one of them cannot be read.
        Refused: a package is larger than `PACKAGE_B`, or as `Count.add`.
    """
    count, content, begin = Count(root), BytesIO(primary), 0
    document = elements(content, f"{root} primary.xml")
    _, whole = next(document)
    for event, element in document:
        if content.tell() - begin > PACKAGE_B:
            raise Refused(f"{root}: a package in primary.xml has more than {PACKAGE_B} bytes")
        if event == "end" and element.tag == COMMON + "package":
            begin = content.tell()
            if element.findtext(COMMON + "arch") in (*architectures, None):
                with stated_file(f"{root}: a package in primary.xml", expected="name, version, and file"):
                    package = _package(element, root, streams)
                count.add(len(package.depends) + len(package.provides))
                yield package
            whole.clear()


def _package(package: ElementTree.Element, root: str, streams: Mapping[str, frozenset[str]]) -> Package:
    """Convert an entry of primary.xml, with its module streams.

    Args:
        streams: `name-epoch:version-release.arch` → module streams.

    Raises:
        Exception: an element is missing or invalid.
    """
    name = short_name(package.findtext(COMMON + "name") or "")
    architecture = package.findtext(COMMON + "arch") or ""
    stated = _child(package, "version")
    details = _child(package, "format")
    source = details.findtext(RPM_NS + "sourcerpm") or ""
    nevra = f"{name}-{stated.get('epoch') or 0}:{stated.get('ver')}-{stated.get('rel')}.{architecture}"
    return Package(
        name=name,
        version=_evr(stated),
        architecture=architecture,
        source=source.rsplit("-", 2)[0] or name,
        depends=tuple((relation,) for relation in _relations(details, "requires")),
        provides=tuple(_relations(details, "provides")),
        filename=_child(package, "location").attrib["href"],
        size=int(_child(package, "size").attrib["package"]),
        sha256=_child(package, "checksum").text or "",
        streams=streams.get(nevra, frozenset()),
        repository=root,
        built=_built(package),
    )


def _built(package: ElementTree.Element) -> str:
    """Return the day on which a package was built, by its record; empty if that states none."""
    time = package.find(COMMON + "time")
    try:
        return (
            datetime.fromtimestamp(int(time.attrib["build"]), UTC).date().isoformat()
            if time is not None
            else ""
        )
    except (KeyError, ValueError, OverflowError, OSError):  # not stated, or not a time
        return ""


def _child(parent: ElementTree.Element, tag: str) -> ElementTree.Element:
    """Return a child element, or raise KeyError."""
    found = parent.find(COMMON + tag)
    if found is None:
        raise KeyError(tag)
    return found


def _evr(entry: ElementTree.Element) -> str:
    """Return `epoch:version-release` as dnf writes it: without an epoch of 0 or an unstated release."""
    epoch, version, release = entry.get("epoch"), entry.get("ver", ""), entry.get("rel")
    return (f"{epoch}:" if epoch and epoch != "0" else "") + version + (f"-{release}" if release else "")


def _relations(details: ElementTree.Element, kind: str) -> Iterator[Relation]:
    """Yield the relations of a package of one kind: `requires` or `provides`; one with an unknown comparison
    has no version.
    """
    for entry in details.iterfind(f"{RPM_NS}{kind}/{RPM_NS}entry"):
        operator = OPERATORS.get(entry.get("flags", ""), "")
        yield Relation(entry.attrib["name"], operator, _evr(entry) if operator else "")


TEXTS: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
"""Reader of YAML whose scalars are texts: numbers that a repository chooses as keys can have one hash."""


def _streams(modules: bytes, root: str) -> dict[str, frozenset[str]]:
    """Return module streams (`name:stream`) by the `name-epoch:version-release.arch` of their packages.

    Raises:
        InvalidInput: modules.yaml cannot be read.
    """
    found: dict[str, set[str]] = {}
    count = Count(root)
    count.require(modules.count(b"\n---"))
    with stated_file(f"{root}: modules.yaml cannot be read", expected="modulemd documents"):
        for text in modules.split(b"\n---"):
            if len(text) > MODULE_B:
                raise Refused(f"{root}: a document in modules.yaml has more than {MODULE_B} bytes")
            document = yaml.load(text, Loader=TEXTS)  # noqa: S506 - it has texts only
            if document and document.get("document") == "modulemd":
                data = document["data"]
                stream = f"{_text(data['name'])[:NAME]}:{_text(data['stream'])[:NAME]}"
                artifacts = data.get("artifacts", {}).get("rpms", [])
                count.add(len(artifacts))
                for nevra in artifacts:
                    found.setdefault(_text(nevra), set()).add(stream)
    return {nevra: frozenset(streams) for nevra, streams in found.items()}


def _text(value: object) -> str:
    """Return a value that is a text; TypeError for a list, whose aliases can have any size as text."""
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value

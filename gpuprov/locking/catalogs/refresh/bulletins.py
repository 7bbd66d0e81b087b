"""Proposed rows of security bulletins, from the vendor's advisories in CSAF 2.0."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuprov.catalog import Catalog, Version, version
from gpuprov.catalog.checking import wrong_branch, wrong_bulletin, wrong_versions
from gpuprov.catalog.loading import read_record
from gpuprov.catalog.records import OF_A_BRANCH, AffectedRange, Bulletin, Exposed
from gpuprov.errors import GpuprovError, InvalidInput
from gpuprov.locking.catalogs.refresh.csaf import LARGEST, Advisory, Product, Vulnerability, read_advisory
from gpuprov.locking.catalogs.refresh.proposal import Document, Proposal
from gpuprov.locking.catalogs.refresh.seen import NotRead, Reading, Readings
from gpuprov.locking.repository.fetch import SCHEMES, Fetcher
from gpuprov.untrusted import shown
from gpuprov.untrusted.stated import open_stated

ORIGIN = "csaf-nvidia"
DOCUMENTS = 5000
"""Maximum number of documents in a folder; the vendor publishes some 100 in a year."""
NAMES: dict[str, Exposed] = {
    "nvidia container toolkit": "container_toolkit",
    "nvidia cuda toolkit": "cuda",
    "cuda toolkit": "cuda",
    "dcgm": "dcgm",
    "nvidia dcgm": "dcgm",
}
"""Product of an advisory, in lower case → component. Drivers are found by their platform, `Linux(R580)`."""
DATA_CENTER = "Tesla"
"""The product whose version of a driver counts, if others of the branch have another one."""
REMARKS = 20
"""Maximum number of remarks about one advisory."""
BYTES = 1 << 30
"""Maximum size of all documents of one run; the vendor's of a year have some 20 MB."""
_BRANCH = re.compile(r"Linux ?\(R([0-9]{3,4})\)")
_PLATFORM = re.compile(r"\bLinux\b|\bAll\b|\A\Z")
_VERSION = re.compile(r"(?P<plain>[0-9]{1,4}(?:\.[0-9]{1,5}){1,3})(?: ?(?:Update |U)(?P<update>[0-9]{1,2}))?")
_BEFORE = re.compile(r"\A(?:[A-Za-z ]{1,40} |v)")


@dataclass(frozen=True, slots=True)
class _Fix:
    """The first fixed version of a component for one CVE."""

    component: Exposed
    branch: int | None
    fixed: Version
    data_center: bool


@dataclass(slots=True)
class _Affected:
    """CVEs with the same first fixed version, and the last versions of their ranges."""

    cves: list[str] = field(default_factory=list)
    ends: set[Version] = field(default_factory=set)


_Ends = defaultdict[tuple[Exposed, int | None], set[Version]]


def read_advisories(places: Iterable[str], day: str) -> Readings:
    """Read advisories: files, folders with files `ID/ID.json` at any depth, or URLs of single files.

    Returns one reading if any was read, and a `NotRead` for each place or file that was not. The first
    document of an id counts. Reading ends once all have more than `BYTES` bytes.

    Args:
        day: of the reading, ISO.
    """
    read: dict[str, Advisory] = {}
    failed: list[NotRead] = []
    left = BYTES
    for place in places:
        for name in _documents(place):
            try:
                content = _content(name)
                left -= len(content)
                if left < 0:
                    failed.append(NotRead(f"advisory {name} and later ones", f"more than {BYTES >> 20} MiB"))
                    break
                advisory = read_advisory(content, name)
                if advisory.id in read:
                    raise InvalidInput(
                        f"{name}: a second document of {advisory.id}", expected="one of each id"
                    )
                read[advisory.id] = advisory
            except GpuprovError as error:
                failed.append(NotRead(f"advisory {name}", str(error)))
    if not read:
        return failed or [NotRead("advisories", f"no file ID/ID.json in {', '.join(places)}")]
    url = "https://github.com/NVIDIA/product-security"
    about = {"title": "NVIDIA/product-security: YEAR/ID/ID.json (CSAF 2.0)", "dated": day, "url": url}
    return [Reading(ORIGIN, about, (), (), advisories=tuple(read.values())), *failed]


def _documents(place: str) -> list[str]:
    """Return the documents of a place: of a folder those that are named as their folder, else the place.

    Other files there are records of single CVEs. Links are left out: the folder is another's, and they could
    lead to any file. At most `DOCUMENTS` are returned, the newest ones.
    """
    if place.partition(":")[0] in SCHEMES or not Path(place).is_dir():
        return [place]
    found = (path for path in Path(place).rglob("*.json") if path.stem == path.parent.name)
    plain = (path for path in found if path.is_file() and not path.is_symlink())
    return [str(path) for path in sorted(plain)[-DOCUMENTS:]]


def _content(name: str) -> bytes:
    """Return the content of a file or URL. Of a larger file the first `LARGEST` + 1 bytes.

    Raises:
        InvalidInput: it does not exist or cannot be read.
        Refused, Unreachable: as for `Fetcher.get`.
    """
    if name.partition(":")[0] in SCHEMES:
        content = Fetcher().get(name, size=LARGEST)
        if content is None:
            raise InvalidInput(f"nothing at {name}", expected="a security advisory in CSAF 2.0")
        return content
    try:
        with open_stated(Path(name)) as file:
            return file.read(LARGEST + 1)
    except OSError as error:
        raise InvalidInput(f"{name} cannot be read: {error.strerror}") from None


def propose_bulletins(proposal: Proposal, catalog: Catalog, reading: Reading) -> None:
    """Propose a record of each new advisory that concerns a component, and the changed fields of another
    revision of a known one.

    A row that cannot be true, by the checks of the catalog, is left out and becomes a remark; an advisory
    that concerns no component is ignored.
    """
    for advisory in reading.advisories:
        record, wrong = _record(advisory, catalog, reading.source)
        proposal.remarks += [f"bulletin {advisory.id}: {text}: to be looked at by hand" for text in wrong]
        if record is None:
            continue
        known = proposal.record("bulletins", "bulletins", advisory.id)
        why = f"revision {advisory.revision} of {advisory.updated}"
        if known is None:
            proposal.add("bulletins", "bulletins", record, why, reading.source)
        elif known.get("revision") != advisory.revision:
            for field, value in record.items():
                if field not in ("id", "source"):
                    proposal.set(("bulletins", "bulletins", advisory.id), (field, value), why, reading.source)


def _record(advisory: Advisory, catalog: Catalog, source: str) -> tuple[Document | None, list[str]]:
    """Return the record of an advisory, and what is wrong in it; None if it concerns no component.

    None also for a record that the catalog would refuse.
    """
    fixes: dict[tuple[Exposed, int | None, Version], _Affected] = {}
    wrong: list[str] = []
    concerned: list[Vulnerability] = []
    for each in advisory.vulnerabilities:
        found = _fixes(each, wrong)
        if not found:
            continue
        concerned.append(each)
        ends = _last_versions(each)
        for fix in found:
            of = fixes.setdefault((fix.component, fix.branch, fix.fixed), _Affected())
            of.cves.append(each.cve)
            of.ends |= ends[fix.component, fix.branch] - {fix.fixed}
    cves = [each.cve for each in concerned]
    rows = []
    for (component, branch, fixed), of in fixes.items():
        last = max(of.ends, default=None)
        row = AffectedRange(component=component, branch=branch, fixed=fixed, last=last)
        if faults := [*wrong_branch(row, catalog), *wrong_versions(row)]:
            wrong += [f"{seen}, expected {expected}" for seen, expected in faults]
        else:
            rows.append(_plain(row, [] if of.cves == cves else of.cves))
    if not rows:
        return None, _first(wrong)
    record: Document = {"id": advisory.id, "title": advisory.title, "published": advisory.published}
    if advisory.updated != advisory.published:
        record["updated"] = advisory.updated
    record |= {"revision": advisory.revision, "score": max(each.score for each in concerned), "cves": cves}
    record |= {"affected": rows, "source": [source]}
    refused = _refused(record, catalog)
    return (None if refused else record), _first([*refused, *wrong])


def _refused(record: Document, catalog: Catalog) -> list[str]:
    """Return the reasons for which the catalog would refuse a record of a bulletin."""
    try:
        bulletin = read_record(Bulletin, record, "")
    except InvalidInput as error:
        return [str(error)]
    return [f"{seen}, expected {expected}" for seen, expected in wrong_bulletin(bulletin, catalog)]


def _first(wrong: Iterable[str]) -> list[str]:
    """Return each text once, at most `REMARKS`, and then the number of the others."""
    listed = list(dict.fromkeys(wrong))
    more = len(listed) - REMARKS
    return [*listed[:REMARKS], *([f"{more} more like these"] if more > 0 else [])]


def _plain(row: AffectedRange, cves: list[str]) -> Document:
    """Return a row as plain data, without fields that have no value."""
    fields: dict[str, Any] = {"component": row.component, "branch": row.branch}
    fields |= {name: str(getattr(row, name)) for name in ("last", "fixed") if getattr(row, name)}
    return {name: value for name, value in {**fields, "cves": cves}.items() if value}


def _fixes(vulnerability: Vulnerability, wrong: list[str]) -> list[_Fix]:
    """Return the highest fixed version of each component and branch for one CVE; a data center driver takes
    precedence.

    Args:
        wrong: texts of versions that cannot be read are added here.
    """
    found: dict[tuple[Exposed, int | None], _Fix] = {}
    for product in vulnerability.fixed:
        of = _component(product)
        if of is None:
            continue
        fixed = _fixed(of[0], product.version)
        if fixed is None:
            wrong.append(f"{vulnerability.cve}: {shown(product.version)} as the fixed version of {of[0]}")
            continue
        fix = _Fix(*of, fixed, product.name == DATA_CENTER)
        other = found.get(of)
        if other is None or (fix.data_center, fix.fixed) > (other.data_center, other.fixed):
            found[of] = fix
    return list(found.values())


def _component(product: Product) -> tuple[Exposed, int | None] | None:
    """Return the component and the driver's branch of a product; None for other products and platforms."""
    if branch := _BRANCH.fullmatch(product.platform):
        return "driver", int(branch[1])
    component = NAMES.get(product.name.lower())
    return (component, None) if component and _PLATFORM.search(product.platform) else None


def _fixed(component: str, text: str) -> Version | None:
    """Return the version in a text such as `v1.17` or `CUDA Toolkit 12.9 Update 1`; None if it has none."""
    match = _VERSION.fullmatch(_BEFORE.sub("", text.strip()))
    return _read(component, match) if match else None


def _read(component: str, match: re.Match[str]) -> Version:
    """Return the version of a match of `_VERSION`; an update of CUDA is the third number, 0 without one."""
    plain = match["plain"]
    if component == "cuda" and (match["update"] or plain.count(".") == 1):
        return version(f"{plain}.{match['update'] or 0}")
    return version(plain)


def _last_versions(vulnerability: Vulnerability) -> _Ends:
    """Return component and branch → the versions up to and including which ranges of a CVE end.

    Ranges that end before the fixed version, `All versions prior to 13.0`, name none.

    Of drivers only the product `DATA_CENTER` counts.
    """
    found: _Ends = defaultdict(set)
    for product in vulnerability.affected:
        of = _component(product)
        if of and (of[0] not in OF_A_BRANCH or product.name == DATA_CENTER):
            found[of].update(_ends(of[0], product.version))
    return found


def _ends(component: str, text: str) -> Iterator[Version]:
    """Yield the last version of a range that includes it: `All versions up to and including 1.17.3`."""
    if re.search(r"\bprior to\b(?! and including)|<(?!=)", text):
        return
    found = list(_VERSION.finditer(text))
    if found:
        yield _read(component, found[-1])

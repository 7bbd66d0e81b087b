"""Reader of security advisories in the Common Security Advisory Framework, CSAF 2.0 (OASIS).

The vendor's documents deviate in one place: a leaf of their product tree has the product as its `name` and
the version as the name of its `product`, below a platform such as `Linux(R580)`. Both forms are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from gpuprov.catalog.checking import CVE, HIGHEST_SCORE
from gpuprov.errors import InvalidInput
from gpuprov.untrusted import on_one_line
from gpuprov.untrusted.parsing import read_json

LARGEST = 16_000_000
"""Maximum size of a document in bytes; one about a driver with 3 CVEs has 100 KB, with 114 CVEs some MB."""
VALUES = 1 << 19
"""Maximum number of values of a document: a list of products for each CVE."""
TITLE = 120
"""Maximum number of characters of a title."""
NAME = 200
"""Number of characters of a platform, a product or a version that are read; the vendor's have up to 80.

A name is compared for each reference to it.
"""
_ID = re.compile(r"[0-9]{3,6}")
_TIME = re.compile(r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})(?:T[0-9:.]{5,15}(?:Z|[+-][0-9:]{5}))?")
_REVISION = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4}){0,2}")
_LEAVES = ("product_version", "product_version_range")


@dataclass(frozen=True, slots=True)
class Product:
    """One version or range of a product on a platform, as the text of the document states it."""

    platform: str
    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Vulnerability:
    """One CVE of an advisory.

    Attributes:
        score: CVSS base score; 0 without one.
    """

    cve: str
    score: float
    affected: tuple[Product, ...]
    fixed: tuple[Product, ...]


@dataclass(frozen=True, slots=True)
class Advisory:
    """One security bulletin; days in ISO format."""

    id: str
    title: str
    published: str
    updated: str
    revision: str
    vulnerabilities: tuple[Vulnerability, ...]


def read_advisory(content: bytes, name: str) -> Advisory:
    """Parse one document.

    Args:
        name: its path or URL, for messages.

    Raises:
        InvalidInput: it exceeds a limit, or is no advisory of CSAF 2.0.
    """
    try:
        return _advisory(read_json(content, LARGEST, VALUES))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        said = on_one_line(str(error))[:TITLE]
        raise InvalidInput(f"{name}: {said}", expected="a security advisory in CSAF 2.0") from None


def _advisory(said: Any) -> Advisory:
    """Return an advisory.

    Raises:
        Exception: the document has another form: any error of reading it.
    """
    document, tracking = said["document"], said["document"]["tracking"]
    if document["csaf_version"] != "2.0":
        raise ValueError(f"csaf_version {document['csaf_version']!r}, not 2.0")
    products = dict(_products(_list(said["product_tree"], "branches"), {}))
    listed = _list(said, "vulnerabilities")
    return Advisory(
        id=_matched(_ID, tracking["id"], "tracking.id"),
        title=on_one_line(str(document["title"]).removeprefix("Security Bulletin:").strip())[:TITLE],
        published=_day(tracking["initial_release_date"], "tracking.initial_release_date"),
        updated=_day(tracking["current_release_date"], "tracking.current_release_date"),
        revision=_matched(_REVISION, tracking["version"], "tracking.version"),
        vulnerabilities=tuple(_vulnerability(each, products) for each in listed if "cve" in each),
    )


def _matched(pattern: re.Pattern[str], text: Any, place: str) -> str:
    """Return a text that a pattern matches; ValueError if it does not match."""
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise ValueError(f"{place} is {text!r}"[:TITLE])
    return text


def _day(text: Any, place: str) -> str:
    """Return the day of a time in ISO format; ValueError for another text, also a day that no month has."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{place} is {text!r}"[:TITLE])
    return date.fromisoformat(match["day"]).isoformat()


def _products(branches: Any, above: Mapping[str, str]) -> Iterator[tuple[str, Product]]:
    """Yield id and `Product` of each version in a product tree; raise KeyError for a branch without a name.

    Args:
        above: category → name of the branches that contain these.
    """
    for branch in branches:
        category, name = str(branch["category"]), str(branch["name"])
        if "product" in branch and category in _LEAVES:
            product = branch["product"]
            versions = name if "product_name" in above else str(product["name"])
            title = above.get("product_name", name)
            parts = (each[:NAME] for each in (above.get("architecture", ""), title, versions))
            yield str(product["product_id"]), Product(*parts)
        yield from _products(_list(branch, "branches"), {**above, category: name})


def _list(said: Mapping[str, Any], key: str) -> list[Any]:
    """Return a list of a document, empty if missing; TypeError for a text, each of whose characters would
    count as a value.
    """
    found = said.get(key, [])
    if not isinstance(found, list):
        raise TypeError(f"{key} is not a list")
    return found


def _vulnerability(said: Mapping[str, Any], products: Mapping[str, Product]) -> Vulnerability:
    """Return one vulnerability with its highest score, 0 without any; ids of products that are not in the
    tree are left out.

    Raises:
        Exception: it has another form: any error of reading it.
    """
    status = said.get("product_status", {})

    def listed(*keys: str) -> tuple[Product, ...]:
        ids = dict.fromkeys(each for key in keys for each in _list(status, key))
        return tuple(products[each] for each in ids if each in products)

    return Vulnerability(
        cve=_matched(CVE, said["cve"], "vulnerabilities.cve"),
        score=max((_score(each) for each in _list(said, "scores")), default=0.0),
        affected=listed("known_affected", "last_affected"),
        fixed=listed("fixed", "first_fixed"),
    )


def _score(said: Mapping[str, Any]) -> float:
    """Return the base score of CVSS 3 or 4 in an entry of `scores`; 0 without one that is a score."""
    rated = said.get("cvss_v4") or said.get("cvss_v3") or {}
    score = rated.get("baseScore")
    if isinstance(score, bool) or not isinstance(score, int | float):
        return 0.0
    return float(score) if 0 < score <= HIGHEST_SCORE else 0.0

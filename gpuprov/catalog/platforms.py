"""The table of platforms: how each system works, for everything that treats systems differently.

It is the section `platforms` of systems.json in gpuprov's own release of the catalog, also if a newer release
or a site's folder is used: a row names adapters of this gpuprov.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache, lru_cache
from typing import Any

from gpuprov.catalog.reading import BadField, read
from gpuprov.catalog.records import Platform
from gpuprov.catalog.releases import OWN
from gpuprov.errors import InvalidInput
from gpuprov.untrusted.stated import read_stated_json

TABLE = OWN / "systems.json"
SECTION = "platforms"
NAME = re.compile(r"([a-z]{1,20}(?:-[a-z]{1,20})?)([0-9]{0,6}(?:\.[0-9]{1,6}){0,2})")
"""Name of a system and its release; both may come from a node."""
HEADERS = (
    (re.compile(r"(?P<release>.+)\+(?P<kind>[a-z0-9-]+)"), "kernel-{kind}-devel-{release}"),
    (re.compile(r"(?P<release>.+uek\..+)"), "kernel-uek-devel-{release}"),
    (
        re.compile(r"(?P<release>(?!6\.1\.)(?P<series>\d+\.\d+)\..+\.amzn.+)"),
        "kernel{series}-devel-{release}",
    ),
    (re.compile(r"(?P<release>.*)"), "kernel-devel-{release}"),
)
"""Release of a kernel of rpm → the package with its headers; as in plugins/module_utils/gpuprov_dnf.py."""
OWN_FIELDS = ("tested", "source", "note")
"""Fields that a row does not take from the one that it is `of`."""


@lru_cache(maxsize=128)
def platform(system: str) -> Platform:
    """Return how a system works, by its id in the catalog and in locks, or by its os-release.

    `rhel9` and `rocky9.6` are the same. A release without a row works as its system does.

    Raises:
        InvalidInput: the table has no row for it.
    """
    rows, row = _rows(), None
    if words := NAME.fullmatch(system):
        name, release = system_of(words[1]), words[2]
        row = rows.get(name + release) or rows.get(name + release.partition(".")[0]) or rows.get(name)
    if row is None:
        raise InvalidInput(
            f"no platform is known for the system {system[:40]!r}",
            expected=f"a release of {', '.join(name for name, each in rows.items() if 'identities' in each)}",
            do="set `os` in fleet.yml to one that `gpuprov catalog os` lists",
        )
    return _whole(row)


@cache
def platforms() -> tuple[Platform, ...]:
    """Return all rows of the table with the values that they inherit, in its order.

    Raises:
        InvalidInput: a row is not valid.
    """
    return tuple(map(_whole, _rows().values()))


def tested() -> list[str]:
    """Return the ids of the systems on which node tests have shown all roles, in the table's order."""
    return [row.id for row in platforms() if row.tested]


def beside(system: str, arch: str) -> list[dict[str, str]]:
    """Return the packages that a driver of DKMS needs from repositories that are not enabled at first.

    Each has `package`, `repository`, `needs` (what this repository depends on) and `enable` (commands).

    Args:
        system: the catalog's name, `rhel9`; raises as `platform` if it is unknown.
        arch: of the machine, `x86_64` or `aarch64`.
    """
    words = {"release": re.sub(r"\A[a-z]+|\..*", "", system), "arch": arch}
    return [{**asdict(each), "needs": each.needs.format_map(words)} for each in platform(system).beside]


def headers_package(row: Platform, kernel: str) -> str:
    """Return the name of the package with a kernel's headers, by the kernel's release.

    `kernel-devel-5.14.0-570.el9.x86_64`, on Amazon Linux `kernel6.12-devel-6.12.53-69.119.amzn2023.x86_64`.
    """
    if row.manager != "dnf":
        return f"{row.headers_prefix}{kernel}"
    found = ((pattern.fullmatch(kernel), form) for pattern, form in HEADERS)
    return next(form.format(**each.groupdict()) for each, form in found if each)


@cache
def origins() -> frozenset[str]:
    """Return the Origins that the Release files of distributions' own archives have."""
    return frozenset(row.origin for row in platforms() if row.origin)


@cache
def rebuilds() -> Mapping[str, str]:
    """Return ID in os-release → the catalog's name of a system with the same packages, if they differ."""
    return {
        identity: row.id
        for row in platforms()
        if not row.id[-1].isdecimal()
        for identity in row.identities
        if identity != row.id
    }


def system_of(identity: str) -> str:
    """Return the catalog's name of a system without its release, by ID of os-release: `rhel` of `rocky`.

    An unknown ID is returned unchanged.
    """
    return rebuilds().get(identity, identity)


@cache
def _rows() -> Mapping[str, Mapping[str, Any]]:
    """Return the rows of the table by id, as they are written."""
    document = read_stated_json(TABLE, expected="a JSON document")
    return {str(row["id"]): row for row in document[SECTION]}


def _whole(row: Mapping[str, Any]) -> Platform:
    """Return a row with the values of those that it is `of`.

    Raises:
        InvalidInput: it is not valid; names the row and the field.
    """
    merged: dict[str, Any] = {}
    for each in reversed([*_line(row)]):
        merged = {**{name: value for name, value in merged.items() if name not in OWN_FIELDS}, **each}
    try:
        return read(Platform, merged)
    except BadField as bad:
        place = f"{TABLE.name}: {SECTION}[{row['id']}].{bad.path}"
        raise InvalidInput(f"{place}: {bad.seen}", expected=bad.expected) from None


def _line(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a row, the one that its `of` names, and so on."""
    yield row
    if "of" in row:
        yield from _line(_rows()[row["of"]])

"""Parsers of systems, architectures and versions as users write them."""

from __future__ import annotations

import re
from difflib import get_close_matches

from gpuprov.catalog.catalog import Catalog
from gpuprov.catalog.records import System
from gpuprov.errors import InvalidInput
from gpuprov.untrusted import shown


def find_system(catalog: Catalog, name: str) -> System | None:
    """Return the system with that name (`Ubuntu 22.04`, `rocky9.4`, `bookworm`).

    None: the name is understood, but no repository of the catalog has that release.

    Raises:
        InvalidInput: no system has that name; lists similar ones.
    """
    squeezed, word, number = _words(name)
    if squeezed in catalog.systems:
        return catalog.systems[squeezed]
    for family in catalog.tables["systems.families"]:
        if word in family.names:
            prefix = family.prefix or family.names[0]
            if not number and family.bare:
                return catalog.systems[family.bare]
            if number:
                wanted = prefix + _release(number, family.version)
                return catalog.systems.get(family.same.get(wanted, wanted))
        if word in family.codenames and not number:
            return catalog.systems.get(f"{family.names[0]}{family.codenames[word]}")
    if word in catalog.facts["systems"]["unserved"]:
        return None
    near = get_close_matches(squeezed[:80], catalog.systems, n=5, cutoff=0.5) or list(catalog.systems)
    raise InvalidInput(
        f"operating system {shown(name)} is not known",
        expected=f"one of {', '.join(near)}",
        do="`gpuprov catalog os` lists them",
    )


def kin(catalog: Catalog, name: str) -> list[System]:
    """Return the systems of the catalog that can replace one that no repository serves, nearest first.

    They are of the same family, or of the one from which it is derived (`linuxmint22`, then in the catalog's
    order). A system without a family has none.
    """
    _, word, number = _words(name)
    derived = catalog.facts["systems"]["unserved"]  # in older releases of the catalog a list of names
    own = next(
        (
            each.family
            for each in catalog.tables["systems.families"]
            if word in each.names or word in each.codenames
        ),
        None,
    )
    family = own or (derived.get(word) if isinstance(derived, dict) else None)
    found = [each for each in catalog.systems.values() if each.family == family]
    return (
        sorted(found, key=lambda each: abs(_number(each.id) - _number(number))) if own and number else found
    )


def _words(name: str) -> tuple[str, str, str]:
    """Return a name without spaces and signs, its letters and its release: `almalinux9.4`, `alma`, `9.4`."""
    squeezed = re.sub(r"[\s_/-]+", "", name.lower()).removesuffix("linux")
    match = re.fullmatch(r"([a-z]+?)(?:v|leap|linux|stream|lts)?([0-9][\w.]*)?", squeezed)
    return (squeezed, match[1], match[2] or "") if match else (squeezed, squeezed, "")


def _number(name: str) -> float:
    """Return the release in a name as a number, 22.04 of `ubuntu22.04` and of `22.04.3`; 0 without one."""
    found = re.search(r"[0-9]{1,6}(?:\.[0-9]{1,6})?", name)
    return float(found[0]) if found else 0.0


def _release(number: str, scheme: str) -> str:
    """Return the release in the family's scheme: 22.04 of `22.04.3` and `2204`; 9 of `9.4`; 15 of `15sp6`."""
    digits = re.match(r"[0-9]+(?:\.[0-9]+)*", number)
    parts = digits[0].split(".") if digits else [number]
    if scheme == "major":
        return parts[0]
    return f"{parts[0][:2]}.{parts[0][2:]}" if len(parts) == 1 and len(parts[0]) == 4 else ".".join(parts[:2])


def find_arch(name: str) -> str:
    """Return `x86_64` or `aarch64`; the name of another architecture unchanged.

    Raises:
        InvalidInput: not the name of an architecture.
    """
    spelled = name.lower().replace("-", "_")
    known = {"x86_64": "x86_64", "amd64": "x86_64", "x64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
    known |= {"sbsa": "aarch64", "arm64_sbsa": "aarch64"}
    others = {"ppc64le", "ppc64el", "s390x", "riscv64", "i386", "i686", "armv7l", "armhf"}
    if spelled in known:
        return known[spelled]
    if spelled in others:
        return spelled
    raise InvalidInput(f"architecture {name!r} is not known", expected="x86_64 or aarch64 (arm64, sbsa)")


def driver_text(text: str) -> str:
    """Strip `R`, an epoch and a package revision from a driver's version: `580.95.05-0ubuntu1` → `580.95.05`.

    Raises:
        InvalidInput: neither a branch nor a version.
    """
    return _upstream("driver", re.sub(r"^r(?=\d)", "", text.strip().lower()))


def library_text(what: str, text: str) -> str:
    """Strip `v`, an epoch and a package revision from a version: `1.17.8-1` → `1.17.8`.

    Raises:
        InvalidInput: not a version.
    """
    return _upstream(what, text.strip().lower().removeprefix("v"))


def _upstream(what: str, text: str) -> str:
    """Return the numbers of a version without epoch and revision; InvalidInput, which names `what`, if it
    has none.
    """
    match = re.fullmatch(r"(?:[0-9]+:)?([0-9]{1,5}(?:\.[0-9]{1,5}){0,7})(?:[-~+].*)?", text)
    if not match:
        seen = text if len(text) <= 40 else text[:37] + "..."
        raise InvalidInput(
            f"{what} {seen!r} is not a version", expected="digits and dots, as 580 or 580.95.05"
        )
    return match[1]

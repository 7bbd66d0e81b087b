"""Forms of the texts of a lock that become arguments of programs, parts of files, or expressions.

Verbs that change nothing send them to nodes, where root's programs get them: a person may run these verbs
with the lock of another repository.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated

from pydantic import AfterValidator

from gpuprov.errors import NodeFailed
from gpuprov.untrusted import package_name, shown, version

LONGEST = 200
"""Maximum length of a text in characters, as in the catalog."""
MOST_STARS = 2
"""Maximum number of `.*` in an expression: a node's time for it grows with a name's length to this power."""
ALTERNATIVES = 40
"""Maximum number of alternatives of an expression (our choice: a driver's has 20)."""

_PATTERN = re.compile(rf"(?:[A-Za-z0-9_-]|\\[.+]|\.\*){{1,{LONGEST}}}")
_FAMILY = re.compile(r"(?:\(\?!\(\?:(?P<without>[^()]+)\)\$\))?\(\?:(?P<names>[^()]+)\)")


def package(text: str) -> str:
    """Return the name of a package unchanged.

    Raises:
        ValueError: it is none, or apt would read it as `NAME-`, an order to remove a package.
    """
    if text.endswith("-"):
        raise ValueError(f"the name of a package without a hyphen at its end, not {shown(text)}")
    return _gated(package_name, text)


def full_version(text: str) -> str:
    """Return the version of a package unchanged; raise ValueError if it is none."""
    return _gated(version, text)


def _gated(gate: Callable[[object], str], text: str) -> str:
    """Return a text that a gate for names of nodes accepts; raise ValueError with what is expected."""
    try:
        return gate(text)
    except NodeFailed as error:
        raise ValueError(f"{error.expected}, not {shown(text)}") from None


def hold_pattern(text: str) -> str:
    r"""Return an expression for the start of names of packages unchanged: `libnvidia-.*$`, `g\+\+$`.

    Raises:
        ValueError: it is not one that `gpuprov lock` derives from a shell pattern.
    """
    if not _is_pattern(text.removesuffix("$")):
        raise ValueError(f"an expression such as libnvidia-.*$, not {shown(text)}")
    return text


def family(text: str) -> str:
    """Return an expression for the names of a component's packages unchanged: `(?!(?:a|b)$)(?:c.*|d)`.

    Raises:
        ValueError: it is not one that `gpuprov lock` derives from shell patterns.
    """
    found = _FAMILY.fullmatch(text)
    parts = "|".join(filter(None, found.groups())).split("|") if found else []
    if not 0 < len(parts) <= ALTERNATIVES or not all(map(_is_pattern, parts)):
        raise ValueError(f"an expression such as (?:docker.*|runc), not {shown(text)}")
    return text


def _is_pattern(text: str) -> bool:
    """Return whether a text is a shell pattern as an expression, with a bounded length and time."""
    return _PATTERN.fullmatch(text) is not None and text.count(".*") <= MOST_STARS


def of_family(expression: str) -> Callable[[str], bool]:
    """Return a function that tells whether a name is one of a family, in time of the name's length.

    `re` needs the product of the lengths of name and expression, chosen by a node and the author of a lock.

    Args:
        expression: as `family` returns it; ValueError for another one.
    """
    found = _FAMILY.fullmatch(family(expression))
    kept, left_out = (_literals(found[group] if found else None) for group in ("names", "without"))
    return lambda name: (
        any(_fits(name, each) for each in kept) and not any(_fits(name, each) for each in left_out)
    )


def _literals(alternatives: str | None) -> list[list[str]]:
    """Return the texts between the stars of each alternative; one text is a whole name."""
    return [re.sub(r"\\(.)", r"\1", each).split(".*") for each in (alternatives or "").split("|") if each]


def _fits(name: str, literals: Sequence[str]) -> bool:
    """Return whether a name has these texts in this order, the first at its begin, the last at its end."""
    first, *between = literals
    if not between:
        return name == first
    if not name.startswith(first):
        return False
    at = len(first)
    for text in between[:-1]:
        begin = name.find(text, at)
        if begin < 0:
            return False
        at = begin + len(text)
    return len(between[-1]) <= len(name) - at and name.endswith(between[-1])


def armored_key(text: str) -> str:
    """Return an armored key unchanged; raise ValueError for other text."""
    if not re.fullmatch(r"(?:[ -~]*\n)*[ -~]*", text) or not text.startswith("-----BEGIN PGP"):
        raise ValueError("an armored key in ASCII that begins with -----BEGIN PGP PUBLIC KEY BLOCK-----")
    return text


def _form(pattern: str, example: str, longest: int = LONGEST, *, secret: bool = False) -> AfterValidator:
    """Return a validator of texts that match a pattern as a whole; its message does not show a secret one."""
    compiled = re.compile(pattern, re.ASCII)

    def check(text: str) -> str:
        if len(text) > longest or not compiled.fullmatch(text):
            raise ValueError(f"a text such as {example}" + ("" if secret else f", not {shown(text)}"))
        return text

    return AfterValidator(check)


PackageName = Annotated[str, AfterValidator(package)]
"""Name of a package."""
PackageVersion = Annotated[str, AfterValidator(full_version)]
"""Full or upstream version of a package."""
HoldPattern = Annotated[str, AfterValidator(hold_pattern)]
"""Expression for the start of names."""
Family = Annotated[str, AfterValidator(family)]
"""Expression for whole names."""
Word = Annotated[str, _form(r"[A-Za-z0-9][A-Za-z0-9._+-]*", "ubuntu24.04")]
"""Id of a repository, a system, an architecture or a component."""
Release = Annotated[str, _form(r"[0-9]+(\.[0-9]+)*", "12.8")]
"""Name of an installation of CUDA, part of a path."""
Stream = Annotated[str, _form(r"[A-Za-z0-9][A-Za-z0-9._+-]*:[A-Za-z0-9._+-]+", "nvidia-driver:580-open")]
"""Module stream of dnf."""
PartOfRepository = Annotated[str, _form(r"[A-Za-z0-9./][A-Za-z0-9._/+~-]*", "bookworm-updates")]
"""Suite or component of a repository."""
_URL = r"[a-z][a-z0-9+]*:[A-Za-z0-9._~:/?#\[\]@!&()*+,;=%FIELDS-]+"
_EXAMPLE = "https://mirror.example.org/cuda/"
RepositoryUrl = Annotated[str, _form(_URL.replace("FIELDS", ""), _EXAMPLE, 2048, secret=True)]
"""Address of a repository, which may have a password."""
MirrorUrl = Annotated[str, _form(_URL.replace("FIELDS", "{}"), _EXAMPLE, 1024, secret=True)]
"""Address of a repository with fields such as `{folder}`, which may have a password."""
_SERVICE = r"(?!local:)(?:[a-z]+://)?(?:\[[0-9a-fA-F:]+\]|[A-Za-z0-9_.-]+):[0-9]{1,5}"
Workers = Annotated[
    str, _form(rf"none|local(?::[1-9][0-9]{{0,2}})?|{_SERVICE}(?:,{_SERVICE}){{0,63}}", "tls://gw:8790", 4096)
]
"""Workers as `--workers` names them: those of this machine, or the addresses of at most 64 services."""
PciId = Annotated[str, _form(r"[0-9a-f]{4}:[0-9a-f]{4}", "10de:2335")]
"""Vendor and device of a PCI function."""
Key = Annotated[str, AfterValidator(armored_key)]
"""Armored key of a repository."""

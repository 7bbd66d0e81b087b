"""Forms of the texts of a lock that become arguments of programs, parts of files, or expressions.

Verbs that change nothing send them to nodes, where root's programs get them: a person may run these verbs
with the lock of another repository.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator

from gpuprov.errors import NodeFailed
from gpuprov.untrusted import package_name, shown, version

LONGEST = 200
"""Maximum length of a text in characters, as in the catalog."""
MOST_STARS = 2
"""Maximum number of `.*` in an expression: the time to match it grows with a name's length to this power."""
ALTERNATIVES = 64
"""Maximum number of alternatives of an expression (our choice: a driver's has 20)."""

_STEP = r"(?:[A-Za-z0-9_-]|\\[.+]|\.\*?)"
_PATTERN = re.compile(rf"{_STEP}{{1,{LONGEST}}}")
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


def armored_key(text: str) -> str:
    """Return an armored key unchanged; raise ValueError for other text."""
    if not re.fullmatch(r"(?:[ -~]*\n)*[ -~]*", text) or not text.startswith("-----BEGIN PGP"):
        raise ValueError("an armored key in ASCII that begins with -----BEGIN PGP PUBLIC KEY BLOCK-----")
    return text


def _form(pattern: str, example: str, longest: int = LONGEST) -> AfterValidator:
    """Return a validator of texts that match a pattern as a whole."""
    compiled = re.compile(pattern, re.ASCII)

    def check(text: str) -> str:
        if len(text) > longest or not compiled.fullmatch(text):
            raise ValueError(f"a text such as {example}, not {shown(text)}")
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
RepositoryUrl = Annotated[str, _form(_URL.replace("FIELDS", ""), _EXAMPLE, 2048)]
"""Address of a repository."""
MirrorUrl = Annotated[str, _form(_URL.replace("FIELDS", "{}"), _EXAMPLE, 1024)]
"""Address of a repository with fields such as `{folder}`."""
PciId = Annotated[str, _form(r"[0-9a-f]{4}:[0-9a-f]{4}", "10de:2335")]
"""Vendor and device of a PCI function."""
Key = Annotated[str, AfterValidator(armored_key)]
"""Armored key of a repository."""

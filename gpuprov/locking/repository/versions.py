"""Version orders of the two packaging systems, and the upstream part of a version."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any

from debian.debian_support import NativeVersion

from gpuprov.errors import InvalidInput
from gpuprov.untrusted import shown

LONGEST = 128
"""Maximum length of a version in characters, as in a lock; the time of a comparison grows with it."""
RPM_SEGMENT = re.compile(r"[0-9]+|[a-zA-Z]+|~|\^")


@dataclass(frozen=True)
class Order:
    """The version order of one packaging system.

    Attributes:
        name: `deb` or `rpm`.
        compare: below zero if the first is older, above zero if it is newer.
        upstream: the upstream part of a full version: `580.95.05` of `1:580.95.05-0ubuntu1`.
        bare_provides_any: a Provides without a version satisfies every versioned dependency.
    """

    name: str
    compare: Callable[[str, str], int]
    upstream: Callable[[str], str]
    bare_provides_any: bool

    def key(self, version: str) -> Any:
        """Return a sort key: oldest first; raises as `check`."""
        return cmp_to_key(self.compare)(self.check(version))

    def satisfies(self, version: str, operator: str, wanted: str) -> bool:
        """Return whether `version operator wanted` is true; Debian's operators: `<<` `<=` `=` `>=` `>>`;
        raises as `check`.
        """
        sign = self.compare(self.check(version), self.check(wanted))
        return {"<<": sign < 0, "<=": sign <= 0, "=": sign == 0, ">=": sign >= 0, ">>": sign > 0}[operator]

    def check(self, version: str) -> str:
        """Return a version unchanged.

        Raises:
            InvalidInput: it is too long, or no version.
        """
        try:
            self.upstream(version[: LONGEST + 1])
        except ValueError as error:
            raise InvalidInput(f"the version {shown(version)} in a repository: {error}") from None
        if len(version) > LONGEST or version.endswith("-"):  # dpkg refuses an empty revision
            expected = f"at most {LONGEST} characters, without `-` at the end"
            raise InvalidInput(f"the version {shown(version)} in a repository", expected=expected)
        return version


def matches_upstream(upstream: str, wanted: str) -> bool:
    """Return whether an upstream version is the wanted one, or continues it with a separator.

    A separator is a character that is neither a letter nor a digit.

    `535.309.01` is matched by `535` and `535.309`, not by `53` or `535.3`.
    """
    rest = upstream.removeprefix(wanted)
    return upstream == wanted or (rest != upstream and not rest[0].isalnum())


def _compare_deb(left: str, right: str) -> int:
    """Compare two full Debian versions; the result is below zero if the first is older. ValueError if one is
    not a version.
    """
    return NativeVersion(left)._compare(NativeVersion(right))


def _upstream_deb(version: str) -> str:
    """Return the upstream part of a full version, without epoch and Debian revision; ValueError if it is not
    a version.
    """
    return NativeVersion(version).upstream_version or version


def _split_rpm(version: str) -> tuple[int, str, str]:
    """Split `[epoch:]version[-release]` into epoch, version and release; unstated parts are 0 and empty.

    ValueError for an epoch that is not a number.
    """
    epoch, colon, rest = version.rpartition(":")
    number, _, release = rest.partition("-")
    return int(epoch) if colon else 0, number, release


def _compare_rpm(left: str, right: str) -> int:
    """Compare two `[epoch:]version[-release]`: -1, 0 or 1. A missing release equals any, as in Requires."""
    (left_epoch, left_version, left_release) = _split_rpm(left)
    (right_epoch, right_version, right_release) = _split_rpm(right)
    if left_epoch != right_epoch:
        return -1 if left_epoch < right_epoch else 1
    sign = rpmvercmp(left_version, right_version)
    if sign or not left_release or not right_release:
        return sign
    return rpmvercmp(left_release, right_release)


def rpmvercmp(left: str, right: str) -> int:
    """Compare two version or release strings by rpm's rules: -1 if the first is older, 0 if equal, 1 if
    newer.

    Source: rpm-version(7) of rpm.org and `rpmio/rpmvercmp.c`: segments of digits or letters, other characters
    only separate; digits sort after letters; `~` sorts before everything, even the end; `^` after the end,
    before anything else.
    """
    left_parts, right_parts = RPM_SEGMENT.findall(left), RPM_SEGMENT.findall(right)
    for index in range(max(len(left_parts), len(right_parts))):
        one = _rpm_rank(left_parts, index)
        two = _rpm_rank(right_parts, index)
        if one != two:
            return -1 if one < two else 1
    return 0


def _rpm_rank(segments: list[str], index: int) -> tuple[int, int, str]:
    """Return a segment's sort key in rpm's order: `~` < end < `^` < letters < digits."""
    if index >= len(segments):
        return (1, 0, "")
    segment = segments[index]
    if segment in "~^":
        return (0, 0, "") if segment == "~" else (2, 0, "")
    return (4, int(segment), "") if segment.isdecimal() else (3, 0, segment)


def _upstream_rpm(version: str) -> str:
    """Return the version without epoch and release."""
    return _split_rpm(version)[1]


DEB = Order("deb", _compare_deb, _upstream_deb, bare_provides_any=False)
RPM = Order("rpm", _compare_rpm, _upstream_rpm, bare_provides_any=True)

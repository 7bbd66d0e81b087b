"""Release file of an apt repository: signature, suite, date, and the listed files.

Fields: Debian's wiki page RepositoryFormat; their meaning for apt: apt-secure(8).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime

from debian.deb822 import Release as ReleaseFile

from gpuprov.errors import InvalidInput, Refused
from gpuprov.locking.repository.fetch import Fetcher
from gpuprov.locking.repository.freshness import check_dates
from gpuprov.untrusted.openpgp import Keyring, Keys
from gpuprov.untrusted.signature import required_keys, verify_detached, verify_inline

SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Release:
    """Verified statements of one suite.

    Attributes:
        base: URL of the folder of its files.
        by_hash: whether files are also available by their checksums (Acquire-By-Hash).
        components, architectures: as in the file.
        files: size in bytes and SHA256 of each listed file.
    """

    base: str
    by_hash: bool
    components: str
    architectures: str
    files: dict[str, tuple[int, str]]


def read_release(
    root: str,
    suite: str,
    keyring: Keyring | None,
    fetcher: Fetcher,
    *,
    now: datetime | None = None,
    frozen: date | None = None,
) -> Release:
    """Return the verified Release file of a suite: InRelease, or Release with Release.gpg.

    Args:
        root: the repository's URL, with a slash at its end.
        suite: ending in `/` for a flat repository.
        now, frozen: as for `freshness.check_dates`.

    Raises:
        InvalidInput: no key is known, the suite does not exist, or its file is not a Release file.
        Refused: the signature is wrong, the file is of another suite, or its dates are wrong.
        Unreachable: no answer.
    """
    base = root + suite.lstrip("/") if suite.endswith("/") else f"{root}dists/{suite}/"
    text = _verified(base, suite, required_keys(keyring, root), fetcher)
    fields = ReleaseFile(text.decode("utf-8", errors="replace"))
    if "SHA256" not in fields:
        raise InvalidInput(f"{base} has no Release file with SHA256 sums", expected="an apt repository")
    _check_suite(fields, suite, base)
    written, until = (_moment(fields.get(name), name, base) for name in ("Date", "Valid-Until"))
    files = _files(fields, base)
    check_dates(base, written, until, now=now, frozen=frozen)
    return Release(
        base,
        by_hash=fields.get("Acquire-By-Hash") == "yes",
        components=fields.get("Components", "/"),
        architectures=fields.get("Architectures", "its own"),
        files=files,
    )


def _verified(base: str, suite: str, keyring: Keys | None, fetcher: Fetcher) -> bytes:
    """Return the text of InRelease, or of Release with the signature Release.gpg; without keys it is not
    verified.

    Raises:
        InvalidInput: the suite does not exist.
        Refused: it is not signed, or not by one of the keys.
    """
    text = fetcher.get(base + "InRelease")
    if text is not None:
        return verify_inline(text, keyring, base + "InRelease") if keyring else text
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
                f"{base}Release is not signed",
                do="sign the mirror, or declare it trusted without a signature",
            )
        verify_detached(text, signature, keyring, base + "Release")
    return text


def _check_suite(fields: ReleaseFile, suite: str, base: str) -> None:
    """Check that the Release file is of the requested suite.

    The rule for the name is apt's (`metaIndex::CheckDist` in its metaindex.cc), where a mismatch is a
    warning: the Codename or the Suite, in full or up to the last slash. A flat repository (`/`) is requested
    without a name, and need not state one: NVIDIA's state only an Origin and a Label.

    Raises:
        Refused: it is of another suite, also with a valid signature.
    """
    asked = {suite, suite.rpartition("/")[0]} if "/" in suite else {suite}
    stated = {name: fields[name] for name in ("Codename", "Suite") if name in fields}
    if asked & {"", "."} or asked & set(stated.values()):
        return
    raise Refused(
        f"{base} states " + (", ".join(map(": ".join, stated.items())) or "neither a Codename nor a Suite"),
        expected=f"the suite {suite}",
        do="do not install from it: another suite is in its place; sync the mirror again, or correct the URL",
    )


def _moment(text: str | None, name: str, base: str) -> datetime | None:
    """Parse a date as UTC; one without a zone, or with -0000, is UTC too. None: not stated.

    Raises:
        InvalidInput: not a date.
    """
    if text is None:
        return None
    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError, IndexError) as error:
        raise InvalidInput(
            f"{base}: {name} {text!r} in Release", expected="a date as RFC 5322 writes it"
        ) from error


def _files(fields: ReleaseFile, base: str) -> dict[str, tuple[int, str]]:
    """Return size in bytes and SHA256 of each listed file, by its path below the suite's folder.

    Raises:
        InvalidInput: a size or a checksum is missing or invalid.
    """
    try:
        listed = {
            row["name"].removeprefix("./"): (int(row["size"]), row["sha256"].lower())
            for row in fields["SHA256"]
        }
    except (KeyError, TypeError, ValueError) as error:  # python-debian returns text if it finds no rows
        raise InvalidInput(
            f"{base}: the SHA256 list in Release cannot be read", expected="checksum, size, name"
        ) from error
    for name, (size, sha256) in listed.items():
        if size < 0 or not SHA256.fullmatch(sha256):
            raise InvalidInput(
                f"{base}: Release lists {name} with the size {size} and the sum {sha256}",
                expected="a number of bytes, and 64 hexadecimal digits",
            )
    return listed

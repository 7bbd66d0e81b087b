"""Texts of the catalog that become names, versions and patterns of packages, and addresses of repositories.

They have a fixed alphabet, a limited length, and fields `{name}` without a format or an attribute: with
Python's format strings and regular expressions, a catalog could make a name of any length, and a pattern
whose time is exponential, which also nodes match as root.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpuprov.catalog import records as r
from gpuprov.catalog.reading import BadField

FIELDS = frozenset(
    (
        *(
            "branch",
            "driver",
            "driver_held",
            "driver_cuda_major",
            "kernel_flavour",
            "series",
            "nccl",
            "nccl_cuda",
        ),
        *(
            "cuda",
            "cuda_major",
            "cuda_dashed",
            "compat_dashed",
            "cudnn",
            "cudnn3",
            "container_toolkit",
            "gds",
        ),
    )
)
"""Names of the fields that a rule's texts can have; the resolver has their values."""
URL_FIELDS = frozenset(("release", "folder", "arch"))
"""Names of the fields that a repository's address can have."""
LONGEST = 200
"""Maximum length of a text in characters."""
MOST_STARS = 3
"""Maximum number of `*` in a text: the time to match one grows with the name's length to this power."""

_FIELD = re.compile(r"\{([a-z0-9_]+)\}")
_TEMPLATE = re.compile(r"(?:[A-Za-z0-9.+_:~*?-]|\{[a-z0-9_]+\})+")
_HOLD = re.compile(r"!?[A-Za-z0-9.+_*?-]+")
_NAME = re.compile(r"[A-Za-z0-9.+_-]+")
_URL = re.compile(r"[a-z]+://(?:[A-Za-z0-9.+_:~/?=&%@,-]|\{[a-z0-9_]+\})+")
_OTHERS = {
    _TEMPLATE: ", : and ~, fields such as {driver}",
    _URL: ", : and / of a URL, {release}, {folder} and {arch}",
}
"""Form → what it can have besides the characters of a name."""


def fill(text: str, words: Mapping[str, str]) -> str:
    """Return a text with the values of its fields; a field without a value is kept."""
    return _FIELD.sub(lambda found: words.get(found[1], found[0]), text)


def check_texts(record: object) -> None:
    """Check the texts of a record that become names, versions and patterns of packages, or addresses.

    Raises:
        BadField: one has other characters or fields, or is too long.
    """
    for path, text, pattern in _texts(record):
        if len(text) > LONGEST or not pattern.fullmatch(text) or text.count("*") > MOST_STARS:
            raise BadField(
                repr(text[:60]),
                f"at most {LONGEST} letters, digits and .+_-"
                f"{_OTHERS.get(pattern, '')}"
                f"{f', and at most {MOST_STARS} *' * (pattern not in (_NAME, _URL))}",
                path,
            )
        fields = URL_FIELDS if pattern is _URL else FIELDS
        if unknown := sorted({*_FIELD.findall(text)} - fields):
            raise BadField(f"the field {unknown[0]}", ", ".join(sorted(fields)), path)


def _texts(record: object) -> Iterator[tuple[str, str, re.Pattern[str]]]:
    """Yield the path of each text in a record that becomes part of a command or file, the text, and its form.

    Nothing for a record of another kind.
    """
    match record:
        case r.PackageRule():
            lists: dict[str, Any] = {name: getattr(record, name) for name in ("names", "unversioned", "pin")}
            ones = {name: getattr(record, name) for name in ("module", "stream", "version")}
            yield from ((name, text, _TEMPLATE) for name, texts in lists.items() for text in texts)
            yield from ((name, text, _TEMPLATE) for name, text in ones.items() if text is not None)
        case r.HoldRule():
            yield from (("patterns", text, _HOLD) for text in record.patterns)
            yield from (("shared", text, _HOLD) for text in record.shared)
        case r.StorageClient():
            yield "package", record.package, _NAME
        case r.Repository():
            urls = {"url": record.url, "url_aarch64": record.url_aarch64}
            yield from ((name, text, _URL) for name, text in urls.items() if text is not None)
        case r.System():
            series = (each.series for each in record.archive_drivers if each.series)
            yield from (("archive_drivers", text, _NAME) for text in series)

"""Texts of the catalog that become names, versions and patterns of packages, addresses of repositories, and
ids.

They have a fixed alphabet, a limited length, and fields `{name}` without a format or an attribute: with
Python's format strings and regular expressions, a catalog could make a name of any length, and a pattern
whose time is exponential, which also nodes match as root.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gpuprov.catalog import records as r
from gpuprov.catalog.reading import BadField
from gpuprov.errors import InvalidInput

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
_HOLD = re.compile(r"!?[A-Za-z0-9*][A-Za-z0-9.+_*-]*")
# A word that begins with a hyphen is an option of a package manager, and apt removes `NAME-`.
_PACKAGE = re.compile(
    r"[A-Za-z0-9](?:(?:[A-Za-z0-9.+_:-]|\{[a-z0-9_]+\})*(?:[A-Za-z0-9.+_]|\{[a-z0-9_]+\}))?"
)
_PLAIN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.+_:-]*[A-Za-z0-9.+_])?")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]*")
_URL = re.compile(r"[a-z]+://(?:[A-Za-z0-9.+_:~/?=&%@,-]|\{[a-z0-9_]+\})+")
_OTHERS = {
    _TEMPLATE: f", : and ~, fields such as {{driver}}, and at most {MOST_STARS} *",
    _HOLD: f", and at most {MOST_STARS} *, no hyphen in front",
    _PACKAGE: ", : and fields such as {driver}, no hyphen at the ends",
    _PLAIN: " and :, no hyphen at the ends",
    _ID: ", a letter or digit in front",
    _URL: ", : and / of a URL, {release}, {folder} and {arch}",
}
"""Form → what it can have besides letters, digits and `.+_-`."""


def fill(text: str, words: Mapping[str, str]) -> str:
    """Return a text with the values of its fields; a field without a value is kept."""
    return _FIELD.sub(lambda found: words.get(found[1], found[0]), text)


def fill_name(text: str, words: Mapping[str, str]) -> str:
    """Return the name of a package with the values of its fields, see `fill`.

    Raises:
        InvalidInput: the values make it another word of a package manager, such as an option.
    """
    name = fill(text, words)
    if not _PLAIN.fullmatch(name):
        raise InvalidInput(f"the catalog's name {text!r} of a package becomes {name!r}", expected="a name")
    return name


def check_texts(record: object) -> None:
    """Check the texts of a record that become names, versions and patterns of packages, or addresses, and
    those by which rows name each other.

    Raises:
        BadField: one has other characters or fields, or is too long.
    """
    for path, text, pattern in _texts(record):
        if len(text) > LONGEST or not pattern.fullmatch(text) or text.count("*") > MOST_STARS:
            expected = f"at most {LONGEST} letters, digits and .+_-{_OTHERS[pattern]}"
            raise BadField(repr(text[:60]), expected, path)
        fields = URL_FIELDS if pattern is _URL else FIELDS
        if unknown := sorted({*_FIELD.findall(text)} - fields):
            raise BadField(f"the field {unknown[0]}", ", ".join(sorted(fields)), path)


_FORMS: Mapping[type, Mapping[str, re.Pattern[str]]] = {
    r.PackageRule: {
        **dict.fromkeys(("component", "repository", "manager", "family"), _ID),
        **dict.fromkeys(("names", "unversioned", "module"), _PACKAGE),
        **dict.fromkeys(("pin", "stream", "version"), _TEMPLATE),
    },
    r.HoldRule: {**dict.fromkeys(("component", "manager"), _ID), "patterns": _HOLD, "shared": _HOLD},
    r.StorageClient: {**dict.fromkeys(("client", "family"), _ID), "package": _PLAIN, "packages": _PLAIN},
    r.Repository: {**dict.fromkeys(("id", "components"), _ID), "url": _URL, "url_aarch64": _URL},
    r.System: dict.fromkeys(("id", "family", "folder", "key_file", "archive_components"), _ID),
    r.ArchiveDriver: dict.fromkeys(("repository", "series"), _ID),
    r.ArchiveCuda: {"repository": _ID},
    r.Family: dict.fromkeys(("family", "names", "prefix", "bare", "codenames", "same"), _ID),
}
"""Record → form of each field whose text becomes part of a command, a file or an address."""


def _texts(record: object) -> Iterator[tuple[str, str, re.Pattern[str]]]:
    """Yield the path of each text in a record that becomes part of a command or file, the text, and its form.

    Nothing for a record of another kind.
    """
    for name, form in _FORMS.get(type(record), {}).items():
        yield from ((name, text, form) for text in _listed(getattr(record, name)))
    if isinstance(record, r.System):
        for name in ("archive_drivers", "archive_cuda"):
            for each in getattr(record, name):
                yield from ((f"{name}.{path}", text, form) for path, text, form in _texts(each))


def _listed(value: str | tuple[str, ...] | Mapping[str, str] | None) -> Iterator[str]:
    """Yield the texts of a field: of a mapping both keys and values; nothing for None."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (*value.keys(), *value.values())
    else:
        yield from value or ()

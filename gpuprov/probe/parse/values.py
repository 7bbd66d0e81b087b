"""Parsers of scalar values in the output of NVIDIA's and other tools."""

from __future__ import annotations

import re

from gpuprov.untrusted.kept import SHORT, kept

# Texts of drivers from 270 to today for a missing value; lower case, without brackets.
_NOTHING = frozenset(
    ("", "-", "n/a", "none", "not supported", "not available", "not found", "function not found")
)
# Texts for a value that could not be read.
_TROUBLE = re.compile(
    r"err!|\berror\b|gpu is lost|requires? reset|reset required|access blocked|insufficient permissions"
    r"|timeout|^unknown\Z",
    re.I,
)
# Driver 610: `13.3 [Deprecated; will be removed in CUDA 14.0. Use CUDA UMD Version instead]`.
_NOTICE = re.compile(r"\[Deprecated[^\]]*\]\Z", re.I)
_DEPRECATED = ("requested functionality has been deprecated", "deprecated")
_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,15})?(?!\d)")


@kept(4096, SHORT)
def trouble(text: str | None) -> bool:
    """Return whether a tool printed an error in place of a value: `ERR!`, `Unknown Error`, `GPU is lost`."""
    return bool(_TROUBLE.search((text or "").strip().strip("[]").strip()))


@kept(4096, SHORT)
def text_or_none(text: str | None) -> str | None:
    """Return the text without notices, or `None` if the tool reports no value (`[N/A]`, `ERR!`)."""
    bare = (text or "").strip()
    if bare.endswith("]"):
        value = bare[: bare.rfind("[")]
        bare = value.rstrip() if value[-1:].isspace() and _NOTICE.match(bare, len(value)) else bare
    folded = bare.strip("[]").strip().lower()
    return None if folded in _NOTHING or folded.startswith(_DEPRECATED) or trouble(folded) else bare


def number(text: str | None) -> float | None:
    """Parse `1980 MHz` → 1980.0, `700.00 W` → 700.0; `None` without a number at the start."""
    found = _NUMBER.match(text_or_none(text) or "")
    return float(found.group()) if found else None


def integer(text: str | None) -> int | None:
    """Parse `1980 MHz` → 1980; `None` without a number; decimals are cut off."""
    value = number(text)
    return None if value is None else int(value)


def mebibytes(text: str | None) -> int | None:
    """Parse `143771 MiB` → 143771, also in the `MB` of drivers before 331 and in `GiB`/`KiB`/bytes.

    Returns:
        None without a number; a number with an unknown unit is returned as it is.
    """
    value = number(text)
    if value is None:
        return None
    unit = re.sub(r"[^a-z]", "", (text or "").lower())
    scale = {
        "gib": 1024.0,
        "gb": 1024.0,
        "kib": 1 / 1024,
        "kb": 1 / 1024,
        "b": 1 / 1024**2,
        "bytes": 1 / 1024**2,
    }
    return int(value * scale.get(unit, 1.0))


def switch(text: str | None) -> bool | None:
    """Parse `Enabled`, `On`, `Yes`, `1` → True; `Disabled`, `Off`, `No`, `0` →
    False; anything else → `None`.
    """
    folded = (text_or_none(text) or "").strip("[]").lower()
    if folded in ("enabled", "on", "yes", "active", "1", "true"):
        return True
    if folded in ("disabled", "off", "no", "not active", "0", "false"):
        return False
    return None

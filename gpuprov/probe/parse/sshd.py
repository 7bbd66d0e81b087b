"""Parsers of the effective configuration that `sshd -T` prints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuprov.errors import NodeFailed
from gpuprov.untrusted.kept import kept


@dataclass(frozen=True, slots=True)
class SshdAnswer:
    """Options of one listening sshd for a user from an address."""

    listener: str
    """Its command line."""
    user: str
    address: str
    options: Mapping[str, tuple[str, ...]]
    """Keyword in lower case → values."""
    places: Mapping[str, str]
    """Keyword in lower case, as written → `path:line` that sets its value, or sshd's command line."""


ALIASES = {"kbdinteractiveauthentication": "challengeresponseauthentication"}
"""Keyword → its older name in files."""
ANSWERS_AT_MOST = 192
"""Number of answers that the probe requests: 24 of each of 8 listeners."""


@kept(256, 16 * 1024)
def parse_sshd(text: str) -> Mapping[str, tuple[str, ...]]:
    """Parse keyword in lower case → its values in order; a keyword that
    may repeat (`hostkey`) has several.
    """
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, _, value = line.strip().partition(" ")
        if name:
            found.setdefault(name.lower(), []).append(value.strip())
    return {name: tuple(values) for name, values in found.items()}


def parse_answers(raw: Mapping[str, Any]) -> tuple[SshdAnswer, ...]:
    """Parse the probe's answers; one without a text repeats the text and the lines of the first.

    Raises:
        NodeFailed: there are more answers than `ANSWERS_AT_MOST`.
    """
    if len(raw["answers"]) > ANSWERS_AT_MOST:
        raise NodeFailed(f"{len(raw['answers'])} answers of sshd", expected=f"at most {ANSWERS_AT_MOST}")
    first = _places(raw["lines"])
    return tuple(
        SshdAnswer(
            str(listener),
            str(user),
            str(address),
            parse_sshd(raw["text"] if text is None else text),
            first if lines is None else _places(lines),
        )
        for listener, user, address, text, lines in raw["answers"]
    )


def _places(rows: list[list[str]]) -> dict[str, str]:
    """Return keyword in lower case → place of its first line."""
    found: dict[str, str] = {}
    for place, line in rows:
        found.setdefault(re.split(r"[\s=]", line, maxsplit=1)[0].lower(), str(place))
    return found

"""Configuration of apt and dnf: sources, trusted keys, pins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuprov.untrusted import lines_of
from gpuprov.untrusted.kept import kept

SECTIONS = 10_000
"""Maximum number of sections of a .repo file."""


@dataclass(frozen=True, slots=True)
class Source:
    """One entry of a file of sources, which has each suite at each URI.

    `uris` are without credentials; `signed_by` is as written, or empty. The pairs of both are not
    stored: their number is the square of a text's length.
    """

    path: str
    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str
    enabled: bool


@dataclass(frozen=True, slots=True)
class Preference:
    """One stanza of apt_preferences(5)."""

    path: str
    packages: tuple[str, ...]
    pin: str
    priority: int


@dataclass(frozen=True, slots=True)
class Apt:
    """The complete configuration, of a node with apt or dnf."""

    sources: tuple[Source, ...]
    keyrings: Mapping[str, tuple[str, ...]]
    """Path → fingerprints in upper case; empty when the file is not a key or not readable."""
    preferences: tuple[Preference, ...]
    unattended_blacklist: tuple[str, ...]
    """Python regular expressions that unattended-upgrades matches at the start of a package's name; of
    dnf-automatic shell patterns."""
    unattended_origins: tuple[str, ...]
    unattended_enabled: bool
    automatic_reboot: bool
    ignores_holds: bool
    """Whether apt is configured to change held packages (`APT::Ignore-Hold`)."""
    cleared: tuple[str, ...]
    """`path:line` of lines that clear the list of packages to keep, or make apt ignore holds."""


def parse_apt(raw: Mapping[str, Any]) -> Apt:
    """Parse source files, preferences and `apt-config dump`; keep the fingerprints by keyring. Of a setting
    that is stated several times the last value counts.
    """
    config = parse_apt_config(raw["config"])
    switch = config.get("APT::Periodic::Unattended-Upgrade", ("0",))[-1:]
    return Apt(
        sources=tuple(source for path, text in raw["files"].items() for source in parse_sources(path, text)),
        keyrings={path: tuple(prints) for path, prints in raw["keyrings"].items()},
        preferences=tuple(
            p for path, text in raw["preferences"].items() for p in parse_preferences(path, text)
        ),
        unattended_blacklist=(
            *config.get("Unattended-Upgrade::Package-Blacklist", ()),
            *map(str, raw.get("excluded", ())),
        ),
        unattended_origins=(
            *config.get("Unattended-Upgrade::Allowed-Origins", ()),
            *config.get("Unattended-Upgrade::Origins-Pattern", ()),
        ),
        unattended_enabled=switch not in ((), ("0",)),
        automatic_reboot=config.get("Unattended-Upgrade::Automatic-Reboot", ("false",))[-1:] == ("true",),
        ignores_holds=config.get("APT::Ignore-Hold", ("false",))[-1:] in (("true",), ("1",), ("yes",)),
        cleared=tuple(raw.get("cleared", ())),
    )


def parse_sources(path: str, text: str) -> tuple[Source, ...]:
    """Parse a file of sources in any of the three formats: one line each, deb822, or dnf's .repo."""
    if path.endswith(".sources"):
        return _deb822(path, text)
    if path.endswith(".repo"):
        return _repo(path, text)
    return tuple(
        Source(path, (uri,), (suite,), tuple(rest.split()), _signed_by(options or ""), enabled=True)
        for options, uri, suite, rest in (
            found.groups() for found in map(_ONE_LINE.match, lines_of(text)) if found
        )
    )


_ONE_LINE = re.compile(r"[ \t]*deb[ \t]+(?:\[([^\]]*)\][ \t]*)?(\S+)[ \t]+(\S+)[ \t]*([^#]*)")


def _signed_by(options: str) -> str:
    """Return the keyring in a line's options (`signed-by=…`); empty without one."""
    found = re.search(r"signed-by=(\S+)", options, re.I)
    return found[1] if found else ""


def _deb822(path: str, text: str) -> tuple[Source, ...]:
    """Parse stanzas of deb822; those of another type than `deb`, or without a URI, are left out.

    A key in the file itself becomes `(a key in the file itself)`.
    """
    sources = []
    for stanza in _stanzas(text):
        if "deb" not in stanza.get("types", "deb").split():
            continue
        signed_by = " ".join(stanza.get("signed-by", "").split())
        signed_by = "(a key in the file itself)" if "BEGIN PGP" in signed_by else signed_by
        uris, suites, components = (
            tuple(stanza.get(name, "").split()) for name in ("uris", "suites", "components")
        )
        enabled = stanza.get("enabled", "yes").lower() not in ("no", "false", "0")
        if uris:
            sources.append(Source(path, uris, suites, components, signed_by, enabled))
    return tuple(sources)


def _repo(path: str, text: str) -> tuple[Source, ...]:
    """Parse sections of a .repo file; the id is the suite, and `signed_by` is empty without `gpgcheck`. A
    section without an address has an empty one.
    """
    sources = []
    for section in re.split(r"^\[", text, maxsplit=SECTIONS, flags=re.M)[1:]:
        name, _, body = section.partition("]")
        values = {
            key: value.strip() for key, value in re.findall(r"^[ \t]*(\w+)[ \t]*=[ \t]*(.*)$", body, re.M)
        }
        uri = values.get("baseurl") or values.get("metalink") or values.get("mirrorlist") or ""
        enabled = values.get("enabled", "1").lower() in ("1", "true", "yes")
        checked = values.get("gpgcheck", "0").lower() in ("1", "true", "yes")
        key = values.get("gpgkey", "") if checked else ""
        sources.append(Source(path, (uri,), (name,), (), key, enabled))
    return tuple(sources)


def parse_preferences(path: str, text: str) -> tuple[Preference, ...]:
    """Parse stanzas of apt_preferences(5); without those that lack a package or a numeric priority."""
    found = []
    for stanza in _stanzas(text):
        priority = stanza.get("pin-priority", "").split()
        if stanza.get("package") and priority and re.fullmatch(r"-?\d{1,9}", priority[0], re.ASCII):
            found.append(
                Preference(path, tuple(stanza["package"].split()), stanza.get("pin", ""), int(priority[0]))
            )
    return tuple(found)


def _stanzas(text: str) -> list[dict[str, str]]:
    """Parse stanzas of `Name: value` with continuation lines; names in lower case, without comments."""
    stanzas: list[dict[str, list[str]]] = [{}]
    name = ""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if not line.strip():
            stanzas.append({})
        elif line[0] in " \t" and name:
            stanzas[-1].setdefault(name, [""]).append(line.strip())
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            stanzas[-1][name] = [value.strip()]
    return [{name: "\n".join(lines) for name, lines in stanza.items()} for stanza in stanzas if stanza]


@kept(64, 64 * 1024)
def parse_apt_config(text: str) -> Mapping[str, tuple[str, ...]]:
    """Parse `apt-config dump`: name → its values in order (`Name:: "value";` is a list's entry)."""
    values: dict[str, list[str]] = {}
    for line in lines_of(text):
        name, blank, value = line.partition(" ")
        if name and blank and len(value) > 2 and value[0] == '"' and value.endswith('";'):
            values.setdefault(name.removesuffix("::"), []).append(value[1:-2])
    return {name: tuple(value for value in listed if value) for name, listed in values.items()}

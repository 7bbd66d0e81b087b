"""`host.packages` on a node with dpkg: packages, sources and holds of apt and dpkg."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sized
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from gpuprov.catalog.platforms import origins
from gpuprov.errors import NodeFailed
from gpuprov.roles.repositories import ADDED, IN_ANOTHER_FILE
from gpuprov.untrusted import lines_of, shell_words
from gpuprov.verify.observers.base import Observed

PACKAGES = "dpkg-query -W -f '${db:Status-Want} ${db:Status-Status} ${Package} ${Version}\\n'"
OFFERS = "apt-cache madison %s"
CANDIDATES = "apt-cache policy %s"
POLICY = "apt-cache policy"
WRITTEN = "cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list"
STANZAS = "for each in /etc/apt/sources.list.d/*.sources; do cat $each; echo; done"
STANZAS_OF_OTHERS = (
    "for each in /etc/apt/sources.list.d/*.sources; do"
    ' [ "$each" = /etc/apt/sources.list.d/gpuprov.sources ] || cat "$each"; echo; done'
)
SOURCES = "apt-get indextargets --no-release-info --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages'"
OWN = "cat /etc/apt/sources.list.d/gpuprov.sources"
JOURNAL = "ls /var/lib/dpkg/updates | grep -x '[0-9]*'"
UPGRADE = "apt-get -s -qq -o Debug::NoLocking=true dist-upgrade"


SOURCES_AT_MOST = 10_000
"""Maximum number of apt's sources of a node."""
FIELD_LINES = 1024
"""Lines of a field of a stanza that are read."""
LINE = 512
"""Characters of a line that are read: longer names take too much time in patterns of names."""


class Package(NamedTuple):
    """A package in dpkg's database: `want` is `hold` if it is held, `status` is `installed` if complete."""

    want: str
    status: str
    name: str
    version: str


class Apt(Observed):
    """Observer of apt's state.

    >>> "libcuda1" in host.packages.held
    True
    """

    @cached_property
    def packages(self) -> list[Package]:
        """Every package that dpkg knows, also a removed one with configuration; names without architecture.

        Raises:
            NodeFailed: dpkg-query fails.
        """
        lines = (line.split() for line in lines_of(self.ask(PACKAGES), LINE))
        return [Package(*words) for words in lines if len(words) == len(Package._fields)]

    @property
    def held(self) -> set[str]:
        """Names of held packages; apt may be configured to ignore that, see `ignores_holds`."""
        return {package.name for package in self.packages if package.want == "hold"}

    @property
    def versions(self) -> dict[str, str]:
        """Name → version of the completely installed packages; raises as `packages`."""
        return {package.name: package.version for package in self.packages if package.status == "installed"}

    @cached_property
    def moved_by_upgrade(self) -> set[str]:
        """Names of packages that a `dist-upgrade` would install, upgrade or remove now (simulated).

        Raises:
            NodeFailed: apt cannot simulate it.
        """
        return parse_simulation(self.ask(UPGRADE))

    def foreign(self, packages: list[str], own: list[str]) -> list[str]:
        """Return URLs of other sources that offer the packages, or whose URL contains `nvidia`; sorted.

        The distribution's archive is left out: a source with origin Debian or Ubuntu in its Release file,
        unless apt accepts it without a signature. So are the URLs in `own`.

        Args:
            packages: names of packages.
            own: URLs that are expected.

        Raises:
            NodeFailed: apt-cache fails.
        """
        offering = parse_madison(self.ask(OFFERS % shell_words(packages))) if packages else set()
        written = parse_written(self.run(WRITTEN).stdout, self.run(STANZAS).stdout)
        archive = {
            uri
            for uri, origin in parse_policy(self.ask(POLICY)).items()
            if origin in origins() and not written.get(uri)
        }
        named = {uri for uri in written if "nvidia" in uri.lower()}
        return sorted((offering | named) - archive - {uri.rstrip("/") for uri in own})

    @property
    def sources(self) -> set[str]:
        """Each of apt's sources as `URL SUITE`, the URL without a slash at the end.

        If a file other than gpuprov's states the URL too, `URL SUITE in another file`.

        Raises:
            NodeFailed: apt uses none, as it cannot read its sources or preferences.
        """
        self.ask(POLICY)
        others = parse_written(self.run(WRITTEN).stdout, self.run(STANZAS_OF_OTHERS).stdout)
        lines = (line.split() for line in lines_of(self.run(SOURCES).stdout) if line.strip())
        found = ((uri.rstrip("/"), suite or ["/"]) for uri, *suite in lines)
        return {" ".join([uri, *suite, *[IN_ANOTHER_FILE] * (uri in others)]) for uri, suite in found}

    def long(self, packages: list[str]) -> list[str]:
        """Return the commands for these packages of the lock that take long."""
        return [UPGRADE, CANDIDATES % shell_words(packages)] if packages else [UPGRADE]

    def preferred(self, packages: list[str]) -> list[str]:
        """Return the packages for which apt prefers another version, see `parse_candidates`.

        Raises:
            NodeFailed: apt-cache fails.
        """
        return parse_candidates(self.ask(CANDIDATES % shell_words(packages))) if packages else []

    def own_parts(self, expected: dict[str, str]) -> dict[str, str]:
        """Return the parts of gpuprov's own file of sources, see `parse_own`.

        A missing or unreadable file is like an empty one: only the expected archives are returned.
        """
        return parse_own(self.run(OWN).stdout, expected)

    @property
    def ignores_holds(self) -> bool:
        """Whether apt is configured to change held packages (`APT::Ignore-Hold`); raises as `ask`."""
        return bool(re.search(r'^APT::Ignore-Hold "(true|1|yes)";', self.ask("apt-config dump"), re.M | re.I))

    @cached_property
    def unattended_blacklist(self) -> set[str]:
        """Patterns of packages that unattended upgrades skip, from apt's effective configuration; raises as
        `ask`.
        """
        return parse_blacklist(self.ask("apt-config dump"))

    @cached_property
    def half_done(self) -> list[str]:
        """Packages whose installation or removal dpkg did not finish, sorted; empty if all are complete.

        With a note if dpkg was interrupted before it could write its database.

        Raises:
            NodeFailed: dpkg cannot be asked.
        """
        journal = ["dpkg was interrupted"] if self.run(JOURNAL).stdout.strip() else []
        return parse_audit(self.ask("dpkg --audit || test $? -eq 1")) + journal

    def __repr__(self) -> str:
        return "<apt>"


def parse_madison(text: str) -> set[str]:
    """Parse `apt-cache madison` to the URLs of the sources that offer a package.

    Lines are such as `libcuda1 | 535.1 | http://deb.debian.org/debian bookworm/non-free amd64 Packages`;
    those of source packages are ignored.
    """
    rows = (line.split("|", 2) for line in lines_of(text) if line.endswith("Packages"))
    places = (row[2].split() for row in rows if len(row) == 3)
    return {words[0].rstrip("/") for words in places if len(words) > 1}


def parse_policy(text: str) -> dict[str, str]:
    """Parse `apt-cache policy`: URL of each source → origin in its Release file; an empty string without one.

    Of several sources with one URL the last one counts.
    """
    found, uri = {}, ""
    for line in lines_of(text):
        words = line.split()
        if uri and words[:1] == ["release"]:
            fields = line.partition("release ")[2].split(",")
            found[uri] = next((field[2:] for field in fields if field.startswith("o=")), "")
        is_archive = len(words) > 2 and words[0].lstrip("-").isdecimal() and words[-1] == "Packages"
        uri = words[1].rstrip("/") if is_archive else ""
    return found


def parse_own(text: str, expected: dict[str, str]) -> dict[str, str]:
    """Return part → first 16 digits of its SHA-256, or the expected value for an archive that is as expected.

    An expected archive also has its expected value if the text has no such part. The header is named `head`;
    a repeated part that is no archive is `NAME again`.

    Args:
        text: parts separated by empty lines, each with its name in a comment.
        expected: part → digest, or `SUITE…: COMPONENT…`, which a part may add to the node's own sources.
    """
    found = {name: value for name, value in expected.items() if ":" in value}
    archives = dict(found)
    for part in filter(None, text.strip("\n").split("\n\n")):
        lines = part.strip("\n").split("\n")
        title = lines[0].removeprefix("# ")
        name = title.partition(ADDED)[0] if ADDED in title else title
        if name in archives and ADDED in title and _adds_only(lines[1:], archives[name]):
            continue
        name = "head" if name.startswith("Written by") else name
        found[f"{name} again" if name in found and name not in archives else name] = hashlib.sha256(
            part.strip("\n").encode()
        ).hexdigest()[:16]
    return found


def _adds_only(lines: list[str], allowed: str) -> bool:
    """Return whether a stanza adds nothing to an archive but suites and components that are allowed."""
    fields = [line.partition(":") for line in lines if not line.startswith(" ")]
    values = {name: value.split() for name, _, value in fields}
    suites, _, components = allowed.partition(":")
    return (
        [name for name, _, _ in fields if name != "Signed-By"] == ["Types", "URIs", "Suites", "Components"]
        and values["Types"] == ["deb"]
        and (not suites or set(values["Suites"]) <= set(suites.split()))
        and set(values["Components"]) <= set(components.split())
    )


def parse_candidates(text: str) -> list[str]:
    """Parse `apt-cache policy PACKAGE…`: candidates with a higher priority than the installed version.

    Returns:
        For each, sorted: `NAME VERSION of SOURCE (priority N)`, with a login in the source hidden;
        `NAME VERSION` if no source has it; `NAME none` if preferences exclude all versions. An installed
        version that no source has counts as priority 999: only a pin that forces a version exceeds it.
    """
    found = []
    for part in _PACKAGE.split("\n" + text)[1:]:
        name, *lines = part.splitlines()
        stated = dict(line.strip().split(": ", 1) for line in lines[:2] if ": " in line)
        installed, candidate = stated.get("Installed", "(none)"), stated.get("Candidate", "(none)")
        table = _versions(lines)
        if installed in ("(none)", candidate):
            continue
        if candidate == "(none)":
            found.append(f"{name.rstrip(':')} none")
        elif installed in table and candidate in table:
            ours = table[installed][0] if table[installed][1] else 999
            priority, sources = table[candidate]
            if priority > ours:
                source = _LOGIN.sub("(hidden)@", sources[0]) if sources else ""
                origin = f" of {source} (priority {priority})" if source else ""
                found.append(f"{name.rstrip(':')} {candidate}{origin}")
    return sorted(found)


def _versions(lines: list[str]) -> dict[str, tuple[int, list[str]]]:
    """Return version → its priority and its sources, of the version table of one package.

    dpkg's own record of the installed version is not a source.
    """
    table: dict[str, tuple[int, list[str]]] = {}
    sources: list[str] = []
    for words in (line.replace("***", " ").split() for line in lines):
        if len(words) > 1 and words[0].lstrip("-").isdecimal() and not words[1].lstrip("-").isdecimal():
            sources += [" ".join(words[1:])] if words[1] != "/var/lib/dpkg/status" else []
        elif len(words) > 1 and words[1].lstrip("-").isdecimal() and len(words[1]) < 10:
            sources = []
            table[words[0]] = (int(words[1]), sources)
    return table


def parse_written(lines: str, stanzas: str) -> dict[str, bool]:
    """Return URL of each enabled source → whether apt accepts it without a signature.

    The option `trusted` or `allow-insecure` of one source is enough for its URL. Sources of source code
    (`deb-src`) are ignored.

    Args:
        lines: content of the files in one-line style.
        stanzas: content of the `.sources` files (deb822).

    Raises:
        NodeFailed: there are more than `SOURCES_AT_MOST`.
    """
    found: dict[str, bool] = {}
    for row in filter(None, map(_ONE_LINE.match, lines_of(lines))):
        uri = row[2].rstrip("/")
        found[uri] = found.get(uri, False) or bool(_UNSIGNED.search(row[1] or ""))
        _limit(found)
    stanza = _Stanza()
    for text in _fields(stanzas):
        if text:
            stanza.take(text)
            continue
        for uri in stanza.uris if stanza.enabled else ():
            found[uri] = found.get(uri, False) or stanza.unsigned
        _limit(found)
        stanza = _Stanza()
    return found


def _limit(sources: Sized) -> None:
    """Raise NodeFailed if there are more than `SOURCES_AT_MOST`."""
    if len(sources) > SOURCES_AT_MOST:
        raise NodeFailed(f"apt has more than {SOURCES_AT_MOST} sources")


@dataclass
class _Stanza:
    """Values of a stanza that count; of thousands of fields the others are not kept."""

    uris: set[str] = field(default_factory=set)
    enabled: bool = True
    unsigned: bool = False

    def take(self, text: str) -> None:
        """Take a field, `Name: value` with the lines that continue the value; raises as `_limit`."""
        name, _, value = text.partition(":")
        name = name.lower()
        if name == "uris":
            self.uris.update(uri.rstrip("/") for uri in value.split())
            _limit(self.uris)
        off = name == "enabled" and value.strip().lower() in ("no", "false", "0")
        self.enabled = self.enabled and not off and (name != "types" or "deb" in value.split())
        self.unsigned = self.unsigned or bool(_UNSIGNED.search(text))


def _fields(text: str) -> Iterator[str]:
    """Yield each field of stanzas with up to `FIELD_LINES` lines, and an empty text after each stanza."""
    lines: list[str] = []
    for line in chain(lines_of(text), ("",)):
        if lines and line[:1] in (" ", "\t") and line.strip():
            if len(lines) < FIELD_LINES:
                lines.append(line)
            continue
        if lines:
            yield "\n".join(lines)
        lines = [line] if line.strip() else []
        if not lines:
            yield ""


_PACKAGE = re.compile(r"\n(?=[a-z0-9])")
_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")
_ONE_LINE = re.compile(r"[ \t]*deb[ \t]+(?:(\[[^]]*\])[ \t]*)?(\S+)")
_UNSIGNED = re.compile(r"(?im)(?:\btrusted|\ballow-insecure)\s*[=:]\s*(?:yes|true|1|with|on|enable)\b")


def parse_simulation(text: str) -> set[str]:
    """Parse `Inst NAME …` and `Remv NAME …` lines to names, without architecture."""
    return set(re.findall(r"^(?:Inst|Remv) ([^\s:]+)", text, re.MULTILINE))


def parse_blacklist(text: str) -> set[str]:
    """Parse `Unattended-Upgrade::Package-Blacklist:: "PATTERN";` lines to patterns; ignore other lines."""
    return set(re.findall(r'^Unattended-Upgrade::Package-Blacklist:: "(.+)";', text, re.MULTILINE))


def parse_audit(text: str) -> list[str]:
    """Parse `dpkg --audit` to sorted names of packages.

    They are in indented lines, ` NAME[:ARCH]  summary`, below sentences.
    """
    return sorted(set(re.findall(r"^ ([a-z0-9][^\s:]+)", text, re.MULTILINE)))

"""`host.apt`: packages, sources and holds of apt and dpkg."""

from __future__ import annotations

import re
from functools import cached_property
from typing import NamedTuple

from gpuprov.verify.observers.base import Observed

PACKAGES = "dpkg-query -W -f '${db:Status-Want} ${db:Status-Status} ${Package} ${Version}\\n'"
OFFERS = "apt-cache madison %s"
POLICY = "apt-cache policy"
WRITTEN = "cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list"
STANZAS = "for each in /etc/apt/sources.list.d/*.sources; do cat $each; echo; done"
UPGRADE = "apt-get -s -qq -o Debug::NoLocking=true dist-upgrade"


class Package(NamedTuple):
    """A package in dpkg's database; `want` is `hold` for a held package."""

    want: str
    status: str
    name: str
    version: str


class Apt(Observed):
    """Test apt's state.

    >>> "libcuda1" in host.apt.held
    True
    """

    @cached_property
    def packages(self) -> list[Package]:
        """Every package that dpkg knows, from one command."""
        lines = (line.split() for line in self.ask(PACKAGES).splitlines())
        return [Package(*words) for words in lines if len(words) == len(Package._fields)]

    @property
    def held(self) -> set[str]:
        """Held packages."""
        return {package.name for package in self.packages if package.want == "hold"}

    @property
    def versions(self) -> dict[str, str]:
        """Versions of the completely installed packages."""
        return {package.name: package.version for package in self.packages if package.status == "installed"}

    @cached_property
    def moved_by_upgrade(self) -> set[str]:
        """Packages that a `dist-upgrade` would install, upgrade or remove now (simulated).

        Raises:
            NodeFailed: apt cannot simulate it.
        """
        return parse_simulation(self.ask(UPGRADE))

    def foreign(self, packages: list[str], own: list[str]) -> list[str]:
        """Return URLs, other than the distribution's archive, that offer the packages or belong to NVIDIA.

        Args:
            packages: names of packages.
            own: URLs that are expected.
        """
        offering = parse_madison(self.ask(OFFERS % " ".join(packages))) if packages else set()
        written = parse_written(self.run(WRITTEN).stdout, self.run(STANZAS).stdout)
        archive = {
            uri
            for uri, origin in parse_policy(self.ask(POLICY)).items()
            if origin in ("Debian", "Ubuntu") and not written.get(uri)
        }
        named = {uri for uri in written if "nvidia" in uri.lower()}
        return sorted((offering | named) - archive - {uri.rstrip("/") for uri in own})

    @property
    def ignores_holds(self) -> bool:
        """Whether apt is configured to change held packages."""
        return bool(re.search(r'^APT::Ignore-Hold "(true|1|yes)";', self.ask("apt-config dump"), re.M | re.I))

    @cached_property
    def unattended_blacklist(self) -> set[str]:
        """Patterns of packages that unattended upgrades skip, from the effective configuration."""
        return parse_blacklist(self.ask("apt-config dump"))

    @cached_property
    def half_done(self) -> list[str]:
        """Packages whose installation or removal dpkg did not finish."""
        return parse_audit(self.ask("dpkg --audit || test $? -eq 1"))

    def __repr__(self) -> str:
        return "<apt>"


def parse_madison(text: str) -> set[str]:
    """Parse lines such as `libcuda1 | 535.1 | http://deb.debian.org/debian bookworm/non-free amd64 Packages`
    to URLs.
    """
    return {uri.rstrip("/") for uri in re.findall(r"^[^|]*\|[^|]*\| (\S+) .*Packages$", text, re.MULTILINE)}


def parse_policy(text: str) -> dict[str, str]:
    """Parse `apt-cache policy`: URL → origin in its Release file; an empty string without one."""
    rows = re.findall(r"^ *-?\d+ (\S+) .*Packages\n +release (.*)$", text, re.MULTILINE)
    origins = ((uri.rstrip("/"), re.search(r"(?:^|,)o=([^,]*)", release)) for uri, release in rows)
    return {uri: found[1] if found else "" for uri, found in origins}


def parse_written(lines: str, stanzas: str) -> dict[str, bool]:
    """Return URL → whether apt accepts it without a signature, for enabled sources."""
    found: dict[str, bool] = {}
    for options, uri in re.findall(r"^[ \t]*deb[ \t]+(\[[^]]*\])?[ \t]*(\S+)", lines, re.MULTILINE):
        found[uri.rstrip("/")] = found.get(uri.rstrip("/"), False) or bool(_UNSIGNED.search(options))
    for stanza in re.split(r"\n\s*\n", stanzas):
        if re.search(r"(?im)^Enabled:\s*(no|false|0)\s*$", stanza):
            continue
        for uri in " ".join(re.findall(r"(?im)^URIs:\s*(.+)$", stanza)).split():
            found[uri.rstrip("/")] = found.get(uri.rstrip("/"), False) or bool(_UNSIGNED.search(stanza))
    return found


_UNSIGNED = re.compile(r"(?im)(?:\btrusted|\ballow-insecure)\s*[=:]\s*(?:yes|true|1)\b")


def parse_simulation(text: str) -> set[str]:
    """Parse `Inst NAME …` and `Remv NAME …` lines to names."""
    return set(re.findall(r"^(?:Inst|Remv) ([^\s:]+)", text, re.MULTILINE))


def parse_blacklist(text: str) -> set[str]:
    """Parse `Unattended-Upgrade::Package-Blacklist:: "PATTERN";` lines to patterns."""
    return set(re.findall(r'^Unattended-Upgrade::Package-Blacklist:: "(.+)";', text, re.MULTILINE))


def parse_audit(text: str) -> list[str]:
    """Parse `dpkg --audit`: packages are indented, ` NAME[:ARCH]  summary`, below sentences."""
    return sorted(set(re.findall(r"^ ([a-z0-9][^\s:]+)", text, re.MULTILINE)))

"""`host.apt`: what apt and dpkg hold, would change and complain of."""

from __future__ import annotations

import re
from functools import cached_property
from typing import NamedTuple

from gpuprov.verify.modules.base import Observed

PACKAGES = "dpkg-query -W -f '${db:Status-Want} ${db:Status-Status} ${Package} ${Version}\\n'"
UPGRADE = "apt-get -s -qq -o Debug::NoLocking=true dist-upgrade"


class Package(NamedTuple):
    """A package as dpkg has it; `want` is `hold` for one that is held."""

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
        """Every package that dpkg knows, in one question instead of one for each."""
        lines = (line.split() for line in self.ask(PACKAGES).splitlines())
        return [Package(*words) for words in lines if len(words) == len(Package._fields)]

    @property
    def held(self) -> set[str]:
        """Packages that are held."""
        return {package.name for package in self.packages if package.want == "hold"}

    @property
    def versions(self) -> dict[str, str]:
        """Versions of the packages that are installed, wholly."""
        return {package.name: package.version for package in self.packages if package.status == "installed"}

    @cached_property
    def moved_by_upgrade(self) -> set[str]:
        """Packages that a `dist-upgrade` would install, move or remove now (simulated).

        Raises:
            NodeFailed: apt cannot even simulate one.
        """
        return parse_simulation(self.ask(UPGRADE))

    @cached_property
    def unattended_blacklist(self) -> set[str]:
        """Patterns of packages that unattended upgrades leave alone, from the effective configuration."""
        return parse_blacklist(self.ask("apt-config dump"))

    @cached_property
    def half_done(self) -> list[str]:
        """Packages that dpkg did not finish with: neither installed nor removed."""
        return parse_audit(self.ask("dpkg --audit || test $? -eq 1"))

    def __repr__(self) -> str:
        return "<apt>"


def parse_simulation(text: str) -> set[str]:
    """`Inst NAME …` and `Remv NAME …` lines to names."""
    return set(re.findall(r"^(?:Inst|Remv) ([^\s:]+)", text, re.MULTILINE))


def parse_blacklist(text: str) -> set[str]:
    """`Unattended-Upgrade::Package-Blacklist:: "PATTERN";` lines to patterns."""
    return set(re.findall(r'^Unattended-Upgrade::Package-Blacklist:: "(.+)";', text, re.MULTILINE))


def parse_audit(text: str) -> list[str]:
    """`dpkg --audit`: packages stand indented, ` NAME[:ARCH]  summary`, under sentences."""
    return sorted(set(re.findall(r"^ ([a-z0-9][^\s:]+)", text, re.MULTILINE)))

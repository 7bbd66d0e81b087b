"""Effective values on a node, with the file that sets each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PRELOADS = ("/etc/ld.so.preload:", "LD_PRELOAD in ")
"""Beginnings of a reason why programs load a library first."""


@dataclass(frozen=True, slots=True)
class InForce:
    """An effective value and the place that sets it: `path:line`, or None if no file does."""

    value: str | None
    place: str | None


@dataclass(frozen=True, slots=True)
class Variables:
    """The requested variables, for each kind of process."""

    logins: Mapping[str, InForce]
    services: Mapping[str, InForce]
    """Services of the system's own systemd."""
    users: Mapping[str, InForce]
    """Services of a user's own systemd."""
    compiler: InForce
    """The nvcc that a login finds, and the place that adds its folder to PATH."""
    commands: Mapping[str, InForce]
    """Commands over ssh."""
    terminals: Mapping[str, InForce]
    """Interactive shells: the variables of bash's file for them."""
    jobs: Mapping[str, InForce]
    """Jobs at times (cron), without the variables of their own table."""
    unprivileged: Mapping[str, InForce]
    """Differences from `logins` for a user without privileges; a value of None is not set."""

    @property
    def others(self) -> tuple[Mapping[str, InForce], ...]:
        """The variables of each kind of process but root's logins."""
        return self.services, self.users, self.commands, self.terminals, self.jobs, self.unprivileged

    def of(self, name: str, wanted: str | None) -> InForce:
        """Return a login's value; if that is as wanted or unset, a differing value of other processes."""
        login = self.logins.get(name, InForce(None, None))
        others = [given[name] for given in self.others if name in given]
        other = next((each for each in others if each.value != wanted), None)
        return other if other and login.value in (None, wanted) else login


def parse_variables(raw: Mapping[str, Any]) -> Variables:
    """Parse the probe's `{"logins": {name: [value, place]}, …, "nvcc": [path, place]}`."""
    given = {
        whose: {name: InForce(*pair) for name, pair in raw.get(whose, {}).items()}
        for whose in ("logins", "services", "users", "commands", "terminals", "jobs", "unprivileged")
    }
    return Variables(compiler=InForce(*raw["nvcc"]), **given)


@dataclass(frozen=True, slots=True)
class Offer:
    """A source, other than the lock's and the distribution's, that offers packages of the lock."""

    place: str
    uri: str
    unsigned: str
    """The option that makes apt accept it without a signature; empty if a signature is required."""
    packages: tuple[str, ...]

    def __str__(self) -> str:
        """Return `file:/srv/extra/ (trusted=yes) offers libcuda1`."""
        option = f" ({self.unsigned})" if self.unsigned else ""
        return f"{self.uri}{option} offers {', '.join(self.packages) or 'packages of NVIDIA'}"


@dataclass(frozen=True, slots=True)
class Unpackaged:
    """Files installed without the package manager; each path with the reason why programs use it."""

    driver: tuple[str, ...]
    toolkits: tuple[str, ...]
    libraries: Mapping[str, str | None]

    def named(self, *stems: str) -> dict[str, str | None]:
        """Return the libraries whose names begin with a stem: `libcuda.so`, `libcudnn`; no preloaded ones."""
        preloaded = self.preloaded  # once: it goes through all libraries
        found = {path: why for path, why in self.libraries.items() if path not in preloaded}
        return {path: why for path, why in found.items() if path.rpartition("/")[2].startswith(stems)}

    @property
    def preloaded(self) -> dict[str, str | None]:
        """The libraries of any name that every program loads first (ld.so(8), LD_PRELOAD)."""
        return {path: why for path, why in self.libraries.items() if (why or "").startswith(PRELOADS)}


def parse_unpackaged(raw: Mapping[str, Any]) -> Unpackaged:
    """Parse the probe's lists."""
    return Unpackaged(tuple(raw["driver"]), tuple(raw["toolkits"]), dict(raw["libraries"]))

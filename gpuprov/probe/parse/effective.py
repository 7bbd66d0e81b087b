"""What is in force on a node, and which file says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class InForce:
    """A value that counts, and who says it: `path:line`, or None where nothing names it."""

    value: str | None
    place: str | None


@dataclass(frozen=True, slots=True)
class Variables:
    """Variables of the names that were asked for, by whom they are given to."""

    logins: Mapping[str, InForce]
    services: Mapping[str, InForce]
    """Of the system's own systemd."""
    users: Mapping[str, InForce]
    """Services that a user's own systemd starts."""
    compiler: InForce
    """The nvcc that a login finds, and who put its folder into PATH."""

    def of(self, name: str, wanted: str | None) -> InForce:
        """A login's value; where that is as wanted or unset, one of services that is not."""
        login = self.logins.get(name, InForce(None, None))
        others = [given[name] for given in (self.services, self.users) if name in given]
        other = next((each for each in others if each.value != wanted), None)
        return other if other and login.value in (None, wanted) else login


def parse_variables(raw: Mapping[str, Any]) -> Variables:
    """The probe's `{"logins": {name: [value, place]}, …, "nvcc": [path, place]}`."""
    given = [
        {name: InForce(*pair) for name, pair in raw[whose].items()}
        for whose in ("logins", "services", "users")
    ]
    return Variables(given[0], given[1], given[2], InForce(*raw["nvcc"]))


@dataclass(frozen=True, slots=True)
class Offer:
    """A source beside the lock's and the distribution's that brings packages which the lock names."""

    place: str
    uri: str
    unsigned: str
    """The option that has apt take it without a signature; empty where it must be signed."""
    packages: tuple[str, ...]

    def __str__(self) -> str:
        """`file:/srv/extra/ (trusted=yes) offers libcuda1`."""
        option = f" ({self.unsigned})" if self.unsigned else ""
        return f"{self.uri}{option} offers {', '.join(self.packages) or 'packages of NVIDIA'}"


@dataclass(frozen=True, slots=True)
class Unpackaged:
    """What was installed past the package manager; each path with what leads programs there."""

    driver: tuple[str, ...]
    toolkits: tuple[str, ...]
    libraries: Mapping[str, str | None]

    def named(self, *stems: str) -> dict[str, str | None]:
        """The libraries whose names begin so: `libcuda.so`, `libcudnn`."""
        return {
            path: why for path, why in self.libraries.items() if path.rpartition("/")[2].startswith(stems)
        }


def parse_unpackaged(raw: Mapping[str, Any]) -> Unpackaged:
    """The probe's lists."""
    return Unpackaged(tuple(raw["driver"]), tuple(raw["toolkits"]), dict(raw["libraries"]))

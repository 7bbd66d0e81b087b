"""Limits of a repository's index, which another person may have made to fill the memory or to take hours."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprov.errors import Refused

NAME = 128
"""Maximum length of a package's name in characters: messages and demands repeat it."""
PACKAGES = 200_000
"""Maximum number of packages in an index: Fedora's has 75,000."""
RELATIONS = 3_000_000
"""Maximum number of relations that are kept of an index, of up to 1 GB: Fedora's has some 2 million."""


@dataclass
class Count:
    """Number of packages and relations of a repository's index, with their limits."""

    origin: str
    packages: int = 0
    relations: int = 0

    def add(self, relations: int) -> None:
        """Count a package with some relations; raises as `require`."""
        self.packages += 1
        self.relations += relations
        self.require()

    def require(self, packages: int = 0) -> None:
        """Check that the index has at most `PACKAGES`, with some that are not counted yet, and `RELATIONS`;
        else Refused.
        """
        for number, most, what in (
            (self.packages + packages, PACKAGES, "packages"),
            (self.relations, RELATIONS, "relations between packages"),
        ):
            if number > most:
                raise Refused(
                    f"{self.origin} lists more than {most} {what}", do="name a smaller repository, or a part"
                )


def short_name(name: str) -> str:
    """Return the name of a package; ValueError if it has more than `NAME` characters."""
    if len(name) > NAME:
        raise ValueError(f"a name with {len(name)} characters")
    return name


STEPS = 1_000_000_000
"""Maximum number of steps in an index, one or two minutes: a lock from Debian's needs some 100,000."""
COMPARISON = 1000
"""Steps of a comparison of versions, of at most 0.1 ms."""
LOOK = 10
"""Steps of a look at a package or a name; one of a package's relations counts as one."""


@dataclass
class Budget:
    """Number of steps in a repository's index, and in all indexes that derive from it."""

    steps: int = 0

    def spend(self, steps: int) -> None:
        """Count steps; Refused after more than `STEPS`."""
        self.steps += steps
        if self.steps > STEPS:
            raise Refused(
                "the dependencies in the repositories take too long to follow",
                expected=f"at most {STEPS // COMPARISON} comparisons of versions",
                do="name another repository",
            )

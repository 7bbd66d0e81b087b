"""Model of profiles: hardware and wanted state of one kind of server. They extend one another; the nearest
statement wins.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field

from gpuprov.errors import InvalidInput
from gpuprov.files.resources import share
from gpuprov.model.documents import Strict, read_document
from gpuprov.model.hardware import HardwareProfile
from gpuprov.model.settings import Settings
from gpuprov.model.stack import StackPolicy
from gpuprov.untrusted.stated import require_small

DEEPEST = 16
"""The most profiles that one can extend, directly or by another."""
LARGEST = 2 << 20
"""Maximum size of all files of profiles in bytes: what is read of them needs at most 200 times as much."""
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class Profile(Strict):
    """One profile file."""

    description: str = ""
    extends: str | None = Field(default=None, pattern=NAME)
    hardware: HardwareProfile = HardwareProfile()
    stack: StackPolicy = StackPolicy()
    settings: Settings = Settings()


class ResolvedProfile(Strict):
    """A profile overlaid on all that it extends; `origins` has the file that states each setting."""

    name: str
    profile: Profile
    origins: dict[str, str]


S = TypeVar("S", bound=Strict)


def overlay(base: S, over: S) -> S:
    """Return `base` overlaid by everything that `over` states; nested records are merged, lists replaced."""
    stated: dict[str, Any] = {}
    for name in over.model_fields_set:
        value = getattr(over, name)
        below = getattr(base, name)
        merges = isinstance(value, Strict) and isinstance(below, Strict)
        stated[name] = overlay(below, value) if merges else value
    return base.model_copy(update=stated)


def profile_paths(folders: list[Path]) -> dict[str, Path]:
    """Return profile name → file, also of gpuprov's profiles; the first folder that has a name counts.

    Raises:
        InvalidInput: as `own_profiles`.
    """
    found: dict[str, Path] = {}
    for path in [*own_profiles(folders), *own_profiles([share("inventory") / "profiles"])]:
        found.setdefault(path.stem, path)
    return found


def own_profiles(folders: list[Path]) -> list[Path]:
    """Return the files of profiles in folders; raise InvalidInput if they exceed `LARGEST`."""
    found = [path for folder in folders for path in sorted(folder.glob("*.yml"))]
    require_small(found, LARGEST, f"the profiles in {', '.join(map(str, folders))}")
    return found


def replaced_profiles(folder: Path) -> list[Path]:
    """Return the files of a folder that replace profiles of gpuprov; raises as `own_profiles`."""
    shipped = {path.stem for path in own_profiles([share("inventory") / "profiles"])}
    return [path for path in own_profiles([folder]) if path.stem in shipped]


class Profiles:
    """The profiles in a site's folders and gpuprov's; each file is read once, however many extend it."""

    def __init__(self, folders: list[Path]) -> None:
        """List the files.

        Args:
            folders: the site's own folders of profiles, searched before gpuprov's.

        Raises:
            InvalidInput: as `own_profiles`.
        """
        self.paths = profile_paths(folders)
        self._read: dict[str, Profile] = {}

    def load(self, name: str) -> ResolvedProfile:
        """Return a profile by name, overlaid on all that it extends.

        Raises:
            InvalidInput: no such profile, an invalid file, a circle of `extends`, or more than `DEEPEST` of
                them.
        """
        chain: list[str] = []
        wanted: str | None = name
        while wanted is not None:
            if wanted in chain:
                raise InvalidInput(f"{self.paths[wanted]}: profile {wanted!r} extends itself")
            if len(chain) > DEEPEST:
                raise InvalidInput(
                    f"profile {name!r} extends more than {DEEPEST} profiles, the last one {wanted!r}"
                )
            chain.append(wanted)
            wanted = self._stated(wanted).extends
        merged = Profile()
        origins: dict[str, str] = {}
        for stated_in in reversed(chain):
            profile = self._stated(stated_in)
            merged = overlay(merged, profile)
            # A set's order differs between processes, and the lock has a digest of this.
            stated = [key for key in Settings.model_fields if key in profile.settings.model_fields_set]
            origins |= dict.fromkeys(stated, f"profile {stated_in}")
        return ResolvedProfile(name=name, profile=merged, origins=origins)

    def _stated(self, name: str) -> Profile:
        """Return a profile as its file states it; raise InvalidInput if there is none, or it is invalid."""
        if name not in self.paths:
            near = difflib.get_close_matches(name, self.paths, n=3) or sorted(self.paths)
            raise InvalidInput(
                f"there is no profile {name!r}",
                expected="one of " + ", ".join(near),
                do="`gpuprov inventory profiles` describes them",
            )
        if name not in self._read:
            self._read[name] = read_document(self.paths[name], Profile)
        return self._read[name]


def load_profile(name: str, folders: list[Path]) -> ResolvedProfile:
    """Load one profile by name; arguments and errors as for `Profiles`."""
    return Profiles(folders).load(name)


def shipped_profiles() -> Iterator[tuple[str, Profile]]:
    """Yield name and content of every profile of gpuprov, as its file states it."""
    for name, path in profile_paths([]).items():
        yield name, read_document(path, Profile)

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

DEEPEST = 16
"""The most profiles that one can extend, directly or by another."""
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
    """Return profile name → file, also of gpuprov's profiles; the first folder that has a name counts."""
    found: dict[str, Path] = {}
    for folder in [*folders, share("inventory") / "profiles"]:
        for path in sorted(folder.glob("*.yml")):
            found.setdefault(path.stem, path)
    return found


def load_profile(name: str, folders: list[Path]) -> ResolvedProfile:
    """Load a profile by name, overlaid on all that it extends.

    Args:
        folders: the site's own folders of profiles, searched before gpuprov's.

    Raises:
        InvalidInput: no such profile, an invalid file, a circle of `extends`, or more than `DEEPEST` of them.
    """
    paths = profile_paths(folders)
    chain: list[tuple[str, Profile]] = []
    wanted: str | None = name
    while wanted is not None:
        if wanted not in paths:
            near = difflib.get_close_matches(wanted, paths, n=3) or sorted(paths)
            raise InvalidInput(
                f"there is no profile {wanted!r}",
                expected="one of " + ", ".join(near),
                do="`gpuprov inventory profiles` describes them",
            )
        if wanted in (seen for seen, _ in chain):
            raise InvalidInput(f"{paths[wanted]}: profile {wanted!r} extends itself")
        if len(chain) > DEEPEST:
            raise InvalidInput(
                f"profile {name!r} extends more than {DEEPEST} profiles, the last one {wanted!r}"
            )
        chain.append((wanted, read_document(paths[wanted], Profile)))
        wanted = chain[-1][1].extends
    merged = Profile()
    origins: dict[str, str] = {}
    for stated_in, profile in reversed(chain):
        merged = overlay(merged, profile)
        # A set's order differs between processes, and the lock has a digest of this.
        stated = [key for key in Settings.model_fields if key in profile.settings.model_fields_set]
        origins |= dict.fromkeys(stated, f"profile {stated_in}")
    return ResolvedProfile(name=name, profile=merged, origins=origins)


def shipped_profiles() -> Iterator[tuple[str, Profile]]:
    """Yield name and content of every profile of gpuprov, as its file states it."""
    for name, path in profile_paths([]).items():
        yield name, read_document(path, Profile)

"""Validation of a fleet's files without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpuprov.errors import Exit, GpuprovError, InFile, InvalidInput, Refused
from gpuprov.locking.build import Builder, release_for
from gpuprov.locking.inputs import STALE
from gpuprov.model.documents import HOW_TO_BEGIN, Strict, complaints, read_text
from gpuprov.model.fleet import Fleet, fleet_of
from gpuprov.model.lock import Lock, lock_beside, lock_of
from gpuprov.model.marked import Marked
from gpuprov.model.profile import Profile, own_profiles
from gpuprov.nccl.record import read_record, record_path

Narrate = Callable[[str], None]


@dataclass(frozen=True)
class Problem:
    """One error in a file.

    Attributes:
        kind: `unknown-key`, `missing-key`, `wrong-value`, `not-yaml`, `key-twice`, `host-twice`,
            `group-twice`, `unknown-name`, `invalid`, `refused`, `stale-lock` or `unreadable`.
        line: from 1; None if it concerns the whole file.
    """

    kind: str
    file: str
    line: int | None
    seen: str
    expected: str = ""
    do: str = ""
    exit_code: Exit = Exit.USAGE

    def __str__(self) -> str:
        """Return `FILE:LINE: SEEN; expected EXPECTED; DO [KIND]`, without parts that are not known."""
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        more = [f"expected {self.expected}"] if self.expected else []
        more += [self.do] if self.do else []
        return f"{place}: {'; '.join([self.seen, *more])} [{self.kind}]"


@dataclass
class Validation:
    """The files that were read, and their problems."""

    files: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def validate_files(
    fleet_path: Path, lock_path: Path | None = None, narrate: Narrate = lambda line: None
) -> Validation:
    """Validate fleet.yml, the site's profiles, the derived networks, and the lock.

    Problems are returned, not raised. Groups are resolved only if every file is valid by itself. No package
    index is read: only `gpuprov lock` checks whether a repository has the packages.

    Args:
        lock_path: the lock; by default the one next to the fleet, if it exists.
        narrate: called with the resolver's warnings.
    """
    result = Validation()
    place = lock_path or lock_beside(fleet_path)
    lock = _lock(place, result) if lock_path or place.exists() else None
    document = _document(fleet_path, result, HOW_TO_BEGIN)
    if document is None:
        return result
    shape = complaints(document, Fleet)
    result.problems += map(_of_file, shape)
    folders = [] if shape or document.data is None else document.data.get("profile_dirs", [])
    try:
        for path in own_profiles([fleet_path.parent / folder for folder in ("profiles", *folders)]):
            _whole(path, Profile, result)
    except InvalidInput as error:
        result.problems.append(_problem(error, str(fleet_path)))
    if shape or any(problem.kind != "stale-lock" for problem in result.problems):
        return result
    result.problems += _meaning(fleet_path, document, lock, place, narrate)
    if (derived := record_path(fleet_path)).exists():
        result.files.append(str(derived))
    return result


def _document(path: Path, result: Validation, missing: str = "") -> Marked | None:
    """Parse a file as YAML; return None and add a problem if it cannot be read.

    Args:
        missing: hint for a file that does not exist.
    """
    result.files.append(str(path))
    try:
        return Marked(read_text(path, missing), str(path))
    except InvalidInput as error:
        result.problems.append(_problem(error, str(path)))
        return None


def _whole(path: Path, shape: type[Strict], result: Validation) -> Marked | None:
    """Parse a file and check its structure; return None and add its problems if it is invalid."""
    document = _document(path, result)
    wrong = complaints(document, shape) if document else []
    result.problems += map(_of_file, wrong)
    return None if wrong else document


def _lock(path: Path, result: Validation) -> Lock | None:
    """Parse the lock; return None and add its problems if it is invalid."""
    document = _whole(path, Lock, result)
    return lock_of(document) if document else None


def _meaning(
    path: Path, document: Marked, lock: Lock | None, lock_path: Path, narrate: Narrate
) -> Iterator[Problem]:
    """Yield problems of a fleet whose structure is valid: groups that cannot be resolved, or else a stale
    lock.
    """
    try:
        fleet = fleet_of(document)
        release, _ = release_for(lock, (), narrate)
        builder = Builder(fleet, path.parent, lock, (), narrate, read_record(path), release)
    except GpuprovError as error:
        yield _problem(error, str(path))
        return
    clean = True
    for name, group in fleet.groups.items():
        try:
            with fleet.words.placing("groups", name):
                builder.settled(name, group)
        except GpuprovError as error:
            clean = False
            yield _problem(error, document.name, document.line(("groups", name)))
    if clean and lock and lock.inputs != builder.digest():
        yield Problem(
            "stale-lock",
            str(lock_path),
            None,
            STALE.format(fleet=path),
            do="gpuprov lock",
            exit_code=Exit.DRIFT,
        )


def _of_file(error: InFile) -> Problem:
    """Convert an error with its place to a problem."""
    seen = error.seen.removeprefix(f"{error.file}:{error.line}: ")
    return Problem(error.kind, error.file, error.line, seen, error.expected, error.do)


def _problem(error: GpuprovError, file: str, line: int | None = None) -> Problem:
    """Convert an error to a problem, at the place it names or at `file` and `line`; None: the whole file.

    Without a place of its own, a refusal has the kind `refused`; any other error is `invalid` with a line and
    `unreadable` without one. Only a refusal has the exit code REFUSED.
    """
    if isinstance(error, InFile):
        return _of_file(error)
    refused = isinstance(error, Refused)
    kind = "refused" if refused else "invalid" if line else "unreadable"
    code = Exit.REFUSED if refused else Exit.USAGE
    return Problem(kind, file, line, error.seen.removeprefix(f"{file} "), error.expected, error.do, code)

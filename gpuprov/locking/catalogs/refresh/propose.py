"""Proposed changes from readings: drivers, CUDA, its libraries, frameworks, archives, bulletins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpuprov.catalog import Catalog, Version
from gpuprov.locking.catalogs.refresh.bulletins import propose_bulletins
from gpuprov.locking.catalogs.refresh.days import propose_days
from gpuprov.locking.catalogs.refresh.gpus import propose_gpus
from gpuprov.locking.catalogs.refresh.proposal import LAST_READ, Document, Proposal
from gpuprov.locking.catalogs.refresh.seen import Kind, Reading, Seen
from gpuprov.locking.catalogs.refresh.withdrawn import last_read, propose_withdrawn

Held = dict[Version, list[Seen]]


def propose(
    catalog: Catalog, documents: Mapping[str, Document], readings: Iterable[Reading], day: str
) -> tuple[Proposal, Document]:
    """Return the changes that follow from the readings, and the record of the readings for the next run.

    Args:
        catalog: the same data, typed.
        day: of the readings, ISO.
    """
    proposal = Proposal(documents)
    for reading in readings:
        _drivers(proposal, catalog, reading, day)
        _toolkits(proposal, catalog, reading)
        _libraries(proposal, catalog, reading)
        _frameworks(proposal, catalog, reading)
        _archives(proposal, catalog, reading)
        propose_gpus(proposal, catalog, reading)
        propose_bulletins(proposal, catalog, reading)
        propose_withdrawn(proposal, catalog, reading, documents.get(LAST_READ, {}), day)
    return proposal, last_read(documents.get(LAST_READ, {}), readings, day)


def _held(reading: Reading, kind: Kind) -> Held:
    """Return what was read about one kind: version → its places, oldest version first."""
    found: Held = {}
    for each in reading.seen:
        if each.kind == kind:
            found.setdefault(each.version, []).append(each)
    return dict(sorted(found.items(), key=lambda item: item[0].parts))


def _where(seen: Iterable[Seen]) -> str:
    """Return the names of the lists that contain a version, each once, with commas."""
    return ", ".join(dict.fromkeys(each.where for each in seen))


def _drivers(proposal: Proposal, catalog: Catalog, reading: Reading, day: str) -> None:
    """Propose new versions of known driver branches, and records of unknown branches; the newest version of a
    branch too, and the days of drivers that have none.
    """
    by_branch: dict[int, Held] = {}
    for release, seen in _held(reading, "driver").items():
        by_branch.setdefault(release.major, {})[release] = seen
    for number, held in by_branch.items():
        propose_days(proposal, catalog, reading, held, day)
        if number not in catalog.branches:
            _new_branch(proposal, catalog, reading, number, held, day)
            continue
        branch = catalog.branches[number]
        new = [each for each in held if each not in branch.known_versions]
        if not new:
            continue
        known = [str(each) for each in sorted({*branch.known_versions, *new}, key=lambda each: each.parts)]
        why = f"{', '.join(map(str, new))} in {_where(held[new[-1]])}"
        record_of = ("drivers", "branches", str(number))
        proposal.set(record_of, ("known_versions", known), why, reading.source)
        if new[-1] > branch.latest_known:
            proposal.set(record_of, ("latest_known", str(new[-1])), why, reading.source, stated_by=())


def _new_branch(
    proposal: Proposal, catalog: Catalog, reading: Reading, number: int, held: Held, day: str
) -> None:
    """Propose a record of an unknown branch, from indexes, with a doubt about the fields that they lack.

    If no cuda-compat package tells its CUDA, or no older branch is known, add a remark instead.
    """
    named = f"driver branch {number}"
    cudas = [version_of(each) for each in _compat(reading) if each.version.major == number]
    before = max((each for each in catalog.branches if each < number), default=None)
    if not cudas or before is None:
        releases = ", ".join(map(str, held))
        proposal.remarks.append(
            f"{named} ({releases} in {_where(held[max(held)])}) is new, and no cuda-compat package tells "
            "its CUDA: to be written by hand"
        )
        return
    cuda, neighbour = max(cudas), catalog.branches[before]
    flavours = {each.details["flavour"] for seen in held.values() for each in seen}
    modules = "none" if "open" not in flavours else "default" if "proprietary" in flavours else "only"
    doubt = f"branch-{number}"
    text = (
        f"written from indexes alone: type and end of life were not read, and so it is chosen by no policy; "
        f"oldest architecture and workstation support are those of {before}"
    )
    proposal.add(
        "doubts", "doubts", {"id": doubt, "text": text, "source": [reading.source]}, named, reading.source
    )
    record = {
        "branch": number,
        "first_release_linux": f"by {day[:7]}",
        "native_cuda": str(cuda),
        "max_cuda_major_without_forward_compat": cuda.major,
        "known_versions": [str(each) for each in held],
        "latest_known": str(max(held)),
        "min_architecture": neighbour.min_architecture,
        "proprietary_modules": "proprietary" in flavours,
        "open_modules": modules,
        "open_modules_geforce_workstation": neighbour.open_modules_geforce_workstation,
        "source": [reading.source],
        "doubts": [doubt],
    }
    why = f"new branch: {', '.join(map(str, held))} in {_where(held[max(held)])}"
    proposal.add("drivers", "branches", record, why, reading.source)


def _compat(reading: Reading) -> list[Seen]:
    """Return the forward-compatibility packages of a reading."""
    return [each for each in reading.seen if each.kind == "compat"]


def version_of(seen: Seen) -> Version:
    """Return the CUDA release of a `compat` package."""
    return Version(seen.details["cuda"])


def _toolkits(proposal: Proposal, catalog: Catalog, reading: Reading) -> None:
    """Propose a record of each new CUDA release, and the status `released` if an index now has a known one.

    A release whose driver branch is not known becomes a remark; one older than all known releases is left
    out.
    """
    known = {toolkit.version: toolkit for toolkit in catalog.toolkits}
    for release, seen in _held(reading, "cuda").items():
        in_index = reading.origin != "pypi"
        if release in known:
            status = known[release].status
            if in_index and status != "released":
                why = f"toolkit packages in {_where(seen)}"
                to = ("status", "released")
                proposal.set(("cuda", "releases", str(release)), to, why, reading.source)
            continue
        if proposal.record("cuda", "releases", str(release)) or release < min(known):
            continue
        branch = _branch_of(catalog, reading, release)
        if branch is None:
            proposal.remarks.append(
                f"CUDA {release} in {_where(seen)}: its driver branch is not known; to be written by hand"
            )
            continue
        status = "released" if in_index else "seen_on_pypi_only"
        record = {
            "version": str(release),
            "status": status,
            "driver_branch": branch,
            "source": [reading.source],
        }
        proposal.add("cuda", "releases", record, f"in {_where(seen)}", reading.source)


def _branch_of(catalog: Catalog, reading: Reading, release: Version) -> int | None:
    """Return the branch of a CUDA minor: that of its compat package, or of another release of it; None if
    unknown.
    """
    compat = [each.version.major for each in _compat(reading) if version_of(each) == release.minor]
    same = [each.driver_branch for each in catalog.toolkits if each.version.within(release.minor)]
    return max(compat or same, default=None)


def _libraries(proposal: Proposal, catalog: Catalog, reading: Reading) -> None:
    """Propose new releases and builds of cuDNN and NCCL, and new container toolkits, none older than the
    known ones.
    """
    for kind, known in (("cudnn", catalog.cudnn), ("nccl", catalog.nccl)):
        oldest = min(record.version for record in known)
        same = {record.version.parts[:3] for record in known}
        for release, seen in _held(reading, kind).items():  # type: ignore[arg-type]
            packaged_anew = reading.origin != "pypi" and kind == "cudnn" and release.parts[:3] in same
            if release >= oldest and not packaged_anew:
                _library(proposal, kind, release, seen, reading)
    known_toolkits = {record.version for record in catalog.container_toolkits}
    for release, seen in _held(reading, "container_toolkit").items():
        if release not in known_toolkits and release > min(known_toolkits):
            record = {"version": str(release), "source": [reading.source]}
            proposal.add("containers", "toolkits", record, f"in {_where(seen)}", reading.source)


def _library(proposal: Proposal, kind: str, release: Version, seen: list[Seen], reading: Reading) -> None:
    """Propose a record of one release, or further builds of a known one; a remark for a new release if no
    build was read.
    """
    wheels = sorted({int(each.details["major"]) for each in seen if reading.origin == "pypi"})
    builds = {each.details["cuda"] for each in seen if "cuda" in each.details}
    said: dict[str, list[Any]] = {
        "wheel_cuda_majors": wheels,
        "cuda_builds_seen": sorted(builds, key=Version),
    }
    said = {name: values for name, values in said.items() if values}
    name, why = str(release), f"in {_where(seen)}"
    record = proposal.record(kind, "releases", name)
    if record is None and said:
        proposal.add(
            kind, "releases", {"version": name, **said, "source": [reading.source]}, why, reading.source
        )
    elif record is None:
        proposal.remarks.append(
            f"{kind} {name} {why}, and no wheel of it was seen: its CUDA builds are not known"
        )
    for field, values in said.items() if record else ():
        old = record.get(field, []) if record else []
        if new := [each for each in values if each not in old]:
            grown = sorted([*old, *new], key=lambda each: Version(str(each)))
            proposal.set((kind, "releases", name), (field, grown), why, reading.source)


def _frameworks(proposal: Proposal, catalog: Catalog, reading: Reading) -> None:
    """Propose a record of each PyTorch and TensorFlow wheel in the reading."""
    for release, (seen, *_) in _held(reading, "torch").items():
        said = {key: value for key, value in seen.details.items() if value}
        cuda = Version(said["cuda_runtime"]) if "cuda_runtime" in said else None
        record: Document = {"version": str(release), "python": said.get("python", ""), **said}
        if cuda:
            record["cuda"] = str(cuda.minor)
            floor = catalog.minor_compat.get(cuda.major)
            record |= {"min_driver_minor_compat": str(floor.min_driver_linux)} if floor else {}
        record["source"] = [reading.source]
        proposal.add("frameworks", "pytorch_wheels", record, "metadata of the wheel", reading.source)
    for release, (seen, *_) in _held(reading, "tensorflow").items():
        said = {key: seen.details.get(key, "") for key in ("python", "cuda_runtime", "cudnn", "nccl")}
        record = {"version": str(release), "extra": "and-cuda", **said, "source": [reading.source]}
        proposal.add("frameworks", "tensorflow_wheels", record, "metadata of the wheel", reading.source)


def _archives(proposal: Proposal, catalog: Catalog, reading: Reading) -> None:
    """Propose the newer version of a driver in an archive, which keeps one version of each.

    An unknown or older driver becomes a remark.
    """
    held: dict[tuple[str, str, str], Version] = {}
    for each in reading.seen:
        if each.kind == "archive":
            key = (each.where, each.details["repository"], each.details["series"])
            held[key] = max(each.version, held.get(key, each.version))
    for (system, repository, series), release in held.items():
        record = proposal.record("systems", "systems", system) or {}
        rows: list[Document] = record.get("archive_drivers", [])
        of, named = (repository, series or None), " ".join(filter(None, (repository, series)))
        mine = [row for row in rows if row.get("version") and (row["repository"], row.get("series")) == of]
        known = max((Version(row["version"]) for row in mine), default=None)
        if known == release:
            continue
        if len(mine) != 1 or known is None or release < known:
            seen = f"driver {release} in {named}, where the catalog has {known or 'none'}"
            proposal.remarks.append(f"{system}: {seen}: to be looked at by hand")
            continue
        newer = {**mine[0], "version": str(release), "source": [reading.source]}
        to = ("archive_drivers", [newer if row is mine[0] else row for row in rows])
        why = f"{repository} has {release} instead of {known}"
        proposal.set(("systems", "systems", system), to, why, reading.source, stated_by=mine[0]["source"])

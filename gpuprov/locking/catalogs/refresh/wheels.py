"""Reader of wheels: versions in pip's configured package index, and requirements of new ones.

pip is called in the usual way; it reads only a wheel's metadata (PEP 658), if the index has it separately.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from heapq import nlargest
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from gpuprov.catalog import Catalog, Version, version
from gpuprov.errors import Unreachable
from gpuprov.locking.catalogs.pip import run_pip
from gpuprov.locking.catalogs.refresh.seen import Kind, NotRead, Reading, Readings, Seen
from gpuprov.untrusted.stated import stated_json

SOURCE = "pypi"
LARGEST = 8 << 30
"""Maximum size of a wheel in bytes, which pip downloads if the index has no metadata of it; PyTorch's have up
to 3 GB.
"""
LIBRARIES: dict[str, Kind] = {
    **{f"nvidia-cudnn-cu{major}": "cudnn" for major in (11, 12, 13)},
    **{f"nvidia-nccl-cu{major}": "nccl" for major in (11, 12, 13)},
    "cuda-toolkit": "cuda",
}
NEWEST = 20
"""Maximum number of new versions of a framework whose requirements are read, as pip runs for each."""
FRAMEWORKS: dict[str, Kind] = {"torch": "torch", "tensorflow": "tensorflow"}
_VERSION = re.compile(r"\d{1,4}(?:\.\d{1,5}){1,3}")
_AS_RELEASE = re.compile(r"(?<=\d\.\d\.\d)\.0\Z")
"""Pattern of a fourth number in some releases of the metapackage: 13.1.2.0."""


def read_wheels(catalog: Catalog, day: str) -> Readings:
    """Read the versions of cuDNN, NCCL, CUDA and the frameworks.

    Of frameworks only the newest versions are read (`NEWEST`), if newer than the catalog's, with their
    requirements. Returns one reading if any list was read, and a `NotRead` for each list that was not.
    """
    seen: list[Seen] = []
    failed: list[NotRead] = []
    lists: list[str] = []
    for name, kind in {**LIBRARIES, **FRAMEWORKS}.items():
        try:
            versions = list(dict.fromkeys(_versions(name)))
            if kind in FRAMEWORKS.values():
                known = _newest(catalog, kind)
                newer = nlargest(NEWEST, (each for each in versions if each > known))
                seen += [_asked_for(name, kind, each) for each in newer]
            else:
                major = {"major": name.rpartition("-cu")[2]} if "-cu" in name else {}
                seen += [Seen(kind, each, name, major) for each in versions]
        except Unreachable as error:
            failed.append(NotRead(f"wheels of {name}", str(error)))
            continue
        lists.append(name)
    if not lists:
        return failed
    about = {"title": f"PyPI: versions and metadata of {', '.join(lists)}", "dated": day}
    return [Reading(SOURCE, about, tuple(lists), tuple(seen)), *failed]


def _newest(catalog: Catalog, kind: Kind) -> Version:
    """Return the newest version of a framework in the catalog; 0 if it has none."""
    table = {"torch": "pytorch_wheels", "tensorflow": "tensorflow_wheels"}[kind]
    return max((record.version for record in catalog.tables[f"frameworks.{table}"]), default=version("0"))


def _versions(name: str) -> Iterator[Version]:
    """Yield those versions of a package in pip's index that consist only of numbers, cuda-toolkit's without
    a fourth number of 0.

    Raises:
        Unreachable: at the first item: pip fails or lists no version.
    """
    said = run_pip("index", "versions", name).decode("utf-8", "replace")
    listed = re.search(r"^Available versions: (.+)$", said, re.MULTILINE)
    if not listed:
        raise Unreachable(f"pip index versions {name} lists no version")
    for text in listed[1].split(", "):
        if _VERSION.fullmatch(text):
            yield version(_AS_RELEASE.sub("", text) if name == "cuda-toolkit" else text)


def _asked_for(name: str, kind: Kind, release: Version) -> Seen:
    """Return the requirements of a release's wheel, as the fields of its record.

    Raises:
        Unreachable: pip fails, or its report cannot be read.
    """
    said = run_pip(
        "install",
        "--dry-run",
        "--only-binary=:all:",
        "--no-deps",
        "--ignore-installed",
        "--quiet",
        "--report",
        "-",
        f"{name}=={release}",
        file=LARGEST,
    )
    try:
        metadata = stated_json(said)["install"][0]["metadata"]
    except (ValueError, LookupError, TypeError) as error:
        raise Unreachable(f"pip's report of {name} {release} cannot be read: {error!r}") from None
    return Seen(kind, release, name, dict(_fields(metadata)))


def _fields(metadata: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (field, version specifier) of a wheel's requirements: `python`, "" if it states none, and of
    `cuda_runtime`, `cudnn` and `nccl` those that it states (`>=3.10`; an exact version without `==`). Invalid
    requirements are left out.
    """
    yield "python", str(metadata.get("requires_python", ""))
    for text in metadata.get("requires_dist", ()):
        try:
            asked = Requirement(text)
        except InvalidRequirement:
            continue
        for field, pattern in (
            ("cuda_runtime", r"cuda-toolkit|nvidia-cuda-runtime(?:-cu\d+)?"),
            ("cudnn", r"nvidia-cudnn-cu\d+"),
            ("nccl", r"nvidia-nccl-cu\d+"),
        ):
            if re.fullmatch(pattern, asked.name):
                yield field, str(asked.specifier).removeprefix("==")

"""Packages of the mirror: templates of stanzas, filled with the versions of releases.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import as_file, files
from typing import Any

from debian.deb822 import Deb822

from gpuprov.catalog import Catalog
from gpuprov.catalog.records import System

DATA = files("gpuprov_lab.mirror")
ARCHITECTURES = {
    "apt": {"x86_64": "amd64", "aarch64": "arm64", "all": "all"},
    "dnf": {"x86_64": "x86_64", "aarch64": "aarch64", "all": "noarch"},
}
RELATIONS = ("Depends", "Recommends", "Provides", "Conflicts", "Replaces")
RPM_EPOCH = "3"
"""Epoch of NVIDIA's driver packages (`Epoch:` in nvidia-driver.spec)."""


@dataclass(frozen=True, slots=True)
class PackageSpec:
    """One package to build.

    Attributes:
        version: the full version in the package manager's form: `580.95.05-0ubuntu1`, `3:610.57.04-1.el9`.
        relations: Depends, Recommends, Provides, Conflicts and Replaces, in Debian's form for both
            package managers.
        streams: dnf module streams that own the package (`580-open`).
        pins: for a pinning package, the version pattern that it pins.
        files: path -> content, in addition to the stub's own documentation.
        links: path -> target of a symbolic link.
        scripts: `prerm` and such -> text; of an rpm `prein`, `post`, `preun` or `postun`.
        triggers: dpkg triggers that the installation activates (deb only).
    """

    name: str
    version: str
    architecture: str
    section: str = "misc"
    relations: Mapping[str, str] = field(default_factory=dict)
    streams: tuple[str, ...] = ()
    pins: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)
    triggers: tuple[str, ...] = ()


@cache
def releases() -> dict[str, Any]:
    """Return releases.json, the releases in the mirror."""
    loaded: dict[str, Any] = json.loads((DATA / "releases.json").read_text())
    return loaded


def read_set(name: str, manager: str, arch: str, branch: int = 0, **words: str) -> list[PackageSpec]:
    """Return the packages of one set for one architecture and, if its stanzas name branches, for one driver
    branch.

    Args:
        name: file of `sets/`, without its suffix.
        manager: `apt` or `dnf`.
        arch: `x86_64` or `aarch64`.
        words: values for the templates: `driver`, `full`, `cuda`, `major`, …
    """
    spelled = ARCHITECTURES[manager]
    words = {"all": spelled["all"], "branch": str(branch), **words}
    found: list[PackageSpec] = []
    for stanza in _stanzas(name):
        architecture = stanza.get("Architecture", spelled[arch]).format(**words)
        if architecture not in (spelled[arch], spelled["all"]) or not _covers(
            stanza.get("Branches", "-"), branch
        ):
            continue
        for package in stanza["Package"].split():
            found.append(_spec(stanza, package, architecture, words))
    return found


@cache
def _stanzas(name: str) -> tuple[dict[str, str], ...]:
    """Return the stanzas of a set's file: field → value."""
    text = (DATA / "sets" / f"{name}.control").read_text()
    return tuple(dict(stanza) for stanza in Deb822.iter_paragraphs(text))


def _spec(stanza: Mapping[str, str], name: str, architecture: str, words: Mapping[str, str]) -> PackageSpec:
    """Return the package that a stanza describes, with `words` in place of its placeholders."""
    return PackageSpec(
        name=name.format(**words),
        version=stanza["Version"].format(**words),
        architecture=architecture,
        section=stanza.get("Section", "misc"),
        relations={kind: stanza[kind].format(**words) for kind in RELATIONS if kind in stanza},
        streams=tuple(stanza.get("Streams", "").format(**words).split()),
        pins=stanza.get("Pins", "").format(**words),
    )


def _covers(branches: str, branch: int) -> bool:
    """Return whether `590-614`, `580-` or `-579` contains the branch."""
    first, _, last = branches.partition("-")
    return int(first or 0) <= branch <= int(last or branch)


def cuda_repository(system: System, arch: str, catalog: Catalog) -> list[PackageSpec]:
    """Return the packages of NVIDIA's CUDA repository for one system, each name and version once."""
    found = [spec for release in _drivers(system) for spec in _driver(system, arch, release)]
    found += _toolkits(system, arch, catalog)
    found += _libraries(system, arch, catalog)
    for name in ("dcgm", "nvlsm", "gds"):
        for held in releases()[name]:
            found += read_set(name, system.manager, arch, **{name: held})
    found += toolkit_repository(system.manager, arch)
    return _newest_definitions(found)


def toolkit_repository(manager: str, arch: str) -> list[PackageSpec]:
    """Return the packages of NVIDIA's container-toolkit repository, one for all
    systems of a package manager.
    """
    return [
        replace(spec, files=contents(spec.name))
        for version in releases()["container_toolkit"]
        for spec in read_set("container-toolkit", manager, arch, toolkit=version)
    ]


@cache
def contents(package: str) -> dict[str, bytes]:
    """Return path → content of a stub's files that nodes run, from `contents/PACKAGE/`; empty without that
    folder.
    """
    with as_file(DATA) as folder:
        root = folder / "contents" / package
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def _drivers(system: System) -> Iterator[dict[str, Any]]:
    """Yield the driver releases in the system's repository, as in releases.json."""
    for release in releases()["drivers"]:
        branch = int(release["driver"].split(".")[0])
        within = (system.driver_first or 0) <= branch <= (system.driver_last or branch)
        if system.family in release["revision"] and within:
            yield release


def _driver(system: System, arch: str, release: Mapping[str, Any]) -> list[PackageSpec]:
    """Return all packages of one driver release. Of their streams only those with a kernel module are kept,
    none on RHEL 10.
    """
    driver = release["driver"]
    branch = int(driver.split(".")[0])
    full = f"{driver}-{release['revision'][system.family]}"
    words = {"driver": driver, "full": full}
    if system.manager == "dnf":
        words |= {"full": f"{RPM_EPOCH}:{full}.{_dist(system)}", "evr": f"{RPM_EPOCH}:{driver}"}
    specs: list[PackageSpec] = []
    for entry in releases()["driver_sets"]:
        fits = entry.get("family", system.family) == system.family
        fits = fits and entry.get("manager", system.manager) == system.manager
        if fits and entry.get("from", 0) <= branch <= entry.get("to", branch):
            specs += read_set(entry["set"], system.manager, arch, branch, **words)
    modules = {stream for spec in specs if spec.name.startswith("kmod-") for stream in spec.streams}
    real = modules if system.streams else set()
    return [replace(spec, streams=tuple(s for s in spec.streams if s in real)) for spec in specs]


def _dist(system: System) -> str:
    """Return rpm's `%{dist}`: `el9` on rhel9."""
    return system.folder.replace("rhel", "el")


def _toolkits(system: System, arch: str, catalog: Catalog) -> Iterator[PackageSpec]:
    """Yield the packages of each CUDA toolkit that the system supports, and of its forward compatibility."""
    known = {str(toolkit.version): toolkit for toolkit in catalog.toolkits}
    for held in releases()["cuda"]:
        toolkit = known[held]
        too_old = system.cuda_first is not None and toolkit.version < system.cuda_first
        too_new = system.cuda_last is not None and toolkit.version > system.cuda_last
        if too_old or too_new:
            continue
        major, minor, _ = held.split(".")
        words = {"cuda": held, "major": major, "dashed": f"{major}-{minor}"}
        yield from read_set(releases()["cuda_sets"].get(held, "cuda"), system.manager, arch, **words)
        driver = toolkit.driver_bundled_linux_x86_64
        if driver:
            revision = {"apt": "0ubuntu1", "dnf": f"1.{_dist(system)}"}[system.manager]
            words["full"] = f"{releases()['compat'].get(held, driver)}-{revision}"
            yield from read_set("cuda-compat", system.manager, arch, **words)


def _libraries(system: System, arch: str, catalog: Catalog) -> Iterator[PackageSpec]:
    """Yield every release of cuDNN and NCCL in the catalog, and cuDNN 8."""
    prefix = "rhel-" if system.manager == "dnf" else ""
    for held in releases()["cudnn8"]:
        yield from read_set(f"{prefix}cudnn8", system.manager, arch, **held)
    for release in catalog.cudnn:
        version = releases()["cudnn_revised"].get(str(release.version), str(release.version))
        for major in release.wheel_cuda_majors if version.startswith("9.") else ():
            words = {"cudnn": version, "major": str(major)}
            yield from read_set(f"{prefix}cudnn9", system.manager, arch, **words)
    for nccl in catalog.nccl:
        for build in nccl.cuda_builds_seen:
            words = {"nccl": str(nccl.version), "build": str(build)}
            yield from read_set(f"{prefix}nccl", system.manager, arch, **words)


def _newest_definitions(specs: list[PackageSpec]) -> list[PackageSpec]:
    """Return the packages with each name, version and architecture once, the last definition of it."""
    return list({(spec.name, spec.version, spec.architecture): spec for spec in specs}.values())

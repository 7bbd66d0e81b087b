"""Loader of the catalog's files: a release's own facts, overlaid by a site's folders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from gpuprov.catalog import records as r
from gpuprov.catalog.catalog import Catalog
from gpuprov.catalog.checking import check_bulletins, check_dates
from gpuprov.catalog.devices import ROW, Devices, Table
from gpuprov.catalog.reading import BadField, read
from gpuprov.catalog.releases import current_folder
from gpuprov.catalog.tables import Tables
from gpuprov.catalog.texts import check_texts
from gpuprov.errors import InvalidInput
from gpuprov.untrusted.stated import read_stated_json, require_small, stated_file

# file → section → (record type, key field)
LAYOUT: Mapping[str, Mapping[str, tuple[type[Any], str]]] = {
    "cuda": {
        "releases": (r.Toolkit, "version"),
        "never_published": (r.UnpublishedToolkit, "version"),
        "minor_version_compat": (r.MinorCompat, "cuda_major"),
        "architectures": (r.Architecture, "compute_capability"),
        "forward_compat": (r.ForwardCompat, "cuda"),
        "host_limits": (r.HostLimit, "first"),
        "early_drivers": (r.EarlyDriver, "cuda"),
    },
    "gpus": {"segments": (r.Segment, "segment"), "gpus": (r.GpuModel, "id")},
    "drivers": {
        "branches": (r.Branch, "branch"),
        "known_issues": (r.KnownIssue, "id"),
        "release_dates": (r.DriverDates, "branch"),
        "module_dates": (r.ModuleDates, "component"),
        "kernel_dates": (r.KernelDate, "first"),
    },
    "cudnn": {
        "releases": (r.Cudnn, "version"),
        "builds": (r.BuildRange, "first"),
        "capability_floors": (r.CapabilityFloor, "after"),
    },
    "nccl": {
        "releases": (r.Nccl, "version"),
        "builds": (r.BuildRange, "cuda_major"),
        "code_floors": (r.CodeFloor, "cuda_major"),
        "failures": (r.NcclFailure, "version"),
    },
    "frameworks": {
        "pytorch_wheels": (r.TorchWheel, "version"),
        "pytorch_builds": (r.TorchBuilds, "version"),
        "wheel_floors": (r.WheelFloor, ""),
        "cpu_wheels": (r.CpuWheel, "framework"),
        "jax_builds": (r.JaxBuild, "first"),
        "tensorflow_tested": (r.TensorflowTested, "version"),
        "tensorflow_wheels": (r.TensorflowWheel, "version"),
    },
    "containers": {
        "toolkits": (r.ContainerToolkit, "version"),
        "docker_needs": (r.EngineNeed, "what"),
        "docker_cdi_needs": (r.EngineNeed, "what"),
        "containerd_needs": (r.EngineNeed, "what"),
        "podman_needs": (r.EngineNeed, "what"),
        "dra_needs": (r.EngineNeed, "what"),
        "compute_domain_needs": (r.EngineNeed, "what"),
        "limits": (r.ContainerLimit, "rule"),
    },
    "systems": {
        "systems": (r.System, "id"),
        "families": (r.Family, "names"),
        "repositories": (r.Repository, "id"),
    },
    "packages": {
        "packages": (r.PackageRule, ""),
        "storage_clients": (r.StorageClient, "client"),
        "holds": (r.HoldRule, ""),
    },
    "policies": {"policies": (r.Policy, "name")},
    "instances": {"instances": (r.InstanceType, "id")},
    "doubts": {"doubts": (r.Doubt, "id")},
    "bulletins": {"bulletins": (r.Bulletin, "id")},
    "limits": {"limits": (r.Limit, "id")},
}
LATER = ("bulletins", "limits")
"""Files that older releases of the catalog lack: their sections are then empty."""
DEVICES = "devices"
"""The file whose rows become records on demand."""
SITE_BYTES = 8 << 20
"""Maximum size of all files of a site's folders in bytes: that of ten catalogs."""

# Fields that a GPU inherits from its architecture: field of the architecture → field of the GPU.
OF_ARCHITECTURE = {
    "architecture": "architecture",
    "first_cuda": "first_cuda",
    "last_cuda": "last_cuda",
    "first_driver_branch": "min_driver_branch",
    "last_driver_branch": "max_driver_branch",
    "open_kernel_module": "open_kernel_module",
    "lgc_supported": "lgc_supported",
    "lmc_runtime": "lmc_runtime",
}
OF_SEGMENT = ("forward_compat", "ecc", "mig", "application_clocks")

Raw = dict[str, Any]
Layers = list[tuple[Path, Raw]]


def load(site_dirs: Iterable[Path] = (), release: Path | None = None) -> Catalog:
    """Load the catalog, overlaid by the same-named files of site folders, in order; once for the same
    folders.

    A site's record replaces fields of the catalog's record with the same name, or is added. It needs a
    source: keys of the file's own `sources`, or of the catalog's.

    Args:
        release: the folder of a release; by default the newest release on this machine.

    Raises:
        InvalidInput: a folder or file that cannot be read, or an invalid record; names file, record, field.
        Refused: the newest release was modified.
    """
    return _load(release or current_folder(), *(Path(folder) for folder in site_dirs))


@cache
def _load(*folders: Path) -> Catalog:
    """Read folders, once for each combination of them; raises as `read_data`.

    Records are read on demand, unless a site's folder is there, which nothing else has checked.
    """
    return read_data(*folders) if folders[1:] else _read(folders)


def read_data(*folders: Path) -> Catalog:
    """Read a complete folder, the first one, and site folders, without a cache.

    Raises:
        InvalidInput: as `load`.
    """
    catalog = _read(folders)
    list(catalog.tables.values())
    return catalog


def _read(folders: tuple[Path, ...]) -> Catalog:
    """Return the catalog in folders, whose records are read on demand; raises as `read_data`."""
    tables: dict[str, Callable[[], tuple[Any, ...]]] = {}
    facts: dict[str, dict[str, Any]] = {}
    sources: dict[str, r.Source] = {}
    days: dict[str, str] = {}
    default_policy = ""
    of_site = [folder / f"{name}.json" for folder in folders[1:] for name in (*LAYOUT, DEVICES)]
    require_small(of_site, SITE_BYTES, "the files of catalog_dirs")
    documents = {name: _documents(name, folders) for name in LAYOUT}
    for layers in documents.values():
        for path, raw in layers:
            sources |= _sources(path, raw)
    for folder in folders[1:]:
        if (path := folder / f"{DEVICES}.json").exists():
            sources |= _sources(path, _parse(path))
    known = Known(sources, frozenset(_merged(documents["doubts"], "doubts", "id")))
    whole = Whole(documents)
    for name, layout in LAYOUT.items():
        layers = documents[name]
        raw = layers[0][1]
        days[name], default_policy = raw["as_of"], raw.get("default", default_policy)
        for section, (kind, key) in layout.items():
            complete = whole.complete if kind is r.GpuModel else None
            tables[f"{name}.{section}"] = partial(_table, layers, section, kind, key, known, complete)
        own = {*layout, "as_of", "sources", "fields", "default"}
        facts[name] = {section: value for section, value in raw.items() if section not in own}
    devices = _devices(folders, whole, known)
    catalog = Catalog(max(days.values()), Tables(tables), sources, facts, devices, default_policy, days)
    check_bulletins(catalog)
    check_dates(catalog)
    return catalog


def _sources(path: Path, raw: Raw) -> dict[str, r.Source]:
    """Return the sources of a file by their keys; InvalidInput for one that is not valid."""
    stated = _section(path, raw, "sources", dict)
    return {key: read_record(r.Source, each, f"{path.name}: sources.{key}") for key, each in stated.items()}


@dataclass(frozen=True)
class Known:
    """Sources and ids of doubts that records can name."""

    sources: Mapping[str, r.Source]
    doubts: frozenset[str]

    def check(self, record: Any, place: str) -> None:
        """Check that a record names known sources and doubts.

        Args:
            place: name of the record for the message.

        Raises:
            InvalidInput: one is not known.
        """
        for field, known in (("source", self.sources), ("doubts", self.doubts)):
            for named in getattr(record, field, ()):
                if named not in known:
                    seen = f"{place}.{field}: {named!r} is in no {field.rstrip('s')}s section"
                    raise InvalidInput(seen, expected="a known key")


class Whole:
    """Defaults of a GPU's record from its architecture and segment."""

    def __init__(self, documents: Mapping[str, Layers]) -> None:
        self._architectures = _merged(documents["cuda"], "architectures", "compute_capability")
        self._segments = _merged(documents["gpus"], "segments", "segment")

    def complete(self, raw: Raw) -> Raw:
        """Return a record with the defaults of its architecture and its segment; its own fields take
        precedence.
        """
        architecture, _ = self._architectures.get(str(raw.get("compute_capability")), ({}, ""))
        segment, _ = self._segments.get(str(raw.get("segment")), ({}, ""))
        whole = {name: architecture[of] for of, name in OF_ARCHITECTURE.items() if of in architecture}
        whole |= {name: segment[name] for name in OF_SEGMENT if name in segment}
        if architecture.get("mig") is False:
            whole["mig"] = False
        return whole | raw


def _devices(folders: tuple[Path, ...], whole: Whole, known: Known) -> Devices:
    """Return the devices; the catalog's rows are read on demand, a site's at once to report invalid ones.

    Raises:
        InvalidInput: a site's row or file is not valid.
    """

    @cache
    def layers() -> Layers:
        return _documents(DEVICES, folders)

    def table() -> Table:
        rows, own = _merged(layers(), "devices", "id"), layers()[0][1]
        releases = {release for each in own["tables_read"].values() for release in each.split()}
        return {name: row for name, (row, _) in rows.items()}, tuple(own["id_runs"]), tuple(releases)

    def make(raw: Raw) -> r.GpuModel:
        place = f"{DEVICES}.json: devices[{raw['id']}]"
        gpu: r.GpuModel = read_record(r.GpuModel, whole.complete(raw), place)
        known.check(gpu, place)
        return gpu

    devices = Devices(table, make)
    if any((folder / f"{DEVICES}.json").exists() for folder in folders[1:]):
        for path, document in layers()[1:]:
            with stated_file(f"{path}: devices", expected=ROW):
                for row in _section(path, document, "devices", list):
                    devices.get(str(row["id"]))
    return devices


def _documents(name: str, folders: tuple[Path, ...]) -> Layers:
    """Return path and content of a file in each folder, the catalog's first; a site's folder may lack it.

    Raises:
        InvalidInput: a folder does not exist, or a file cannot be read.
    """
    data, *site_dirs = folders
    own = data / f"{name}.json"
    layers = [(own, {"as_of": ""} if name in LATER and not own.exists() else _parse(own))]
    for folder in site_dirs:
        if not folder.is_dir():
            raise InvalidInput(f"{folder}: no such folder", do="correct catalog_dirs")
        if (path := folder / f"{name}.json").exists():
            layers.append((path, _parse(path)))
    return layers


def _parse(path: Path) -> Raw:
    """Return the content of a JSON file.

    Raises:
        InvalidInput: it cannot be read, or is not an object.
    """
    raw = read_stated_json(path, expected="a JSON document")
    if not isinstance(raw, dict):
        raise InvalidInput(f"{path}: not an object", expected="a JSON object with sections")
    return raw


def _section(path: Path, raw: Raw, name: str, kind: Callable[[], Any]) -> Any:
    """Return a section of a file, empty if missing; InvalidInput if it is not of `kind`, `dict` or `list`."""
    value = raw.get(name, kind())
    if not isinstance(value, type(kind())):
        raise InvalidInput(f"{path}: {name} is not {'an object' if kind is dict else 'a list'}")
    return value


def _merged(layers: Layers, section: str, key: str) -> dict[str, tuple[Raw, str]]:
    """Merge the layers of a section: name → (record, its place), later layers override field by field.

    Records without a name are searched in order, so a later layer's come first.

    Raises:
        InvalidInput: a record is not an object.
    """
    found: dict[str, tuple[Raw, str]] = {}
    for path, document in layers:
        layer: dict[str, tuple[Raw, str]] = {}
        for index, raw in enumerate(_section(path, document, section, list)):
            name = str(raw.get(key, index)) if key and isinstance(raw, dict) else f"{path}#{index}"
            place = f"{path}: {section}[{index if '#' in name else name}]"
            if not isinstance(raw, dict):
                raise InvalidInput(f"{place}: {raw!r}", expected="an object")
            layer[name] = {**found.get(name, ({}, ""))[0], **raw}, place
        found = {**found, **layer} if key else {**layer, **found}
    return found


RECORDS = 500
"""Maximum number of records in a section: several are compared with each other; gpuprov's largest has 74."""


def _table(
    layers: Layers,
    section: str,
    kind: type[Any],
    key: str,
    known: Known,
    complete: Callable[[Raw], Raw] | None,
) -> tuple[Any, ...]:
    """Return the typed records of a section with all layers merged and defaults added by `complete`.

    InvalidInput for one that is not valid, or names an unknown source or doubt, and for more than `RECORDS`.
    """
    records = []
    merged = _merged(layers, section, key)
    if len(merged) > RECORDS:
        raise InvalidInput(f"{layers[-1][0]}: {len(merged)} {section}", expected=f"at most {RECORDS}")
    for raw, place in merged.values():
        records.append(read_record(kind, complete(raw) if complete else raw, place))
        known.check(records[-1], place)
    return tuple(records)


def read_record(kind: type[Any], raw: Any, place: str) -> Any:
    """Return a typed record from a JSON object.

    Raises:
        InvalidInput: a field is not valid; `place` names the record.
    """
    try:
        record = read(kind, raw)
        check_texts(record)
    except BadField as bad:
        dot = "." if bad.path[:1].isalpha() else ""
        raise InvalidInput(f"{place}{dot}{bad.path}: {bad.seen}", expected=bad.expected) from None
    return record

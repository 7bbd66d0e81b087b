"""The catalog in memory: the package's own facts, with a site's folders laid over them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from gpuprov.catalog import records as r
from gpuprov.catalog.reading import BadField, read
from gpuprov.catalog.version import Version
from gpuprov.errors import InvalidInput

DATA = Path(__file__).parent / "data"

# file → section → (record type, the field that names a record)
LAYOUT: Mapping[str, Mapping[str, tuple[type[Any], str]]] = {
    "gpus": {"gpus": (r.Gpu, "id")},
    "drivers": {"branches": (r.Branch, "branch"), "known_issues": (r.KnownIssue, "id")},
    "cuda": {
        "releases": (r.Toolkit, "version"),
        "never_published": (r.UnpublishedToolkit, "version"),
        "minor_version_compat": (r.MinorCompat, "cuda_major"),
        "architectures": (r.Architecture, "compute_capability"),
        "forward_compat": (r.ForwardCompat, "cuda"),
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
        "tensorflow_tested": (r.TensorflowTested, "version"),
        "tensorflow_wheels": (r.TensorflowWheel, "version"),
    },
    "containers": {
        "toolkits": (r.ContainerToolkit, "version"),
        "docker_needs": (r.EngineNeed, "what"),
        "containerd_needs": (r.EngineNeed, "what"),
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
}


@dataclass(frozen=True, eq=False)
class Catalog:
    """All facts, typed. `load` makes one; every table is in the order of its file.

    `facts` holds what no rule reads (clock commands, set-up steps, traps, tables as published), by file and
    section.
    """

    as_of: str
    """The day the facts speak of, ISO. "Supported" and "end of life" are judged on that day, not on
    today's."""
    tables: Mapping[str, tuple[Any, ...]]
    sources: Mapping[str, r.Source]
    facts: Mapping[str, Mapping[str, Any]]
    default_policy: str
    _cited: dict[tuple[str, ...], str] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def gpus(self) -> tuple[r.Gpu, ...]:
        """GPU models."""
        return self.tables["gpus.gpus"]

    @cached_property
    def branches(self) -> Mapping[int, r.Branch]:
        """Driver branches by number, oldest first."""
        ordered = sorted(self.tables["drivers.branches"], key=lambda record: record.branch)
        return {branch.branch: branch for branch in ordered}

    @cached_property
    def known_issues(self) -> tuple[r.KnownIssue, ...]:
        """Failures that somebody met."""
        return self.tables["drivers.known_issues"]

    @cached_property
    def known_drivers(self) -> frozenset[Version]:
        """Every driver version that any table names."""
        named = {v for branch in self.branches.values() for v in branch.known_versions}
        for toolkit in self.toolkits:
            paired = (toolkit.driver_corresponding_linux_x86_64, toolkit.driver_bundled_linux_x86_64)
            named |= {driver for driver in paired if driver}
        return frozenset(named)

    @cached_property
    def toolkits(self) -> tuple[r.Toolkit, ...]:
        """CUDA toolkit releases, oldest first."""
        return _by_version(self.tables["cuda.releases"])

    @cached_property
    def released_toolkits(self) -> tuple[r.Toolkit, ...]:
        """CUDA toolkits that were really released, oldest first."""
        return tuple(toolkit for toolkit in self.toolkits if toolkit.status == "released")

    @cached_property
    def minor_compat(self) -> Mapping[int, r.MinorCompat]:
        """Driver floors by CUDA major."""
        return {row.cuda_major: row for row in self.tables["cuda.minor_version_compat"]}

    @cached_property
    def forward_compat(self) -> Mapping[Version, r.ForwardCompat]:
        """The forward-compatibility matrix by CUDA minor."""
        return {row.cuda: row for row in self.tables["cuda.forward_compat"]}

    @cached_property
    def cudnn(self) -> tuple[r.Cudnn, ...]:
        """cuDNN releases, oldest first."""
        return _by_version(self.tables["cudnn.releases"])

    @cached_property
    def cudnn_by_version(self) -> Mapping[Version, r.Cudnn]:
        """cuDNN releases by their full version."""
        return {record.version: record for record in self.cudnn}

    @cached_property
    def nccl(self) -> tuple[r.Nccl, ...]:
        """NCCL releases, oldest first."""
        return _by_version(self.tables["nccl.releases"])

    @cached_property
    def nccl_by_version(self) -> Mapping[Version, r.Nccl]:
        """NCCL releases by version."""
        return {record.version: record for record in self.nccl}

    @cached_property
    def container_toolkits(self) -> tuple[r.ContainerToolkit, ...]:
        """Container-toolkit releases, oldest first."""
        return _by_version(self.tables["containers.toolkits"])

    @cached_property
    def systems(self) -> Mapping[str, r.System]:
        """Operating systems by id."""
        return {system.id: system for system in self.tables["systems.systems"]}

    @cached_property
    def repositories(self) -> Mapping[str, r.Repository]:
        """Package repositories by id."""
        return {repository.id: repository for repository in self.tables["systems.repositories"]}

    @cached_property
    def instances(self) -> Mapping[str, r.InstanceType]:
        """Machine types of clouds by id, `aws:p5.48xlarge`."""
        return {instance.id: instance for instance in self.tables["instances.instances"]}

    @cached_property
    def policies(self) -> Mapping[str, r.Policy]:
        """Policies by name."""
        return {policy.name: policy for policy in self.tables["policies.policies"]}

    def hold_patterns(self, component: str, manager: str) -> tuple[str, ...]:
        """Shell patterns of the packages that belong to a component; one with `!` excludes."""
        rule = self._hold_rule(component, manager)
        return (*rule.patterns, *rule.shared) if rule else ()

    def own_patterns(self, component: str, manager: str) -> tuple[str, ...]:
        """The same without packages that serve others as well."""
        rule = self._hold_rule(component, manager)
        return rule.patterns if rule else ()

    def _hold_rule(self, component: str, manager: str) -> r.HoldRule | None:
        rules: tuple[r.HoldRule, ...] = self.tables["packages.holds"]
        return next((each for each in rules if (each.component, each.manager) == (component, manager)), None)

    def storage_client(self, client: str, family: str) -> r.StorageClient | None:
        """The package that mounts such a file system on systems of a family; None where none is known."""
        rows: tuple[r.StorageClient, ...] = self.tables["packages.storage_clients"]
        return next((row for row in rows if row.client == client and family in row.family), None)

    def cite(self, *keys: str) -> str:
        """Titles, addresses and dates of sources, for a person."""
        if keys not in self._cited:
            self._cited[keys] = "; ".join(str(self.sources[key]) for key in keys)
        return self._cited[keys]


def _by_version(records: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(sorted(records, key=lambda record: record.version))


def load(site_dirs: Iterable[Path] = ()) -> Catalog:
    """The package's catalog, with the same-named files of site folders laid over it, in order.

    A site's record replaces fields of the package's record of the same name, or is added. It needs a source:
    keys of the file's own `sources`, or of the package's.

    Raises:
        InvalidInput: a folder or file that cannot be read, a record that does not fit; names file, record,
        field.
    """
    return _load(tuple(Path(folder) for folder in site_dirs))


@cache
def _load(site_dirs: tuple[Path, ...]) -> Catalog:
    tables: dict[str, tuple[Any, ...]] = {}
    facts: dict[str, dict[str, Any]] = {}
    sources: dict[str, r.Source] = {}
    as_of, default_policy = "", ""
    documents = {name: _documents(name, site_dirs) for name in LAYOUT}
    for layers in documents.values():
        for path, raw in layers:
            for key, source in _section(path, raw, "sources", dict).items():
                sources[key] = _record(r.Source, source, f"{path.name}: sources.{key}")
    for name, layers in documents.items():
        raw = layers[0][1]
        as_of, default_policy = max(as_of, raw["as_of"]), raw.get("default", default_policy)
        for section, (kind, key) in LAYOUT[name].items():
            tables[f"{name}.{section}"] = tuple(_merged(layers, section, kind, key, sources))
        own = {*LAYOUT[name], "as_of", "sources", "fields", "default"}
        facts[name] = {section: value for section, value in raw.items() if section not in own}
    return Catalog(as_of, tables, sources, facts, default_policy)


def _documents(name: str, site_dirs: tuple[Path, ...]) -> list[tuple[Path, dict[str, Any]]]:
    layers = [(DATA / f"{name}.json", _parse(DATA / f"{name}.json"))]
    for folder in site_dirs:
        if not folder.is_dir():
            raise InvalidInput(f"{folder}: no such folder", do="correct catalog_dirs")
        if (path := folder / f"{name}.json").exists():
            layers.append((path, _parse(path)))
    return layers


def _parse(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path}: {error}", expected="a JSON document") from None
    if not isinstance(raw, dict):
        raise InvalidInput(f"{path}: not an object", expected="a JSON object with sections")
    return raw


def _section(path: Path, raw: dict[str, Any], name: str, kind: Callable[[], Any]) -> Any:
    value = raw.get(name, kind())
    if not isinstance(value, type(kind())):
        raise InvalidInput(f"{path}: {name} is not {'an object' if kind is dict else 'a list'}")
    return value


def _merged(
    layers: list[tuple[Path, dict[str, Any]]],
    section: str,
    kind: type[Any],
    key: str,
    sources: Mapping[str, r.Source],
) -> Iterable[Any]:
    """Records of a section, each laid field by field over the one of the same name in earlier layers.

    Records without a name are searched in order, so a later layer's go first.
    """
    raws: dict[str, dict[str, Any]] = {}
    places: dict[str, str] = {}
    for path, document in layers:
        layer: dict[str, dict[str, Any]] = {}
        for index, raw in enumerate(_section(path, document, section, list)):
            name = str(raw.get(key, index)) if key and isinstance(raw, dict) else f"{path}#{index}"
            places[name] = f"{path}: {section}[{index if '#' in name else name}]"
            if not isinstance(raw, dict):
                raise InvalidInput(f"{places[name]}: {raw!r}", expected="an object")
            layer[name] = {**raws.get(name, {}), **raw}
        raws = {**raws, **layer} if key else {**layer, **raws}
    for name, raw in raws.items():
        record = _record(kind, raw, places[name])
        for cited in getattr(record, "source", ()):
            if cited not in sources:
                raise InvalidInput(
                    f"{places[name]}.source: {cited!r} is in no sources section", expected="a known key"
                )
        yield record


def _record(kind: type[Any], raw: Any, place: str) -> Any:
    try:
        return read(kind, raw)
    except BadField as bad:
        dot = "." if bad.path[:1].isalpha() else ""
        raise InvalidInput(f"{place}{dot}{bad.path}: {bad.seen}", expected=bad.expected) from None

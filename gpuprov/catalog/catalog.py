"""The catalog in memory: typed tables, and look-ups by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gpuprov.catalog import records as r
from gpuprov.catalog.devices import Devices
from gpuprov.catalog.version import Version


@dataclass(frozen=True, eq=False)
class Catalog:
    """All facts, typed, as `load` returns them; every table is in the order of its file.

    `facts` contains what no rule uses (clock commands, set-up steps, traps, tables as published), by file and
    section.
    """

    as_of: str
    """Day of the facts in ISO format; "supported" and "end of life" are judged on that day, not on today's.
    """
    tables: Mapping[str, tuple[Any, ...]]
    sources: Mapping[str, r.Source]
    facts: Mapping[str, Mapping[str, Any]]
    devices: Devices
    """GPUs of the lists of devices, in addition to the boards, which have their own records."""
    default_policy: str
    days: Mapping[str, str] = field(default_factory=dict)
    """Day of each file's facts in ISO format."""
    memo: dict[str, Any] = field(default_factory=dict, repr=False)
    """Cache of data derived from the catalog, such as indexes of names."""
    _cited: dict[tuple[str, ...], str] = field(default_factory=dict, repr=False)

    @cached_property
    def boards(self) -> tuple[r.GpuModel, ...]:
        """GPU models with their own record."""
        return self.tables["gpus.gpus"]

    @cached_property
    def gpus(self) -> tuple[r.GpuModel, ...]:
        """All GPU models: boards, then those of the lists of devices. Takes milliseconds; for one model use
        `gpu`.
        """
        return (*self.boards, *self.devices.all())

    @cached_property
    def _boards_by_id(self) -> Mapping[str, r.GpuModel]:
        """Boards by id in lower case."""
        return {gpu.id.lower(): gpu for gpu in self.boards}

    def gpu(self, id: str) -> r.GpuModel | None:  # noqa: A002 - as the records spell it
        """Return the GPU model with that id, in upper or lower case, or None."""
        return self._boards_by_id.get(id.lower()) or self.devices.get(id)

    def place(self, gpu: r.GpuModel) -> tuple[int, int | str]:
        """Return a GPU's sort key in the catalog's order: boards first, then the others by their first
        device id.
        """
        if gpu in self.boards:
            return 0, self.boards.index(gpu)
        return 1, gpu.pci_device_ids[0]

    @cached_property
    def doubts(self) -> Mapping[str, r.Doubt]:
        """Contradictions between sources and records, by id."""
        return {doubt.id: doubt for doubt in self.tables["doubts.doubts"]}

    @cached_property
    def branches(self) -> Mapping[int, r.Branch]:
        """Driver branches by number, oldest first."""
        ordered = sorted(self.tables["drivers.branches"], key=lambda record: record.branch)
        return {branch.branch: branch for branch in ordered}

    @cached_property
    def known_issues(self) -> tuple[r.KnownIssue, ...]:
        """Known failures of drivers."""
        return self.tables["drivers.known_issues"]

    @cached_property
    def driver_dates(self) -> Mapping[int, r.DriverDates]:
        """Days of releases by driver branch, also of branches without a record of their own."""
        return {record.branch: record for record in self.tables["drivers.release_dates"]}

    @cached_property
    def bulletins(self) -> Mapping[str, r.Bulletin]:
        """Security bulletins by number, oldest first; empty in a release of the catalog without them."""
        ordered = sorted(self.tables["bulletins.bulletins"], key=lambda record: record.published)
        return {bulletin.id: bulletin for bulletin in ordered}

    @property
    def bulletins_as_of(self) -> str | None:
        """Day of the bulletins in ISO format; None in a release of the catalog without them."""
        return self.days.get("bulletins") or None

    @cached_property
    def known_drivers(self) -> frozenset[Version]:
        """Every driver version in any table."""
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
        """CUDA toolkits with status `released`, oldest first."""
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
        """Return shell patterns of a component's packages, also shared ones; `!` excludes. Empty without
        a rule.
        """
        rule = self._hold_rule(component, manager)
        return (*rule.patterns, *rule.shared) if rule else ()

    def own_patterns(self, component: str, manager: str) -> tuple[str, ...]:
        """Return the component's patterns without packages that other components also use; empty without
        a rule.
        """
        rule = self._hold_rule(component, manager)
        return rule.patterns if rule else ()

    def _hold_rule(self, component: str, manager: str) -> r.HoldRule | None:
        """Return the rule about a component's packages for a package manager, or None."""
        rules: tuple[r.HoldRule, ...] = self.tables["packages.holds"]
        return next((each for each in rules if (each.component, each.manager) == (component, manager)), None)

    def storage_client(self, client: str, family: str) -> r.StorageClient | None:
        """Return the package that mounts a kind of file system on systems of a family, or None."""
        rows: tuple[r.StorageClient, ...] = self.tables["packages.storage_clients"]
        return next((row for row in rows if row.client == client and family in row.family), None)

    def cite(self, *keys: str) -> str:
        """Return titles, addresses and dates of sources as text, separated by `; `."""
        if keys not in self._cited:
            self._cited[keys] = "; ".join(str(self.sources[key]) for key in keys)
        return self._cited[keys]


def _by_version(records: Iterable[Any]) -> tuple[Any, ...]:
    """Return records in the order of their versions, oldest first."""
    return tuple(sorted(records, key=lambda record: record.version))

"""The catalog as tables by name, and single records with their sources."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from gpuprov.catalog.catalog import Catalog
from gpuprov.catalog.gpu_names import find_gpu, instance_named
from gpuprov.catalog.identity import find_system
from gpuprov.catalog.platforms import platforms
from gpuprov.catalog.rules.driver import oldest_driver
from gpuprov.catalog.version import Version
from gpuprov.errors import InvalidInput

SCHEMA = "gpuprov.catalog/1"

Plain = dict[str, Any]

TABLES: dict[str, Callable[[Catalog], Iterable[Any]]] = {
    "gpus": lambda catalog: catalog.gpus,
    "drivers": lambda catalog: catalog.branches.values(),
    "cuda": lambda catalog: catalog.toolkits,
    "cudnn": lambda catalog: catalog.cudnn,
    "nccl": lambda catalog: catalog.nccl,
    "os": lambda catalog: catalog.systems.values(),
    "platforms": lambda catalog: platforms(),
    "frameworks": lambda catalog: [
        *catalog.tables["frameworks.pytorch_wheels"],
        *catalog.tables["frameworks.tensorflow_tested"],
    ],
    "container-toolkit": lambda catalog: catalog.container_toolkits,
    "known-issues": lambda catalog: catalog.known_issues,
    "bulletins": lambda catalog: catalog.bulletins.values(),
    "repositories": lambda catalog: catalog.repositories.values(),
    "policies": lambda catalog: catalog.policies.values(),
    "instances": lambda catalog: catalog.instances.values(),
    "doubts": lambda catalog: catalog.doubts.values(),
}

# table → columns of the short form
COLUMNS = {
    "gpus": (
        "id",
        "pci_device_ids",
        "architecture",
        "compute_capability",
        "min_driver_branch",
        "max_driver_branch",
    ),
    "drivers": ("branch", "type", "eol", "native_cuda", "latest_known", "open_modules"),
    "cuda": ("version", "label", "status", "driver_branch", "driver_corresponding_linux_x86_64"),
    "cudnn": ("version", "wheel_cuda_majors", "min_compute_capability"),
    "nccl": ("version", "wheel_cuda_majors", "cuda_builds_seen"),
    "os": ("id", "title", "arch", "manager", "cuda_first", "cuda_last"),
    "platforms": ("id", "of", "manager", "initramfs", "next_kernel", "sshd_unit", "firewall", "tested"),
    "frameworks": ("framework", "version", "cuda", "cudnn", "nccl"),
    "container-toolkit": ("version", "released", "note"),
    "known-issues": ("id", "kind", "condition", "effect"),
    "bulletins": ("id", "published", "score", "title", "affected"),
    "repositories": ("id", "title", "url"),
    "policies": ("name", "title"),
    "instances": ("id", "profile", "gpus", "vcpus", "memory_gib", "arch"),
    "doubts": ("id", "text"),
}


def table(catalog: Catalog, name: str) -> list[Plain]:
    """Return the records of a table (a key of `TABLES`) as JSON-ready data, in the catalog's order."""
    return [_plain_record(record) for record in TABLES[name](catalog)]


def _plain_record(record: Any) -> Plain:
    """Return a record as JSON-ready data; a framework's release has its framework's name in addition."""
    plain: Plain = to_plain(asdict(record))
    framework = {"TorchWheel": "torch", "TensorflowTested": "tensorflow"}.get(type(record).__name__)
    return {"framework": framework, **plain} if framework else plain


def to_plain(value: Any) -> Any:
    """Return JSON-ready data: versions as text, tuples as lists."""
    if isinstance(value, Version):
        return str(value)
    if isinstance(value, dict):
        return {key: to_plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(each) for each in value]
    return value


def show(catalog: Catalog, name: str) -> tuple[str, Plain]:
    """Return the table and the record with the given name.

    The name is that of a GPU (any of its names), a driver branch or version, an operating system, a CUDA,
    cuDNN or NCCL release, a known issue, a bulletin or its CVE, a repository, a doubt, a policy or a cloud's
    machine type. Sources and doubts are returned as text; a GPU has its oldest driver, too.

    Raises:
        InvalidInput: no record has that name, or several have.
    """
    found = _by_key(catalog, name) or _gpu_or_system(catalog, name)
    where, record = found
    plain = _plain_record(record)
    plain["source"] = [str(catalog.sources[key]) for key in record.source]
    if where == "gpus":
        plain["oldest_driver"] = oldest_driver(record)
    if "doubts" in plain:
        plain["doubts"] = [
            {"text": doubt.text, "source": [str(catalog.sources[key]) for key in doubt.source]}
            for doubt in map(catalog.doubts.__getitem__, record.doubts)
        ]
    return where, plain


def _by_key(catalog: Catalog, name: str) -> tuple[str, Any] | None:
    """Return table and record by the record's key, a driver version, a CVE or a machine type, or None."""
    keys = {"drivers": "branch", "policies": "name"}
    keys |= dict.fromkeys(("known-issues", "bulletins", "repositories", "doubts"), "id")
    for where in ("drivers", "cuda", "cudnn", "nccl", *list(keys)[1:]):
        for record in TABLES[where](catalog):
            if str(getattr(record, keys.get(where, "version"))) == name:
                return where, record
    for branch in catalog.branches.values():
        if name in map(str, branch.known_versions):
            return "drivers", branch
    for bulletin in catalog.bulletins.values():
        if name.upper() in bulletin.cves:
            return "bulletins", bulletin
    instance = instance_named(catalog, name)
    return ("instances", instance) if instance else None


def _gpu_or_system(catalog: Catalog, name: str) -> tuple[str, Any]:
    """Return table and record by a name of a system, or else of a GPU.

    Raises:
        InvalidInput: no record has that name, several have, or the catalog does not serve the system.
    """
    try:
        system = find_system(catalog, name)
    except InvalidInput:
        return "gpus", find_gpu(catalog, name)
    if system is None:
        raise InvalidInput(
            f"no repository of the catalog serves {name}", do="`gpuprov catalog os` lists what is served"
        )
    return "os", system

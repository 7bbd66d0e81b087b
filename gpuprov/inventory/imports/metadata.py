"""A machine from its cloud metadata: cloud-init's instance-data.json, or the metadata service.

Fields: cloud-init's "Instance metadata" (v1 keys), AWS's instance identity document, Azure's instance
metadata (compute, network), Google's and Oracle's metadata servers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpuprov.errors import InvalidInput
from gpuprov.inventory.imports.fields import Fields
from gpuprov.inventory.imports.machine import Machine

Values = Mapping[str, Any]


def machine(document: Any) -> Machine:
    """Return the machine that a document describes.

    Raises:
        InvalidInput: the document is not metadata of a known cloud, or a field has another type.
    """
    if isinstance(document, dict):
        for fits, read in READERS:
            if fits(document):
                return read(Fields(document))
    raise InvalidInput(
        "not a machine's metadata",
        expected="cloud-init's instance-data.json, or the metadata of AWS, Azure, Google or Oracle as JSON",
    )


def _cloud_init(document: Fields) -> Machine:
    """Read `v1`, which is the same on every cloud, and the machine type from the cloud's own part."""
    said, own = document.part("v1"), document.part("ds", "meta_data")
    kind = own.text("instance-type", "machine-type", "shape")
    kind = kind or own.part("imds", "compute").text("vmSize") or own.part("instance").text("shape")
    clouds = {"aws": "aws", "gce": "gcp", "azure": "azure", "oracle": "oci"}
    word = clouds.get(said.text("cloud_name", "cloud-name"))
    return Machine(
        name=said.text("local_hostname", "local-hostname", "instance_id"),
        address=own.text("local-ipv4"),
        instance=f"{word}:{kind.rpartition('/')[2]}" if word and kind else None,
        os=_system(said),
        arch=said.text("machine") or None,
        site=said.text("availability_zone", "region") or None,
    )


def _system(said: Fields) -> str | None:
    """Return the id of the system, such as `ubuntu24.04`; None if a part is missing."""
    distro, version = said.text("distro"), said.text("distro_version")
    return f"{distro}{version}" if distro and version else None


def _aws(document: Fields) -> Machine:
    """Return the machine that a document of AWS's metadata service describes."""
    arch = document.text("architecture")
    return Machine(
        name=document.text("instanceId"),
        address=document.text("privateIp"),
        instance=f"aws:{document.text('instanceType')}",
        arch={"arm64": "aarch64"}.get(arch, arch) or None,
        site=document.text("availabilityZone") or None,
    )


def _azure(document: Fields) -> Machine:
    """Return the machine that a document of Azure's metadata service describes."""
    compute = document.part("compute")
    interface = document.part("network").first("interface")
    return Machine(
        name=compute.text("name"),
        address=interface.part("ipv4").first("ipAddress").text("privateIpAddress"),
        instance=f"azure:{compute.text('vmSize')}",
        site=compute.text("location") or None,
    )


def _google(document: Fields) -> Machine:
    """Return the machine that a document of Google Cloud's metadata service describes."""
    own = document.part("instance") if document.values.get("instance") else document
    return Machine(
        name=own.text("name", "hostname"),
        address=own.first("networkInterfaces").text("ip"),
        instance=f"gcp:{own.text('machineType').rpartition('/')[2]}",
        site=own.text("zone").rpartition("/")[2] or None,
    )


def _oci(document: Fields) -> Machine:
    """Return the machine that a document of Oracle Cloud's metadata service describes."""
    own = document.part("instance") if document.values.get("instance") else document
    return Machine(
        name=own.text("hostname", "displayName"),
        instance=f"oci:{own.text('shape')}",
        site=own.text("canonicalRegionName", "region") or None,
    )


def _holds(*path: str) -> Callable[[Values], bool]:
    """Return a predicate: whether a document has a value at a path of nested keys."""

    def fits(document: Values) -> bool:
        at: Any = document
        for key in path:
            at = at.get(key) if isinstance(at, dict) else None
        return at is not None

    return fits


READERS: tuple[tuple[Callable[[Values], bool], Callable[[Fields], Machine]], ...] = (
    (_holds("v1"), _cloud_init),
    (_holds("instanceType"), _aws),
    (_holds("compute", "vmSize"), _azure),
    (_holds("instance", "machineType"), _google),
    (_holds("machineType"), _google),
    (_holds("instance", "shape"), _oci),
    (_holds("shape"), _oci),
)

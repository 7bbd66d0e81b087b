"""A machine from its cloud metadata: cloud-init's instance-data.json, or the metadata service.

Fields: cloud-init's "Instance metadata" (v1 keys), AWS's instance identity document, Azure's instance
metadata (compute, network), Google's and Oracle's metadata servers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpuprov.errors import InvalidInput
from gpuprov.inventory.imports.machine import Machine

Values = Mapping[str, Any]


def machine(document: Any) -> Machine:
    """Return the machine that a document describes.

    Raises:
        InvalidInput: the document is not metadata of a known cloud, or a part has another type.
    """
    if isinstance(document, dict):
        for fits, read in READERS:
            if fits(document):
                try:
                    return read(document)
                except (AttributeError, IndexError, KeyError, TypeError):  # such as text instead of a mapping
                    break
    raise InvalidInput(
        "not a machine's metadata",
        expected="cloud-init's instance-data.json, or the metadata of AWS, Azure, Google or Oracle as JSON",
    )


def _cloud_init(document: Values) -> Machine:
    """Read `v1`, which is the same on every cloud, and the machine type from the cloud's own part."""
    said: Values = document["v1"]
    cloud = str(said.get("cloud_name") or said.get("cloud-name") or "")
    own: Values = (document.get("ds") or {}).get("meta_data") or {}
    kind = own.get("instance-type") or own.get("machine-type") or own.get("shape")
    kind = kind or ((own.get("imds") or {}).get("compute") or {}).get("vmSize")
    kind = kind or ((own.get("instance") or {}).get("shape"))
    clouds = {"aws": "aws", "gce": "gcp", "azure": "azure", "oracle": "oci"}
    word = clouds.get(cloud)
    return Machine(
        name=str(said.get("local_hostname") or said.get("local-hostname") or said.get("instance_id")),
        address=str(own.get("local-ipv4") or ""),
        instance=f"{word}:{str(kind).rpartition('/')[2]}" if word and kind else None,
        os=_system(said),
        arch=said.get("machine"),
        site=said.get("availability_zone") or said.get("region"),
    )


def _system(said: Values) -> str | None:
    distro, version = said.get("distro"), said.get("distro_version")
    return f"{distro}{version}" if distro and version else None


def _aws(document: Values) -> Machine:
    arch = {"arm64": "aarch64"}.get(str(document.get("architecture")), document.get("architecture"))
    return Machine(
        name=str(document["instanceId"]),
        address=str(document.get("privateIp") or ""),
        instance=f"aws:{document['instanceType']}",
        arch=arch,
        site=document.get("availabilityZone"),
    )


def _azure(document: Values) -> Machine:
    compute: Values = document["compute"]
    interfaces = (document.get("network") or {}).get("interface") or [{}]
    addresses = (interfaces[0].get("ipv4") or {}).get("ipAddress") or [{}]
    return Machine(
        name=str(compute.get("name")),
        address=str(addresses[0].get("privateIpAddress") or ""),
        instance=f"azure:{compute.get('vmSize')}",
        site=compute.get("location"),
    )


def _google(document: Values) -> Machine:
    own: Values = document.get("instance") or document
    interfaces = own.get("networkInterfaces") or [{}]
    return Machine(
        name=str(own.get("name") or own.get("hostname")),
        address=str(interfaces[0].get("ip") or ""),
        instance=f"gcp:{str(own['machineType']).rpartition('/')[2]}",
        site=str(own.get("zone") or "").rpartition("/")[2] or None,
    )


def _oci(document: Values) -> Machine:
    own: Values = document.get("instance") or document
    return Machine(
        name=str(own.get("hostname") or own.get("displayName")),
        instance=f"oci:{own['shape']}",
        site=own.get("canonicalRegionName") or own.get("region"),
    )


def _holds(*path: str) -> Callable[[Values], bool]:
    def fits(document: Values) -> bool:
        at: Any = document
        for key in path:
            at = at.get(key) if isinstance(at, dict) else None
        return at is not None

    return fits


READERS: tuple[tuple[Callable[[Values], bool], Callable[[Values], Machine]], ...] = (
    (_holds("v1"), _cloud_init),
    (_holds("instanceType"), _aws),
    (_holds("compute", "vmSize"), _azure),
    (_holds("instance", "machineType"), _google),
    (_holds("machineType"), _google),
    (_holds("instance", "shape"), _oci),
    (_holds("shape"), _oci),
)

"""Software bill of materials of a lock: CycloneDX 1.6 as JSON, with the bulletins that concern its versions.

The same lock and catalog give the same bytes: the serial number is derived from the content, and there is no
time of creation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from uuid import NAMESPACE_URL, UUID, uuid5

from cyclonedx.model import Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component as Part
from cyclonedx.model.component import ComponentType
from cyclonedx.model.contact import OrganizationalEntity
from cyclonedx.model.impact_analysis import ImpactAnalysisState
from cyclonedx.model.vulnerability import (
    BomTarget,
    Vulnerability,
    VulnerabilityAnalysis,
    VulnerabilitySource,
)
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from gpuprov import __version__
from gpuprov.catalog import Catalog
from gpuprov.catalog.records import Bulletin, System
from gpuprov.catalog.rules.security import affected, upstream
from gpuprov.catalog.version import Version
from gpuprov.model.lock import Component, Lock, LockedGroup
from gpuprov.model.nodeset import fold

DEB_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}
RPM_NAMESPACE = {"rhel": "redhat", "suse": "opensuse"}
"""Family of systems → its vendor's name in URLs of packages, if that is another one."""
NVIDIA = ("nvidia", "container-toolkit")
"""Repositories whose packages NVIDIA supplies."""
PREFIX = "gpuprov:"
"""Namespace of the properties."""


@dataclass
class _Package:
    """One package at one version, and the components and groups that have it."""

    purl: PackageURL
    component: str
    repository: str
    groups: list[str] = field(default_factory=list)
    bulletins: dict[str, tuple[Bulletin, tuple[str, ...]]] = field(default_factory=dict)


def sbom(lock: Lock, names: Collection[str], catalog: Catalog) -> str:
    """Return the bill of materials of the groups of some nodes.

    Args:
        names: nodes of the lock.
        catalog: systems, and the newest bulletins; without these if the fleet ignores them.
    """
    wanted = set(names)
    groups = {name: group for name, group in lock.groups.items() if wanted & set(group.hosts)}
    packages: dict[str, _Package] = {}
    for name, group in groups.items():
        _collect(packages, name, group, catalog, judged=lock.security != "ignore")
    bom = Bom(serial_number=UUID(int=0))
    fleet = Part(type=ComponentType.APPLICATION, name="fleet", version=lock.inputs, bom_ref="fleet")
    bom.metadata.component = fleet
    bom.metadata.tools.components.add(
        Part(type=ComponentType.APPLICATION, name="gpuprov", version=__version__, bom_ref="gpuprov")
    )
    parts = {purl: _part(package) for purl, package in packages.items()}
    servers = {name: _server(name, group, wanted) for name, group in groups.items()}
    for part in (*servers.values(), *parts.values()):
        bom.components.add(part)
    bom.register_dependency(fleet, servers.values())
    for name, server in servers.items():
        bom.register_dependency(
            server, [parts[purl] for purl, each in packages.items() if name in each.groups]
        )
    for each in _vulnerabilities(packages):
        bom.vulnerabilities.add(each)
    return rendered(bom)


def rendered(bom: Bom) -> str:
    """Return a bill as JSON without the time, and with a serial number derived from the rest."""
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    document["metadata"].pop("timestamp", None)
    content = json.dumps({**document, "serialNumber": ""}, sort_keys=True)
    document["serialNumber"] = f"urn:uuid:{uuid5(NAMESPACE_URL, content)}"
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _collect(
    packages: dict[str, _Package], name: str, group: LockedGroup, catalog: Catalog, *, judged: bool
) -> None:
    """Add the packages of a group; one that another group has too gets the name of this group.

    Args:
        judged: whether bulletins about the versions are added.
    """
    system = catalog.systems[group.os]
    for title, component in group.components.each():
        for package, version in component.closure.items():
            purl = _purl(package, version, system, group.arch)
            found = packages.setdefault(purl.to_string(), _Package(purl, title, component.repository))
            found.groups += [name] if name not in found.groups else []
            if judged and package in component.packages:
                found.bulletins |= _bulletins(title, component, version, catalog)


def _bulletins(
    title: str, component: Component, version: str, catalog: Catalog
) -> Iterator[tuple[str, tuple[Bulletin, tuple[str, ...]]]]:
    """Return the bulletins about a package that has its component's version, with the CVEs, by number.

    A package with an independent version, such as a service of the distribution, has none.
    """
    release = _release(version)
    versions = getattr(component, "toolkits", {}).values() or [component.version]
    same = release is not None and release in {upstream(each) for each in versions}
    found = affected(catalog, title, release) if same and release else ()
    return ((each.bulletin.id, (each.bulletin, each.cves)) for each in found)


def _release(version: str) -> Version | None:
    """Return the upstream version of a package's version; None if it does not begin with one."""
    return upstream(version.rpartition(":")[2])


def _purl(package: str, version: str, system: System, arch: str) -> PackageURL:
    """Return the URL of a package, by the types `deb` and `rpm` of the package-url specification.

    The epoch of an rpm is a qualifier; that of a deb is part of its version.
    """
    distro = re.sub(r"(?<=[a-z])(?=[0-9])", "-", system.id, count=1)
    if system.manager == "apt":
        qualifiers = {"arch": DEB_ARCH.get(arch, arch), "distro": distro}
        return PackageURL("deb", system.family, package, version, qualifiers)
    epoch, _, plain = version.rpartition(":")
    qualifiers = {"arch": arch, "distro": distro, **({"epoch": epoch} if epoch else {})}
    return PackageURL("rpm", RPM_NAMESPACE.get(system.family, system.family), package, plain, qualifiers)


def _part(package: _Package) -> Part:
    """Return a package as a component of the bill."""
    return Part(
        type=ComponentType.DEVICE_DRIVER if package.component == "driver" else ComponentType.LIBRARY,
        name=package.purl.name,
        version=package.purl.version,
        purl=package.purl,
        bom_ref=package.purl.to_string(),
        supplier=OrganizationalEntity(name="NVIDIA") if package.repository in NVIDIA else None,
        properties=[
            Property(name=f"{PREFIX}component", value=package.component),
            Property(name=f"{PREFIX}repository", value=package.repository),
        ],
    )


def _server(name: str, group: LockedGroup, wanted: set[str]) -> Part:
    """Return a group as a component of the bill, with its nodes, system and GPUs as properties."""
    said = {
        "profile": group.profile,
        "nodes": fold(host for host in group.hosts if host in wanted),
        "system": group.os,
        "architecture": group.arch,
        "gpus": f"{group.hardware.gpu_count}x {group.hardware.gpu_model}",
    }
    properties = [Property(name=f"{PREFIX}{key}", value=value) for key, value in said.items()]
    return Part(type=ComponentType.PLATFORM, name=name, bom_ref=f"group:{name}", properties=properties)


def _vulnerabilities(packages: dict[str, _Package]) -> Iterator[Vulnerability]:
    """Yield each CVE of the bulletins, with the packages that have it."""
    refs: dict[str, list[str]] = {}
    named: dict[str, list[Bulletin]] = {}
    for purl, package in packages.items():
        for bulletin, cves in package.bulletins.values():
            for cve in cves:
                refs.setdefault(cve, []).append(purl)
                if bulletin not in named.setdefault(cve, []):
                    named[cve].append(bulletin)
    for cve, targets in refs.items():
        numbers = ", ".join(bulletin.id for bulletin in named[cve])
        yield Vulnerability(
            bom_ref=cve,
            id=cve,
            source=VulnerabilitySource(name="NVD", url=XsUri(f"https://nvd.nist.gov/vuln/detail/{cve}")),
            detail=f"NVIDIA's security bulletin {numbers}",
            analysis=VulnerabilityAnalysis(state=ImpactAnalysisState.IN_TRIAGE),
            affects=[BomTarget(ref=ref) for ref in targets],
        )

"""Software bill of materials of a release: what gpuprov's lock names, as CycloneDX 1.6.

The same lock gives the same bytes.
"""

from __future__ import annotations

from uuid import UUID

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from packageurl import PackageURL

from gpuprov.inventory.exports.sbom import PREFIX, rendered
from maintenance.release.locked import Pinned

NAME = "gpuprov.cdx.json"


def materials(pins: list[Pinned], version: str) -> str:
    """Return the bill of gpuprov and of its dependencies, each with the hashes of all its wheels.

    Args:
        pins: packages of the release's lock.
        version: gpuprov's.
    """
    bom = Bom(serial_number=UUID(int=0))
    own = Component(
        type=ComponentType.APPLICATION,
        name="gpuprov",
        version=version,
        bom_ref="gpuprov",
        licenses=[DisjunctiveLicense(id="GPL-3.0-or-later")],
    )
    bom.metadata.component = own
    parts = [_part(pin) for pin in pins]
    for part in parts:
        bom.components.add(part)
    bom.register_dependency(own, parts)
    return rendered(bom)


def _part(pin: Pinned) -> Component:
    """Return a package as a component of the bill; its marker, if any, is a property."""
    url = PackageURL("pypi", name=pin.name, version=pin.version)
    algorithms = [HashType(alg=HashAlgorithm.SHA_256, content=each.partition(":")[2]) for each in pin.hashes]
    condition = [Property(name=f"{PREFIX}marker", value=str(pin.marker))] if pin.marker else []
    return Component(
        type=ComponentType.LIBRARY,
        name=pin.name,
        version=pin.version,
        purl=url,
        bom_ref=url.to_string(),
        hashes=algorithms,
        properties=condition,
    )
